"""The templates parse, fit together, and grant what is promised and no more."""

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pycep import BicepParser

from bridge.configuration import load as config
from bridge.foundation.values import Address
from bridge.health.config import HttpConfig
from bridge.hub.config import HubConfig
from bridge.simulator.servicebus.config import default_entities

HERE = Path(__file__).parents[2] / "infra" / "bicep"
FILES = sorted(HERE.rglob("*.bicep"))
SENDER = "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39"
RECEIVER = "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0"
BLOB_OWNER = "b7e6dc6d-f1e8-4753-8033-0f276bb0955b"
ROLES = "Microsoft.Authorization/roleAssignments"
VOTE_RULES = {"one", "two", "resources"}  # approver.vote_rules, which Python 3.13 lacks


@functools.cache  # a second each
def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = dict(BicepParser().parse(file_path=HERE / name))
    return found


MAIN = (HERE / "main.bicep").read_text()  # parsed in tests: all processes load this


def resources(module: str) -> dict[str, Any]:
    found: dict[str, Any] = read(f"modules/{module}.bicep")["resources"]
    return found


def properties(name: str) -> dict[str, Any]:
    found: dict[str, Any] = resources("bus")[name]["config"]["properties"]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_parameter_and_variable_is_used(path: Path) -> None:
    text = path.read_text()
    declared = re.findall(r"^(?:param|var) (\w+)", text, re.MULTILINE)

    assert read(str(path.relative_to(HERE)))
    assert [n for n in declared if len(re.findall(rf"\b{n}\b", text)) < 2] == []


@pytest.mark.parametrize("name", re.findall(r"(?m)^module (\w+) ", MAIN))
def test_module_is_given_its_parameters_and_no_others(name: str) -> None:
    given = read("main.bicep")["modules"][name]["config"]
    path = HERE / re.findall(rf"module {name} '([^']+)'", MAIN)[0]
    wanted = read(str(path.relative_to(HERE)))["parameters"]

    assert set(given.get("config", given)["params"]) == set(wanted)


def test_outputs_that_are_asked_for_exist() -> None:
    for module, output in re.findall(r"(\w+)!?\.outputs\.(\w+)", MAIN):
        file = re.findall(rf"module {module} '([^']+)'", MAIN)[0]
        assert output in read(file)["outputs"]


def test_every_parameter_of_main_says_what_it_is_and_has_a_default() -> None:
    found = re.findall(r"((?:^@.*\n)+)^param (\w+) \w+( =)?", MAIN, re.MULTILINE)

    assert {name for _, name, _ in found} == {*read("main.bicep")["parameters"]}
    for decorators, name, default in found:
        assert "@description" in decorators, name
        assert default, name


def granted(name: str) -> set[tuple[str, str]]:
    """Return the entities of a module on which roles are given, with the roles."""
    found = read(name)
    roles = {
        variable: value["value"]["function"]["parameters"]["resource_name_1"]
        for variable, value in found["variables"].items()
        if "subscriptionResourceId" in (HERE / name).read_text()
        and variable.endswith("Role")
    }
    return {
        (r["config"]["scope"], roles[r["config"]["properties"]["roleDefinitionId"]])
        for r in found["resources"].values()
        if r["type"] == ROLES
    }


def test_bridges_have_exactly_three_roles_on_exactly_these_entities() -> None:
    assert granted("modules/bus.bicep") == {
        ("events", SENDER),
        ("approvals", RECEIVER),
        ("replies", SENDER),
    }


def test_approver_has_exactly_what_its_functions_do() -> None:
    assert granted("modules/approver.bicep") == {
        ("approver", RECEIVER),
        ("clicks", SENDER),
        ("clicks", RECEIVER),
        ("votes", RECEIVER),
        ("approvals", SENDER),
        ("storage", BLOB_OWNER),
    }


def test_hub_reads_two_entities_and_sends_to_one() -> None:
    assert granted("modules/hub.bicep") == {
        ("hears", RECEIVER),
        ("azureEvents", RECEIVER),
        ("approvals", SENDER),
    }


