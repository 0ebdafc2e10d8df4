"""What infra/acceptance.sh compares, by records that differ in one thing."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from acceptance.compare import differences, is_far, main, show
from acceptance.records import Record, RecordError, facts, times

Change = Callable[[dict[str, Any]], None]
HEADERS = {"Content-Type": "application/json; charset=utf-8", "Server": "x"}


def document(event_id: str, vm: str, status: str, not_before: str) -> str:
    event = {
        "EventId": event_id,
        "EventStatus": status,
        "NotBefore": not_before,
        "Resources": [vm],
        "DurationInSeconds": -1,
    }
    return json.dumps({"DocumentIncarnation": 2, "Events": [event] if status else []})


def looks(event_id: str, vm: str, minute: str) -> list[dict[str, Any]]:
    """Return what the witness has seen of one reboot."""
    steps = (
        ("00", "Scheduled", f"Mon, 23 Nov 2026 10:{minute}:00 GMT"),
        ("10", "Started", ""),
        ("50", "", ""),
    )
    return [
        {
            "kind": "document",
            "at": f"2026-11-23T09:{minute}:{second}+00:00",
            "status": 200,
            "headers": dict(HEADERS),
            "body": document(event_id, vm, status, not_before),
        }
        for second, status, not_before in steps
    ]


def message(
    event_id: str, vm: str, minute: str, number: int, step: str
) -> dict[str, Any]:
    reporter = {"vmName": vm, "vmId": f"{vm}-id", "location": "westeurope"}
    at = f"2026-11-23T09:{minute}:08Z"
    return {
        "at": at,
        "sequence": number,
        "subject": f"sebridge.{step}.v1",
        "sessionId": event_id,
        "properties": {"cloudEvents_time": at, "cloudEvents_subject": event_id},
        "body": {
            "subject": event_id,
            "data": {"observedAt": at, "noticeSeconds": 7, "reporter": reporter},
        },
    }


def record(event_id: str, vm: str, minute: str) -> dict[str, Any]:
    """Return the records of one reboot; ids, names and times are those given."""
    steps = ("scheduledevent.scheduled", "startrequest.relayed")
    slack = {"text": f"Reboot is scheduled: {vm}", "at": f"2026-11-23T09:{minute}:00Z"}
    return {
        "witness": [
            {
                "kind": "probe",
                "name": "no Metadata header",
                "status": 400,
                "headers": dict(HEADERS),
                "body": '{"error": "Bad request"}',
            },
            *looks(event_id, vm, minute),
            {"kind": "slack", "headers": dict(HEADERS), "body": json.dumps(slack)},
        ],
        "messages": [
            message(event_id, vm, minute, number, step)
            for number, step in enumerate(steps)
        ],
        "stories": [
            {"by": "queue", "eventId": event_id, "answer": {"said": {"outcome": "ok"}}}
        ],
        "function": [
            {"name": "the event", "status": 202, "contentType": "a/b", "body": {}}
        ],
    }


AZURE = record("C7061BAC-AFDC-4513-B24B-AA5F13A16123", "web-1", "10")
SIMULATOR = record("4CAEA225-A741-474D-A72E-428C86FCD853", "WestNO_0", "20")


def loaded(parts: dict[str, Any]) -> Record:
    return Record(**{name: tuple(lines) for name, lines in parts.items()})


def changed(change: Change) -> Record:
    parts = deepcopy(AZURE)
    change(parts)
    return loaded(parts)


def events(parts: dict[str, Any], number: int, change: Change) -> None:
    """Change the event in a document of the witness."""
    line = parts["witness"][number]
    body = json.loads(line["body"])
    change(body["Events"][0])
    line["body"] = json.dumps(body)


def test_ids_names_and_times_of_a_run_are_no_differences() -> None:
    assert differences(facts(loaded(AZURE)), facts(loaded(SIMULATOR))) == []
    assert times(loaded(AZURE)) == times(loaded(SIMULATOR))
    assert times(loaded(AZURE)) == {
        "reboot 1: from Scheduled to NotBefore": 3600.0,
        "reboot 1: from StartRequest to Started": 2.0,
        "reboot 1: from Started to gone": 40.0,
    }


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (
            lambda r: events(
                r, 1, lambda e: e.update(NotBefore="2026-11-23T10:10:00Z")
            ),
            "reboot 1, the document when Scheduled: Events[0].NotBefore",
        ),
        (
            lambda r: events(r, 1, lambda e: e.update(DurationInSeconds="-1")),
            "reboot 1, the document when Scheduled: Events[0].DurationInSeconds",
        ),
        (
            lambda r: events(r, 2, lambda e: e.pop("NotBefore")),
            "reboot 1, the document when Started: Events[0].NotBefore",
        ),
        (
            lambda r: events(r, 1, lambda e: e.update(Resources=["web-2"])),
            "reboot 1, the document when Scheduled: Events[0].Resources[0]",
        ),
        (
            lambda r: events(r, 1, lambda e: e.update(New=1)),
            "reboot 1, the document when Scheduled: Events[0].New",
        ),
        (
            lambda r: r["witness"].pop(2),
            "reboot 1, the document: steps",
        ),
        (
            lambda r: r["witness"][0].update(status=401),
            "IMDS, no Metadata header: status",
        ),
        (
            lambda r: r["witness"][0]["headers"].pop("Server"),
            "IMDS, no Metadata header: headers",
        ),
        (
            lambda r: r["witness"][1]["headers"].update({"Content-Type": "text/html"}),
            "reboot 1, the document when Scheduled: Content-Type",
        ),
        (
            lambda r: r["witness"][0].update(body="Bad request"),
            "IMDS, no Metadata header",
        ),
        (
            lambda r: r["messages"][0].update(sessionId="another"),
            "reboot 1, Service Bus, scheduled: sessionId",
        ),
        (
            lambda r: r["messages"][0]["properties"].pop("cloudEvents_time"),
            "reboot 1, Service Bus, scheduled: properties.cloudEvents_time",
        ),
        (
            lambda r: r["messages"][0]["body"]["data"].update(noticeSeconds=None),
            "reboot 1, Service Bus, scheduled: body.data.noticeSeconds",
        ),
        (
            lambda r: r["messages"][0].update(sequence=9),
            "reboot 1, Service Bus: order",
        ),
        (
            lambda r: r["stories"][0]["answer"]["said"].update(outcome="denied"),
            "reboot 1, sebridge approve: said.outcome",
        ),
        (
            lambda r: r["function"][0].update(status=404),
            "the Functions app, the event: status",
        ),
        (
            lambda r: r["witness"][-1].update(body='{"text": "Reboot"}'),
            "Slack, message 1 (Reboot): text",
        ),
    ],
)
def test_one_difference_is_named_by_its_place(change: Change, place: str) -> None:
    found = differences(facts(changed(change)), facts(loaded(SIMULATOR)))

    assert place in [one.what for one in found]
    assert all(one.azure != one.simulator for one in found)


def test_case_of_an_event_id_is_a_difference() -> None:
    small = record("c7061bac-afdc-4513-b24b-aa5f13a16123", "web-1", "10")

    found = differences(facts(loaded(small)), facts(loaded(SIMULATOR)))

    assert '"event-id"' in {one.azure for one in found}
    assert {one.simulator for one in found} == {'"EVENT-ID"'}


@pytest.mark.parametrize(
    ("azure", "simulator", "expected"),
    [
        (900.0, 850.0, "near"),
        (30.0, 0.0, "near"),
        (61.0, 0.0, "far"),
        (600.0, 290.0, "far"),
        (None, 3.0, "far"),
        (None, None, "near"),
    ],
)
def test_durations_may_differ_by_a_minute_or_a_half(
    azure: float | None, simulator: float | None, expected: str
) -> None:
    assert is_far(azure, simulator) == (expected == "far")


def test_time_that_is_far_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    late = changed(
        lambda r: r["witness"][3].update(at="2026-11-23T09:30:00+00:00"),
    )

    assert show(late, loaded(SIMULATOR), Console(width=200))
    said = capsys.readouterr().out
    row = next(line for line in said.splitlines() if "from Started to gone" in line)
    assert row.split()[-5:] == ["1190", "s", "40", "s", "differs"]


def written(folder: Path, parts: dict[str, Any]) -> Path:
    folder.mkdir()
    for name in ("witness", "messages"):
        lines = [json.dumps(line) for line in parts[name]]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    for name in ("stories", "function"):
        (folder / f"{name}.json").write_text(json.dumps(parts[name]))
    return folder


def test_line_that_a_reboot_has_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = written(tmp_path / "azure", AZURE)
    with (folder / "witness.jsonl").open("a") as file:
        file.write('\n{"kind": "docu')

    assert Record.load(folder) == loaded(AZURE)


@pytest.mark.parametrize("name", ["witness.jsonl", "stories.json"])
def test_records_that_are_not_whole_are_named(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "azure", AZURE)
    (folder / name).unlink()

    with pytest.raises(RecordError, match=name):
        Record.load(folder)
    assert main([str(folder), str(folder)]) == 1
    assert name in capsys.readouterr().err


@pytest.mark.parametrize(("other", "code"), [(SIMULATOR, 0), (None, 3)])
def test_exit_code_says_whether_something_differs(
    tmp_path: Path, other: dict[str, Any] | None, code: int
) -> None:
    parts = deepcopy(SIMULATOR)
    parts["function"][0]["status"] = 500

    folders = (
        written(tmp_path / "azure", AZURE),
        written(tmp_path / "simulator", other or parts),
    )

    assert main([str(folder) for folder in folders]) == code
