"""What is deployed beside the code says what the code says."""

import ast
import json
import re
from importlib.metadata import metadata, version
from pathlib import Path, PurePath

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from approver.settings import Settings
from bridge.simulator.servicebus.config import load_entities

APP = Path(__file__).parents[2] / "infra" / "functions"


def settings_of_the_code() -> set[str]:
    """Return the names that the code looks up, but those that the platform sets."""
    names: set[str] = set()
    own = APP / "approver"
    for path in (
        APP / "function_app.py",
        own / "settings.py",
        own / "teams" / "config.py",
    ):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names.update(
                    re.findall(
                        r"^%?(?!POST|FUNCTIONS_)([A-Z]{4,}(?:_+[A-Za-z]+)*)%?$",
                        node.value,
                    )
                )
    return names


def test_readme_has_every_setting_and_no_other() -> None:
    table = (APP / "README.md").read_text().split("## Settings")[1].split("## ")[0]
    first_cells = "\n".join(
        line.split("|")[1] for line in table.split("\n") if "|" in line
    )
    found = set(re.findall(r"`([A-Z]\w+)`", first_cells))

    assert found == settings_of_the_code()


def test_local_settings_are_taken() -> None:
    found = json.loads((APP / "local.settings.example.json").read_text())
    names = set(found["Values"]) - {"FUNCTIONS_WORKER_RUNTIME", "AzureWebJobsStorage"}

    settings = Settings.from_environment(found["Values"])

    assert names <= settings_of_the_code()
    there = load_entities(APP / "simulator.json")
    queues = {queue.name: queue.requires_session for queue in there.queues}
    assert queues[settings.clicks_queue] is False
    assert queues[settings.votes_queue] is True
    assert set(settings.approval_entities) <= set(queues)
    (topic,) = there.topics
    assert topic.name == found["Values"]["EVENTS_TOPIC"]
    assert found["Values"]["EVENTS_SUBSCRIPTION"] in {
        one.name for one in topic.subscriptions
    }


def test_host_file_is_of_the_version_that_the_app_is_for() -> None:
    host = json.loads((APP / "host.json").read_text())

    assert host["version"] == "2.0"
    assert host["extensionBundle"]["version"].startswith("[4.")
    assert host["extensions"]["serviceBus"]["autoCompleteMessages"] is True


def test_slack_app_may_do_no_more_than_it_does() -> None:
    manifest = yaml.safe_load((APP / "slack-app.yaml").read_text())
    code = (APP / "function_app.py").read_text()

    scopes = {"bot": ["chat:write", "channels:read", "groups:read"]}
    assert manifest["oauth_config"]["scopes"] == scopes
    url = manifest["settings"]["interactivity"]["request_url"]
    assert f'route="{url.rpartition("/api/")[2]}"' in code


def test_teams_app_is_a_bot_of_teams_and_group_chats() -> None:
    manifest = json.loads((APP / "teams-app.json").read_text())
    (bot,) = manifest["bots"]
    bicep = (APP.parent / "bicep" / "modules" / "bot.bicep").read_text()
    (route,) = re.findall(r'route="(messages)"', (APP / "function_app.py").read_text())

    assert bot["botId"] == manifest["id"] == "00000000-0000-0000-0000-000000000000"
    assert bot["scopes"] == ["team", "groupChat"]
    assert len(manifest["description"]["short"]) <= 80
    assert len(manifest["name"]["short"]) <= 30
    assert f"/api/{route}'" in bicep


def requirements() -> list[Requirement]:
    lines = (APP / "requirements.txt").read_text().splitlines()
    return [Requirement(line.partition("#")[0]) for line in lines if line[0] != "#"]


@pytest.mark.parametrize("wanted", requirements(), ids=lambda one: one.name)
def test_requirement_is_what_is_tested_and_no_later_major(wanted: Requirement) -> None:
    """A deployment installs the newest that is allowed."""
    tested = Version(version(wanted.name))

    assert tested in wanted.specifier
    assert f"{tested.major}.99.99" in wanted.specifier
    for later in (tested.major + 1, tested.major + 2):
        assert f"{later}.0.0" not in wanted.specifier


@pytest.mark.parametrize("wanted", requirements(), ids=lambda one: one.name)
def test_requirement_can_be_had_for_the_python_that_is_deployed(
    wanted: Requirement,
) -> None:
    found = (APP / "README.md").read_text()
    bicep = (APP.parent / "bicep" / "modules" / "approver.bicep").read_text()
    runtime = re.findall(r"--runtime-version (\S+)", found)
    runtime += re.findall(r"name: 'python'\s+version: '([\d.]+)'", bicep)
    needed = SpecifierSet(metadata(wanted.name)["Requires-Python"])

    assert len(runtime) == 2
    assert [one for one in runtime if one not in needed] == []


def test_app_stands_alone() -> None:
    for path in APP.rglob("*.py"):
        assert not re.search(
            r"^(from|import) bridge\b", path.read_text(), re.MULTILINE
        ), path


def test_what_is_published_is_the_app() -> None:
    left_out = (APP / ".funcignore").read_text().split()
    needed = [
        "function_app.py",
        "host.json",
        "requirements.txt",
        *(str(path.relative_to(APP)) for path in (APP / "approver").rglob("*.py")),
    ]

    assert "local.settings.json" in left_out
    assert [
        name for name in needed for glob in left_out if PurePath(name).match(glob)
    ] == []
