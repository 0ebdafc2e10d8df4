"""The built-in scenarios, and how scenario files are read."""

import json
from pathlib import Path

import pytest

from bridge.simulator.errors import ScenarioError
from bridge.simulator.imds.document import Status
from bridge.simulator.imds.scenario import load, names, parse_scenario

LIVES = {
    # name: (type, source, duration, minutes Scheduled, minutes Started)
    "live-migration": ("Freeze", "Platform", 5, 15, 5),
    "user-reboot": ("Reboot", "User", -1, 15, 10),
    "host-agent-maintenance": ("Freeze", "Platform", 9, 15, 10),
    "redeploy-after-host-failure": ("Redeploy", "Platform", -1, 15, 10),
    "user-redeploy": ("Redeploy", "User", -1, 15, 10),
    "cancelled-maintenance": ("Freeze", "Platform", 9, 8, None),
    "spot-eviction": ("Preempt", "Platform", -1, 0.5, None),
    "host-failure": ("Reboot", "Platform", -1, 0, 10),
}
DOCUMENTS = ["documents-live-migration", "documents-user-reboot"]


def test_all_are_shipped() -> None:
    assert sorted(names()) == sorted([*LIVES, *DOCUMENTS])


@pytest.mark.parametrize("name", LIVES)
def test_life_has_the_typical_timings(name: str) -> None:
    event_type, source, duration, scheduled, started = LIVES[name]

    (life,) = load(name).lives

    assert (life.event_type, life.source) == (event_type, source)
    assert life.duration_seconds == duration
    cancelled = life.cancelled_after_seconds
    notice = life.notice_seconds if cancelled is None else cancelled
    assert notice == scheduled * 60
    assert life.started_seconds == (None if started is None else started * 60)
    assert (life.status is Status.STARTED) == (scheduled == 0)


@pytest.mark.parametrize("name", [*LIVES, *DOCUMENTS])
def test_scenario_is_described_and_names_a_vm(name: str) -> None:
    scenario = load(name)

    assert scenario.description.endswith(".")
    assert scenario.first_resource in {"WestNO_0", "flatcar-vm1"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_shipped_documents_are_of_the_service(name: str) -> None:
    documents = [json.loads(json.dumps(each)) for each in load(name).documents]

    incarnations = [each["DocumentIncarnation"] for each in documents]
    assert incarnations == sorted(set(incarnations))
    assert documents[0]["Events"] == documents[-1]["Events"] == []


def test_file_of_documents_is_read_verbatim(tmp_path: Path) -> None:
    documents = [
        {"DocumentIncarnation": 1, "Events": [], "Odd": {"b": 1, "a": 2}},
        {"DocumentIncarnation": "2", "Events": [{"EventId": "x", "New": None}]},
    ]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(documents))

    scenario = load(str(file))

    assert list(scenario.documents) == documents
    assert scenario.first_resource is None
    assert scenario.expected == ()


def test_file_of_lives_is_read_like_a_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    event = {"eventType": "Reboot", "resources": ["vm-1"], "noticeSeconds": 60}
    file.write_text(json.dumps({"events": [event]}))

    (life,) = load(str(file)).lives

    assert (life.resources, life.notice_seconds) == (("vm-1",), 60)


def test_unknown_scenario_names_the_valid_ones(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        load(str(tmp_path / "nothing"))

    assert all(name in str(caught.value) for name in LIVES)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"", "is no JSON"),
        (b'[{"DocumentIncarnation": 1,\n "Events": []},]', "line 2 column"),
        (b"\xff", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"5", "Expected `object`"),
        (b"[]", "length >= 1"),
        (b"[[]]", "$[0]"),
        (b'[{"Events": []}]', "`DocumentIncarnation` - at `$[0]`"),
        (b'[{"DocumentIncarnation": 1}]', "`Events` - at `$[0]`"),
        (b'[{"DocumentIncarnation": 1, "Events": {}}]', "at `$[0].Events`"),
        (
            b'[{"DocumentIncarnation": 1, "Events": [{"EventId": 5}]}]',
            "at `$[0].Events[0].EventId`",
        ),
        (b'{"events": []}', "length >= 1 - at `$.events`"),
        (b'{"events": [{"eventType": "Freeze"}]}', "`resources` - at `$.events[0]`"),
        (
            b'{"events": [{"eventType": "A", "resources": ["v"], "typo": 1}]}',
            "unknown field `typo` - at `$.events[0]`",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_faulty_file_is_reported_with_its_place(body: bytes, fault: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(body, "mine.json")

    assert str(caught.value).startswith("mine.json is no ")
    assert fault in str(caught.value)