def test_hub_that_is_down_fills_nothing() -> None:
    for name in ("hears", "azureEvents"):
        found = resources("hub")[name]["config"]["properties"]
        assert found["deadLetteringOnMessageExpiration"] is False
        assert found["defaultMessageTimeToLive"] == "P1D"


def test_hub_is_reached_where_it_listens_by_who_has_signed_in() -> None:
    app = resources("hubapp")["app"]["config"]["properties"]
    port = HubConfig().addresses[0].port
    container = app["template"]["containers"][0]

    assert app["configuration"]["ingress"]["targetPort"] == port
    assert [one["httpGet"]["port"] for one in container["probes"]] == [port, port]
    assert container["command"][1] == "hub"
    sign_in = resources("hub")["signIn"]["config"]["properties"]["globalValidation"]
    assert sign_in["unauthenticatedClientAction"] == "RedirectToLoginPage"


def test_secrets_of_the_hub_are_given_and_never_shown() -> None:
    for module in ("hub", "hubapp"):
        text = (HERE / "modules" / f"{module}.bicep").read_text()
        assert "@secure()\nparam config string" in text
        assert "listKeys" not in text
        assert set(read(f"modules/{module}.bicep")["outputs"]) == {"address"}


def test_database_of_the_hub_is_opened_by_tokens_and_has_an_administrator() -> None:
    """Azure refuses a server with passwords and no administrator."""
    text = (HERE / "modules" / "hub.bicep").read_text()
    database = resources("hub")["database"]["config"]["properties"]

    assert database["authConfig"]["passwordAuth"] == "Disabled"
    assert database["authConfig"]["activeDirectoryAuth"] == "Enabled"
    assert resources("hub")["administrator"]["config"]["parent"] == "database"
    assert "isHubAdmin ? principalId : databaseAdminId" in text
    address = re.search(r"(?m)^var store = '(.+)'$", text)
    assert address is not None
    store = address[1].replace("${identityName}", "sebridge-hub")
    store = store.replace("${databaseHost}", "h.postgres.database.azure.com")
    container = resources("hubapp")["app"]["config"]["properties"]["template"]
    given = {one["name"]: one["value"] for one in container["containers"][0]["env"]}
    config = HubConfig(
        store=Address(store, {}),
        store_credential=given["SEBRIDGE__HUB__STORE_CREDENTIAL"],
        store_client_id=given["SEBRIDGE__HUB__STORE_CLIENT_ID"],
    )
    faults = [what for what in config.faults() if what[0].startswith("store")]
    assert faults == []


def test_hub_is_not_reachable_before_people_must_sign_in() -> None:
    """It takes their names from the platform, so that anybody could be anybody."""
    text = (HERE / "modules" / "hub.bicep").read_text()
    found = re.findall(
        r"(?m)^(?:module|resource) (\w+) .* = \{\n(?:  \w.*\n)+?  dependsOn: \["
        r"\n((?:    \w+\n)+)  \]",
        text,
    )
    waits = {name: set(others.split()) for name, others in found}
    modules = read("modules/hub.bicep")["modules"]

    assert waits["signIn"] == {"closed"}
    assert waits["open"] == {"signIn"}
    assert "administrator" in waits["closed"]
    assert waits["administrator"] == {"tables"}
    assert modules["closed"]["config"]["params"]["isReachable"] is False
    assert modules["open"]["config"]["params"]["isReachable"] is True
    closed, opened = (modules[name]["config"]["params"] for name in ("closed", "open"))
    assert {**closed, "isReachable": True} == opened


def test_addresses_with_a_sas_are_secrets_in_each_deployment() -> None:
    for name in ("application.bicep", "modules/application.bicep"):
        text = (HERE / name).read_text()
        for key in ("packageUri", "configUri"):
            assert re.search(rf"(?m)^@secure\(\)\nparam {key} string", text), name


def test_role_is_named_by_its_principal() -> None:
    """The id of an identity stays when it is made anew, and its principal does not."""
    for path in FILES:
        names = re.findall(r"name: guid\((.*)\)", path.read_text())
        assert [n for n in names if n.split(", ")[1] != "principalId"] == [], path


