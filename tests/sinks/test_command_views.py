"""What people and services see of commands and of the traffic probe."""

import json
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from bridge.cli.rows import Gist, event_rows
from bridge.events.cloudevent import CloudEvent
from bridge.events.command_result import CommandResult, from_command
from bridge.outbox.questions import Observation, step_of
from bridge.sinks.base import Resources
from bridge.sinks.slack.blocks import render
from bridge.sinks.syslog.format import as_cef
from bridge.sinks.webhook.presets import teams
from bridge.sinks.webhook.presets.registry import PresetName
from tests.sinks.preset_ways import NAMES, sent
from tests.sinks.slack_world import World, slack_world, step
from tests.support.builders import EVENT_ID, event_context_of, imds_event, own_event
from tests.support.fakes import START
from tests.support.sink_fixtures import cloud_event

GOLDEN = Path(__file__).parents[1] / "data" / "presets-command"
OUTPUT = "cannot evict pod *db-0* & <others>"


def command_event(
    outcome: str = "failed", action: str = "prepare", at: datetime = START
) -> CloudEvent:
    """Return what is published of a command, as the outbox gives it to a sink."""
    has_failed = outcome == "failed"
    result = CommandResult(
        sink="drain",
        outcome=outcome,
        action=action,
        cause=step("scheduled" if action == "prepare" else "completed", EVENT, START),
        exit_code={"failed": 1, "succeeded": 0}.get(outcome),
        signal=None,
        timed_out=False,
        seconds=4.25,
        attempts=1,
        output=OUTPUT if has_failed else None,
        reason="exit code 1" if has_failed else None,
    )
    found = from_command(event_context_of(), result, at).event
    return CloudEvent.from_json(found.to_json())


def traffic(way: str, event_id: str | None = EVENT_ID) -> CloudEvent:
    reason = "scheduled" if way == "out" else None
    return own_event(
        event_context_of(),
        f"traffic-{way}",
        reason=reason,
        event_id=event_id,
        since="2026-03-02T12:00:00Z",
    ).event


EVENT = imds_event()


# -- webhooks ----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_body_of_a_failed_command_is_the_golden_one(name: PresetName) -> None:
    path = GOLDEN / f"{name}.json"

    assert sent(name, command_event()) == json.loads(path.read_text(encoding="utf-8"))


def test_there_is_a_golden_body_for_each_preset() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(NAMES)


def test_teams_card_calls_no_function_that_a_text_names() -> None:
    raw = imds_event(Description="{{{DATE(2026-01-01T00:00:00Z)}}}")
    _, body = teams.render(cloud_event(event=raw))

    assert "DATE" in body.decode()
    assert "{{" not in body.decode()


def test_teams_card_says_which_event_took_the_vm_out() -> None:
    body = teams.render(traffic("out"))[1].decode()

    (card,) = [one["content"] for one in json.loads(body)["attachments"]]
    lines = ["".join(run["text"] for run in line["inlines"]) for line in card["body"]]
    assert lines[:3] == [
        "This VM is out of rotation: WestNO_0",
        "Reason: scheduled",
        f"Event: {EVENT_ID}",
    ]


# -- Slack -------------------------------------------------------------------------


@pytest.fixture
async def world(resources: Resources) -> AsyncIterator[World]:
    async with slack_world(resources) as found:
        yield found


async def test_bot_shows_commands_in_the_message_of_the_event(world: World) -> None:
    at = [START + timedelta(seconds=10 * n) for n in range(4)]
    steps = [
        step("scheduled", EVENT, at[0]),
        command_event("succeeded", at=at[1]),
        step("completed", EVENT, at[2]),
        command_event("failed", "restore", at=at[3]),
    ]
    async with world.bot() as bot:
        await world.tell(bot, *steps)

    shown = str(world.message.content.blocks)
    assert "Freeze is over" in shown
    assert ":white_check_mark: *Command drain prepare succeeded*" in shown
    assert ":no_entry: *Command drain restore failed* (exit code 1)" in shown
    assert world.thread() == [
        "Freeze is scheduled",
        "Command drain prepare succeeded",
        "Freeze is over",
        "Command drain restore failed",
    ]
    last = list(world.channel.thread(world.message.ts))[-1]
    assert "&amp; &lt;others&gt;" in str(last.content.blocks)


@pytest.mark.parametrize(
    ("outcome", "sign"),
    [
        ("succeeded", ":white_check_mark:"),
        ("failed", ":no_entry:"),
        ("skipped", ":large_blue_circle:"),
    ],
)
def test_incoming_webhook_gets_a_message_for_each_outcome(
    outcome: str, sign: str
) -> None:
    message = render(command_event(outcome), START)

    assert message["text"] == f"Command drain prepare {outcome}"
    blocks = json.dumps(message["blocks"])
    assert f"{sign} *Command drain prepare {outcome}*" in blocks
    assert f"Freeze {EVENT_ID}" in blocks
    assert ("cannot evict" in blocks) == (outcome == "failed")


@pytest.mark.parametrize(
    ("way", "words"),
    [("out", "This VM is out of rotation"), ("in", "This VM is in rotation again")],
)
def test_slack_says_which_event_took_the_vm_out(way: str, words: str) -> None:
    message = render(traffic(way), START)

    assert str(message["text"]).startswith(words)
    assert f"*Event*\\n{EVENT_ID}" in json.dumps(message["blocks"])


# -- syslog ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "severity"), [("failed", "8"), ("succeeded", "3"), ("skipped", "3")]
)
def test_cef_names_the_command_and_its_outcome(outcome: str, severity: str) -> None:
    head = as_cef(command_event(outcome), version="1").split("|")

    assert head[4:7] == [f"command.{outcome}", f"Command {outcome}", severity]
    assert f" outcome={outcome} " in head[7]
    assert " sproc=drain " in head[7]
    assert f" cs1={EVENT_ID} " in head[7]


def test_cef_of_anything_else_names_no_command() -> None:
    assert "sproc=" not in as_cef(step("started", EVENT, START), version="1")


# -- the command line --------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "texts"),
    [
        (command_event(), ["Freeze", "command.failed", "WestNO_0,WestNO_1", EVENT_ID]),
        (traffic("out"), ["-", "bridge.traffic-out", "WestNO_0", EVENT_ID]),
        (traffic("in", None), ["-", "bridge.traffic-in", "WestNO_0", "-"]),
    ],
)
def test_row_says_what_happened_to_which_event(
    event: CloudEvent, texts: list[str]
) -> None:
    body = event.to_json()
    row, *_ = event_rows(Observation(number=1, body=body, deliveries=()))

    assert [column[0].text for column in row[1:5]] == texts
    assert Gist.of(body).type == event.type
    assert step_of(event.type) == texts[1]
