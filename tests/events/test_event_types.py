"""A further EventType of Azure is one line of the table: all else follows it.

A copy of the package has the line, and a process of its own imports it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.events.vocabulary import DISRUPTIVE

ROOT = Path(__file__).parents[2]
WRITTEN = {".md", ".toml", ".yaml"}
LISTS = re.compile(r'event_types = (\[.*"Preempt".*?\])')
AFTER = "_EVENT_TYPES = (\n"
LINE = '    EventType("Evacuate", "the rack burns", ends_vm=True, cause="fire"),\n'
ASKED = """
import json
import tomllib
from datetime import UTC, datetime
from bridge.configuration import json_schema
from bridge.configuration.lint import misspelt_words
from bridge.configuration.starter import Wishes, first_text
from bridge.events.build import EventContext
from bridge.events.identity import Identity
from bridge.events.samples import marked_event
from bridge.hub.pages.listing import ListQuery
from bridge.sinks.email.message import describe
from bridge.sinks.slack import text
from bridge.telemetry.metrics import type_label
from bridge.traffic.config import TrafficConfig

context = EventContext(prefix="x", source="/x", identity=Identity(), version="1")
now = datetime(2026, 3, 2, tzinfo=UTC)
event = marked_event(context, "Evacuate", unique="1", now=now)
wrong = TrafficConfig(event_types=("Evacuatee",))
(hook,) = tomllib.loads(first_text(Wishes(command="/bin/true")))["sinks"]
print(json.dumps({
    "severity": event.extensions["severitytext"],
    "traffic": TrafficConfig().event_types,
    "hook": hook["when"]["event_types"],
    "mail": dict(describe(event).facts)["Impact"],
    "slack": dict(text.describe(event).facts)["Impact"],
    "metrics": type_label("Evacuate"),
    "page": dict(ListQuery.of({"type": "evacuate"}).asked)["type"],
    "misspelt": list(misspelt_words((), None, wrong)),
    "schemas": ["Evacuate" in json_schema.text(k) for k in ("config", "event")],
}))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what a bridge says that knows one type more."""
    folder = tmp_path_factory.mktemp("further")
    left_out = shutil.ignore_patterns("simulator", "demo", "__pycache__")
    shutil.copytree(ROOT / "bridge", folder / "bridge", ignore=left_out)
    table = folder / "bridge/events/vocabulary.py"
    text = table.read_text()
    assert text.count(AFTER) == 1
    table.write_text(text.replace(AFTER, AFTER + LINE))
    found = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", ASKED],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr.decode()
    shown: dict[str, Any] = json.loads(found.stdout)
    return shown


@pytest.mark.integration
@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("severity", "ERROR"),
        ("traffic", ["Evacuate", "Reboot", "Redeploy", "Preempt", "Terminate"]),
        ("hook", ["Evacuate", "Reboot", "Redeploy", "Preempt", "Terminate"]),
        ("mail", "the rack burns"),
        ("slack", "the rack burns"),
        ("metrics", "Evacuate"),
        ("page", "Evacuate"),
        ("schemas", [True, True]),
    ],
)
def test_further_event_type_is_one_line(
    said: dict[str, Any], where: str, wanted: object
) -> None:
    assert said[where] == wanted


@pytest.mark.integration
def test_word_that_resembles_a_further_type_is_a_warning(said: dict[str, Any]) -> None:
    (warning,) = said["misspelt"]

    assert "did you mean 'Evacuate'?" in warning


def test_no_rule_of_a_siem_lists_the_types_that_end_what_runs() -> None:
    files = [one for one in (ROOT / "infra" / "siem").rglob("*.*") if one.is_file()]
    lists = re.compile(r"Reboot\W+(?:or\W+)?Redeploy\W+(?:or\W+)?Terminate\W+\|")

    assert [one.name for one in files if lists.search(one.read_text())] == []


def test_examples_that_list_the_disruptive_types_list_all_of_them() -> None:
    pages = [ROOT / "README.md", *(ROOT / "config").rglob("*.*")]
    pages += (ROOT / "infra").rglob("*.*")
    texts = [page.read_text() for page in pages if page.suffix in WRITTEN]
    found = [json.loads(one) for text in texts for one in LISTS.findall(text)]

    assert len(found) >= 7
    assert [one for one in found if {*DISRUPTIVE} - {*one}] == []