def test_host_of_the_namespace_is_that_of_the_cloud() -> None:
    named = [path for path in FILES if "servicebus.windows.net'" in path.read_text()]

    assert named == []
    assert "serviceBusEndpoint" in (HERE / "modules" / "bus.bicep").read_text()


WRONG = re.search(r"(?s)\nvar wrong = concat\((.*?)\n\)\n", MAIN)


def test_wrong_combinations_end_a_deployment_before_it_begins() -> None:
    assert WRONG is not None
    found = re.findall(r"\? \['(.+?)'\] : \[\]", WRONG[1])

    assert len(found) == 10
    assert "fail(join(wrong, '; '))" in MAIN
    first = read("main.bicep")["modules"]["identity"]["config"]["params"]
    assert first["location"] == "region"
    for name in ("application.bicep", "policy.bicep"):
        assert "fail(join(wrong, '; '))" in (HERE / name).read_text()


def test_no_other_module_gives_a_role_and_none_on_a_whole_namespace() -> None:
    givers = {path.stem for path in FILES if ROLES in path.read_text()}

    # Those of the policy are its own, and tests/infra/test_policy.py knows them.
    assert givers == {"bus", "approver", "hub", "policyroles", "galleryreader"}
    assert "scope: namespace" not in "".join(path.read_text() for path in FILES)


def test_approver_refers_to_entities_that_are_made() -> None:
    named = {(r["type"], str(r["config"]["name"])) for r in resources("bus").values()}
    existing = {
        (r["type"], r["config"]["name"])
        for r in resources("approver").values()
        if r.get("existing") and "parent" in r["config"]
    }

    assert len(existing) == 3
    assert existing <= named


def test_approver_is_told_what_its_settings_ask_for() -> None:
    """Its app settings are those of the README of the app."""
    site = resources("approver")["app"]["config"]["properties"]["siteConfig"]
    given = {one["name"]: one["value"] for one in site["appSettings"]}
    readme = (HERE.parent / "functions" / "README.md").read_text()
    own = {name for name in given if not name.startswith("AzureWebJobsStorage")}

    assert [name for name in own if f"`{name}`" not in readme] == []
    assert {"EVENTS_TOPIC", "EVENTS_SUBSCRIPTION", "APPROVAL_ENTITIES"} <= own
    for name, entity in (("CLICKS_QUEUE", "clicks"), ("VOTES_QUEUE", "votes")):
        default = f"approver-{entity}"
        assert resources("approver")[entity]["config"]["name"] == default
        assert f"`{default}`" in readme
        assert given[name]["operator"]["operands"]["operand_1"] == entity
    assert (
        resources("approver")["votes"]["config"]["properties"]["requiresSession"]
        is True
    )


def test_approver_holds_no_secret_and_no_key() -> None:
    text = (HERE / "modules" / "approver.bicep").read_text()
    account = resources("approver")["storage"]["config"]["properties"]

    assert account["allowSharedKeyAccess"] is False
    assert account["allowBlobPublicAccess"] is False
    assert "listKeys" not in text
    assert "connectionstring" not in text.lower()
    for name in ("slackSigningSecretUri", "buttonSecretUri"):
        assert f"'@Microsoft.KeyVault(SecretUri=${{{name}}})'" in text
    site = resources("approver")["app"]["config"]["properties"]
    assert site["httpsOnly"] is True
    assert site["keyVaultReferenceIdentity"]


def test_what_may_be_missing_is_named_so_to_the_compiler() -> None:
    """Of a module with a condition; else it warns (BCP318)."""
    conditional = re.findall(r"(?m)^module (\w+) '[^']+' = if ", MAIN)

    for name in conditional:
        assert not re.search(rf"\b{name}\.outputs", MAIN), name


def test_votes_may_be_counted_as_the_app_counts_them() -> None:
    block = re.search(r"@allowed\((\[.*\])\)\nparam voteRule", MAIN)

    assert block is not None
    assert set(re.findall(r"'(\w+)'", block[1])) == VOTE_RULES


