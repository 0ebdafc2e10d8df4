"""Traces: one for each EventId, and one span for each event of it."""

import re

import pytest

from bridge.events.build import from_document, from_outcome, trace
from bridge.events.cloudevent import CloudEvent, hash32
from bridge.events.command_result import CommandResult, from_command
from bridge.sinks.webhook.presets.preset import render_binary, render_structured
from tests.support.builders import (
    EVENT_ID,
    document,
    event_context_of,
    imds_event,
    own_event,
)
from tests.support.example_events import outcome, published, transition
from tests.support.fakes import START

OF_W3C = re.compile(
    r"00-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<span>[0-9a-f]{16})-[0-9a-f]{2}"
)
ID = "0f4c0bd2b5b7d7ce43cf0e4ed2c7a3f1"


def parent_of(event: CloudEvent) -> re.Match[str]:
    found = OF_W3C.fullmatch(event.text("traceparent") or "")
    assert found, event.extensions
    return found


def result_of(cause: CloudEvent) -> CommandResult:
    return CommandResult(
        sink="drain",
        outcome="succeeded",
        action="prepare",
        cause=cause,
        exit_code=0,
        signal=None,
        timed_out=False,
        seconds=1.0,
        attempts=1,
        output=None,
        reason=None,
    )


def test_all_machines_and_steps_of_an_event_share_a_trace() -> None:
    step, other = published(transition()).event, published(transition("started")).event
    approval = from_outcome(event_context_of(), outcome(), START).event
    ran = from_command(event_context_of(), result_of(step), START).event
    shown = [parent_of(event) for event in (step, other, approval, ran)]

    assert {found["trace"] for found in shown} == {EVENT_ID.replace("-", "").lower()}
    assert len({found["span"] for found in shown}) == len(shown)
    assert parent_of(step)["span"] == step.id[:16]


def test_what_belongs_to_no_event_has_no_trace() -> None:
    found = [
        own_event(event_context_of(), "heartbeat"),
        from_document(
            event_context_of(),
            document(imds_event()),
            previous_incarnation=None,
            observed_at=START,
            repeats=0,
        ),
        from_outcome(event_context_of(), outcome(event_id=None, event=None), START),
    ]

    assert [one.event.text("traceparent") for one in found] == [None] * 3


@pytest.mark.parametrize("key", ["LIVE-MIGRATION-1", "0" * 32, "x" * 300])
def test_event_id_that_is_no_uuid_is_hashed(key: str) -> None:
    assert trace(key, ID) == {"traceparent": f"00-{hash32(key)}-{ID[:16]}-01"}


def test_both_modes_carry_it() -> None:
    event = published(transition()).event
    value = event.text("traceparent") or ""

    headers, _ = render_binary(event)
    _, body = render_structured(event)

    assert headers["ce-traceparent"] == value
    assert f'"traceparent":"{value}"'.encode() in body
