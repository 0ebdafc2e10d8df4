"""What the commands that a rule waits for have done, and what follows."""

from datetime import timedelta

import pytest

from bridge.approvals.evidence import (
    Evidence,
    Lack,
    SuccessCheck,
    names_others,
    reason_to_hold,
)
from bridge.approvals.rules import Rule, judge
from bridge.events.document import ScheduledEvent
from bridge.events.identity import Identity
from bridge.events.watch import Moment
from bridge.foundation.values import Duration
from bridge.outbox.records import CommandStanding, Success
from tests.support.builders import EVENT_ID, ME, imds_event
from tests.support.fakes import START

DONE, FAILED = Evidence(lack=None), Evidence(lack=Lack.FAILED)
WAITS, NOT_RUN = Evidence(lack=Lack.WAITS), Evidence(lack=Lack.NOT_RUN)
NOW = Moment(at=START, monotonic=1000.0)


def event(**fields: object) -> ScheduledEvent:
    raw = imds_event(EVENT_ID, **{"Resources": ["WestNO_0"], **fields})
    return ScheduledEvent(event_id=EVENT_ID, raw=raw)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"a": DONE, "b": DONE}, None),
        ({"a": DONE, "b": WAITS}, "CommandWaits b"),
        ({"a": WAITS, "b": FAILED}, "CommandFailed b"),
        ({"a": NOT_RUN, "b": FAILED}, "CommandFailed b"),
        ({"a": WAITS, "b": NOT_RUN}, "CommandNotRun b"),
        ({"a": WAITS, "b": WAITS}, "CommandWaits a"),
        ({"b": DONE}, "CommandNotRun a"),
        ({}, "CommandNotRun a"),
    ],
)
def test_gravest_lack_is_the_reason(
    found: dict[str, Evidence], reason: str | None
) -> None:
    assert reason_to_hold(("a", "b"), found) == reason


@pytest.mark.parametrize(
    ("resources", "me", "is_so"),
    [
        (["WestNO_0"], ME, False),
        (["_WESTNO_0", "westno_0"], ME, False),
        (["WestNO_0", "WestNO_1"], ME, True),
        (["WestNO_0"], Identity(), True),  # who does not know his name frees nobody
    ],
)
def test_others_are_all_but_this_machine(
    resources: list[str], me: Identity, *, is_so: bool
) -> None:
    assert names_others(event(Resources=resources), me) is is_so


def test_delay_runs_from_the_last_of_several_successes() -> None:
    rule = Rule(action="auto-approve", after=("a", "b"), delay=Duration(60))
    found = {"a": Evidence(lack=None, age=50.0), "b": Evidence(lack=None, age=20.0)}

    ruling = judge((rule,), event(), age=9000.0, now=START, me=ME, found=found)

    assert (ruling.hold, ruling.left) == (None, 40.0)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"data": 1}', b"\xff"])
def test_success_that_cannot_be_read_is_none(content: bytes) -> None:
    success = Success(
        sink="drain",
        key=EVENT_ID,
        appearance=0,
        content=content,
        at=(START - timedelta(seconds=9)).timestamp(),
    )
    check = SuccessCheck()
    standings = {"drain": CommandStanding(success=success, last="delivered")}

    assert check.evidences(event(), standings, NOW) == {"drain": NOT_RUN}