def test_entities_are_what_the_bridge_and_its_consumers_need() -> None:
    known = default_entities()
    names = {name: r["config"]["name"] for name, r in resources("bus").items()}

    assert names["events"] in {topic.name for topic in known.topics}
    assert {names["approvals"], names["replies"]} <= {q.name for q in known.queues}
    assert properties("events")["requiresDuplicateDetection"] is True
    assert properties("approvals")["requiresSession"] is True
    assert properties("approvals")["deadLetteringOnMessageExpiration"] is True
    assert {names["approver"], names["siem"]} == {"approver", "siem"}


@pytest.mark.parametrize("name", ["approver", "siem"])
def test_subscription_that_nobody_reads_does_not_fill_the_topic(name: str) -> None:
    """A full topic takes no events at all, and dead letters never expire."""
    assert properties(name)["deadLetteringOnMessageExpiration"] is False
    assert properties(name)["defaultMessageTimeToLive"] in {"P1D", "P7D"}
    assert properties("events")["maxSizeInMegabytes"] == 5120


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
    port = HttpConfig().addresses[0].text.rpartition(":")[2]

    assert f"port: {port}\n" in text
    assert "requestPath: '/livez'\n" in text


def test_instances_are_told_before_their_os_disk_is_replaced() -> None:
    """Azure takes 15 minutes and nothing else for a new image."""
    found = read("modules/scaleset.bicep")["resources"]["scaleSet"]["config"]
    properties = found["properties"]

    upgrade = properties["upgradePolicy"]["automaticOSUpgradePolicy"]
    assert upgrade["enableAutomaticOSUpgrade"] is True
    profile = properties["virtualMachineProfile"]["scheduledEventsProfile"]
    assert profile["osImageNotificationProfile"] == {
        "enable": True,
        "notBeforeTimeout": "PT15M",
    }
    assert profile["terminateNotificationProfile"]["enable"] is True


GROUPED = (
    r"""var sessions = install == 'scaleSet' && instances <= 100 \? '(.*)' : '(.*)'"""
)


def test_group_has_a_session_only_where_all_of_it_sees_the_same_events() -> None:
    """A placement group does, and it takes 100 instances; VMs of their own do not."""
    found = re.search(GROUPED, MAIN)

    assert found is not None
    assert found.groups() == ('["{vm_id}", "{group}"]', '["{vm_id}"]')
    text = (HERE / "modules" / "scaleset.bicep").read_text()
    assert "singlePlacementGroup: instances <= 100\n" in text


@pytest.mark.parametrize("sessions", ['["{vm_id}", "{group}"]', '["{vm_id}"]'])
def test_cloud_init_writes_a_configuration_that_is_valid(
    sessions: str, tmp_path: Path
) -> None:
    text = (HERE / "cloud-init.yaml").read_text().replace("@SESSIONS@", sessions)
    assert "'@SESSIONS@', sessions" in MAIN
    for mark in set(re.findall(r"@[A-Z_0-9]+@", text)):
        assert f"'{mark}'" in MAIN
        text = text.replace(mark, "contoso.servicebus.windows.net")
    files = {f["path"]: f["content"] for f in yaml.safe_load(text)["write_files"]}
    path = tmp_path / "bridge.toml"
    path.write_text(files["/etc/sebridge/bridge.toml"])

    found = config.load(path, {})

    assert [sink.name for sink in found.sinks] == ["bus"]
    assert text.startswith("#cloud-config\n")

    examples = re.sub(r"^# (?=[\[a-z])", "", path.read_text(), flags=re.MULTILINE)
    path.write_text(examples)
    found = config.load(path, {})

    assert [sink.name for sink in found.sinks] == ["bus", "drain"]
    assert found.traffic is not None
    assert found.approvals is not None


def test_readme_has_every_kind_of_resource() -> None:
    found = (HERE / "README.md").read_text()
    kinds = {
        resource["type"]
        for path in FILES
        for resource in read(str(path.relative_to(HERE))).get("resources", {}).values()
    }

    assert [kind for kind in kinds if kind not in found] == []
