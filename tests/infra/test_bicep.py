"""The templates parse, fit together, and grant what is promised and no more."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pycep import BicepParser

from bridge import config
from bridge.health import HttpConfig
from bridge.simulator.servicebus.config import default_entities

HERE = Path(__file__).parents[2] / "infra" / "bicep"
FILES = sorted(HERE.rglob("*.bicep"))
SENDER = "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39"
RECEIVER = "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0"


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(BicepParser().parse(file_path=HERE / name))
    return found


BUS = read("modules/bus.bicep")["resources"]
MAIN = read("main.bicep")
MODULES = MAIN["modules"]


def properties(name: str) -> dict[str, Any]:
    found: dict[str, Any] = BUS[name]["config"]["properties"]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_parameter_and_variable_is_used(path: Path) -> None:
    text = path.read_text()
    declared = re.findall(r"^(?:param|var) (\w+)", text, re.MULTILINE)

    assert read(str(path.relative_to(HERE)))
    assert [n for n in declared if len(re.findall(rf"\b{n}\b", text)) < 2] == []


@pytest.mark.parametrize("name", MODULES)
def test_module_is_given_its_parameters_and_no_others(name: str) -> None:
    given = MODULES[name]["config"]
    path = HERE / re.findall(rf"module {name} '([^']+)'", main_text())[0]
    wanted = read(str(path.relative_to(HERE)))["parameters"]

    assert set(given.get("config", given)["params"]) == set(wanted)


def main_text() -> str:
    return (HERE / "main.bicep").read_text()


def test_outputs_that_are_asked_for_exist() -> None:
    for module, output in re.findall(r"(\w+)\.outputs\.(\w+)", main_text()):
        file = re.findall(rf"module {module} '([^']+)'", main_text())[0]
        assert output in read(file)["outputs"]


def test_every_parameter_of_main_says_what_it_is_and_has_a_default() -> None:
    found = re.findall(r"((?:^@.*\n)+)^param (\w+) \w+( =)?", main_text(), re.MULTILINE)

    assert {name for _, name, _ in found} == {*MAIN["parameters"]}
    for decorators, name, default in found:
        assert "@description" in decorators, name
        assert default, name


def test_identity_has_exactly_three_roles_on_exactly_these_entities() -> None:
    bus = read("modules/bus.bicep")
    roles = {
        name: value["value"]["function"]["parameters"]["resource_name_1"]
        for name, value in bus["variables"].items()
    }
    granted = {
        (r["config"]["scope"], roles[r["config"]["properties"]["roleDefinitionId"]])
        for path in FILES
        for r in read(str(path.relative_to(HERE))).get("resources", {}).values()
        if r["type"] == "Microsoft.Authorization/roleAssignments"
    }

    assert granted == {
        ("events", SENDER),
        ("approvals", RECEIVER),
        ("replies", SENDER),
    }


def test_entities_are_what_the_bridge_and_its_consumers_need() -> None:
    known = default_entities()
    names = {name: r["config"]["name"] for name, r in BUS.items()}

    assert names["events"] in {topic.name for topic in known.topics}
    assert {names["approvals"], names["replies"]} <= {q.name for q in known.queues}
    assert properties("events")["requiresDuplicateDetection"] is True
    assert properties("approvals")["requiresSession"] is True
    assert properties("approvals")["deadLetteringOnMessageExpiration"] is True
    assert {names["approver"], names["siem"]} == {"approver", "siem"}


def test_nobody_signs_in_with_a_key() -> None:
    assert properties("namespace")["disableLocalAuth"] is True
    assert properties("namespace")["minimumTlsVersion"] == "1.2"


def test_somebody_hears_of_dead_letters() -> None:
    alert = read("modules/alerts.bicep")["resources"]["deadLetters"]["config"]
    criterion = alert["properties"]["criteria"]["allOf"][0]

    assert criterion["metricName"] == "DeadletteredMessages"
    assert criterion["dimensions"][0]["values"] == ["*"]


def test_health_of_an_instance_is_asked_where_the_bridge_listens() -> None:
    text = (HERE / "modules" / "scaleset.bicep").read_text()
    port = HttpConfig().listen.rpartition(":")[2]

    assert f"port: {port}\n" in text
    assert "requestPath: '/livez'\n" in text


def test_cloud_init_writes_a_configuration_that_is_valid(tmp_path: Path) -> None:
    text = (HERE / "cloud-init.yaml").read_text()
    for mark in set(re.findall(r"@[A-Z_0-9]+@", text)):
        assert f"'{mark}'" in main_text()
        text = text.replace(mark, "contoso.servicebus.windows.net")
    files = {f["path"]: f["content"] for f in yaml.safe_load(text)["write_files"]}
    path = tmp_path / "bridge.toml"
    path.write_text(files["/etc/sebridge/bridge.toml"])

    found = config.load(path, {})

    assert [sink.name for sink in found.sinks] == ["bus"]
    assert text.startswith("#cloud-config\n")


def test_readme_has_every_kind_of_resource() -> None:
    told = (HERE / "README.md").read_text()
    kinds = {
        resource["type"]
        for path in FILES
        for resource in read(str(path.relative_to(HERE))).get("resources", {}).values()
    }

    assert [kind for kind in kinds if kind not in told] == []
