"""A rule with ``after`` approves only after its command has succeeded.

Outbox, poller, relay and auto_approver are real; IMDS, the command and time are fake.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bridge.approvals.message_flow import Handling, key_of
from bridge.approvals.rules import Rule, content_of
from bridge.events.cloudevent import hash32
from bridge.events.document import ScheduledEvent
from bridge.events.identity import Identity
from bridge.events.look import Withheld
from bridge.events.routing import When
from bridge.foundation.values import Duration
from bridge.health.server import running_status
from bridge.health.status import StatusSource
from bridge.health.status_view import overview
from bridge.imds.config import ImdsConfig
from bridge.outbox.questions import Selection
from bridge.servicebus.decode import Settlement
from bridge.sinks.command.process import Exit
from bridge.sinks.slack.text import describe
from bridge.traffic.config import TrafficConfig
from bridge.traffic.gate import Gate
from tests.approvals.after_world import (
    DRAIN,
    PATIENCE,
    Life,
    Stage,
    after_rule,
    reboot,
)
from tests.approvals.approval_world import message
from tests.support.book import Book
from tests.support.builders import (
    EVENT_ID,
    ME,
    event_context_of,
    imds_event,
    not_before,
    started,
)
from tests.support.disks import Disk
from tests.support.fakes import settled

WAITS, FAILED = "CommandWaits drain", "CommandFailed drain"
NOT_RUN, OTHERS = "CommandNotRun drain", "OtherResources"
BEGUN = started(EventType="Reboot", Resources=["WestNO_0"])


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "state.db")


async def is_held(life: Life, reason: str) -> None:
    """Wait until the event is held for a reason; check that nothing else happens."""
    await life.until(
        lambda: [h.reason for h in life.pilot.withheld.values()] == [reason]
    )
    posts = len(life.imds.posts)
    await life.passes(5)
    assert len(life.imds.posts) == posts


async def is_approved(life: Life, posts: int = 1) -> None:
    await life.until(lambda: len(life.imds.posts) >= posts)
    await life.passes(5)
    assert len(life.imds.posts) == posts
    assert life.imds.done[-1] == [DRAIN]


# -- approvals -------------------------------------------------------------------------


async def test_event_is_approved_once_the_command_has_succeeded(stage: Stage) -> None:
    async with stage.life() as life:
        await life.sees(reboot())
        await life.ran()
        await is_held(life, WAITS)

        stage.runner.let.set()
        await is_approved(life)

        assert await life.outcomes() == [("withheld", WAITS), ("relayed", None)]
        assert len(stage.runner.ran) == 1
        assert life.pilot.withheld == {}


async def test_success_counts_only_when_it_is_on_the_disk(disk: Disk) -> None:
    """After a kill, a success in memory would leave no trace of the command."""
    stage = Stage(disk.state)
    async with stage.life(may_degrade=True) as life:
        await life.sees(reboot())
        await life.ran()
        disk.fill()
        stage.runner.let.set()
        await is_held(life, WAITS)
        assert life.file.database.is_degraded
        assert (await life.file.deliveries.tallies())[DRAIN].pending == 0
        assert not stage.imds.posts

        disk.clear()
        await life.file.database.heal()
        await is_approved(life)

        assert await life.outcomes() == [("withheld", WAITS), ("relayed", None)]
        assert len(stage.runner.ran) == 1


async def test_success_on_the_disk_counts_while_the_disk_fails(disk: Disk) -> None:
    stage = Stage(disk.state, rules=(after_rule(delay=20),))
    async with stage.life(may_degrade=True) as life:
        await life.sees(reboot())
        await life.ran()
        stage.runner.let.set()
        await life.until(lambda: bool(stage.imds.successes()))
        disk.fill()
        await life.sees(reboot(Description="more"))

        await is_approved(life)

        assert life.file.database.is_degraded


async def test_success_of_a_command_wakes_the_rule_at_once(
    stage: Stage,
) -> None:
    """The rule does not wait for the next look: the request is made at once."""
    async with stage.life() as life:
        await life.sees(reboot())
        await life.ran()
        await is_held(life, WAITS)

        stage.runner.let.set()
        async with asyncio.timeout(PATIENCE):
            while not stage.imds.posts:
                await settled(life.file)

        assert stage.imds.done == [[DRAIN]]


async def test_delay_after_a_command_ends_on_time(stage: Stage) -> None:
    stage.rules = (after_rule(delay=3.1),)
    async with stage.life() as life:
        await life.sees(reboot())
        await life.ran()
        stage.runner.let.set()
        await settled(life.file)

        await stage.clock.advance(3.0)
        await settled(life.file)
        assert not stage.imds.posts
        await stage.clock.advance(0.11)
        async with asyncio.timeout(PATIENCE):
            while not stage.imds.posts:
                await settled(life.file)


WRONG = pytest.mark.parametrize("jump", [7200.0, -3600.0, 60.0, -60.0])


@pytest.mark.slow
@WRONG
async def test_delay_after_a_command_goes_by_imds_over_a_restart(
    stage: Stage, jump: float
) -> None:
    """The machine's clock is wrong after the restart, and IMDS's is not."""
    stage = Stage(stage.path, rules=(after_rule(delay=300),), follows_imds=True)
    async with stage.life() as life:
        await life.sees(reboot())
        await life.ran()
        stage.runner.let.set()
        await life.passes(10)
    stage.clock.jump(jump)
    stage.clock.pass_by(20)
    async with stage.life() as life:
        await life.passes(265)
        assert not stage.imds.posts
        await life.passes(15)
        assert stage.imds.done == [[DRAIN]]


@pytest.mark.slow
@WRONG
async def test_delay_of_a_rule_goes_by_imds_over_a_restart(
    stage: Stage, jump: float
) -> None:
    rule = Rule(name="r", action="auto-approve", delay=Duration(300))
    stage = Stage(stage.path, rules=(rule,), follows_imds=True)
    async with stage.life() as life:
        await life.sees(reboot())
        await life.passes(10)
    stage.clock.jump(jump)
    stage.clock.pass_by(20)
    async with stage.life() as life:
        await life.passes(265)
        assert not stage.imds.posts
        await life.passes(15)
        assert stage.imds.posts == [EVENT_ID]


@pytest.mark.slow
@WRONG
async def test_command_begins_by_the_time_of_imds(stage: Stage, jump: float) -> None:
    """NotBefore is in 15 minutes, and the lead is 10."""
    stage = Stage(stage.path, options={"lead": 600.0}, follows_imds=True)
    stage.clock.jump(jump)
    async with stage.life() as life:
        await life.sees(reboot(NotBefore=not_before(900.0)))
        await life.passes(280)
        assert not stage.runner.ran
        await life.passes(20)
        assert len(stage.runner.ran) == 1


async def test_rule_without_an_event_waits_for_the_next_document(
    stage: Stage,
) -> None:
    """Rules do not wake up an idle forwarder every second."""
    async with stage.life() as life:
        await life.sees()
        await life.passes(2)
        waits = len(stage.clock.waits)
        await life.passes(20)

        assert len(stage.clock.waits) - waits == 20


async def test_end_of_a_delay_or_a_command_does_not_wait_for_the_next_look(
    stage: Stage,
) -> None:
    stage.rules = (after_rule(delay=3),)
    stage.imds.config = ImdsConfig(poll_interval=Duration(60))
    async with stage.life() as life:
        await life.sees(reboot())
        await life.ran()
        await is_held(life, WAITS)

        stage.runner.let.set()
        before = stage.clock.monotonic()
        await life.posted(1)

        assert 3 <= stage.clock.monotonic() - before <= 3.75


async def test_failed_command_is_no_approval(stage: Stage) -> None:
    stage.runner.ends = [Exit(code=1)]
    async with stage.life() as life:
        await life.sees(reboot())
        await is_held(life, FAILED)
        await life.passes(60)

        assert not stage.imds.posts
        assert (await life.outcomes())[-1] == ("withheld", FAILED)


async def test_manual_retry_of_a_command_leads_to_the_approval(stage: Stage) -> None:
    stage.runner.ends = [Exit(code=1), Exit(code=0)]
    async with stage.life() as life:
        await life.sees(reboot())
        await is_held(life, FAILED)
        await Book(life.outbox).retry(
            Selection(sink=DRAIN, states=("dead",)),
            now=stage.clock.now().timestamp(),
            force=False,
        )
        life.relay.resume()

        await is_approved(life)


async def test_discarded_step_is_no_success(
    stage: Stage,
) -> None:
    stage.options = {"lead": 60.0}
    async with stage.life() as life:
        await life.sees(reboot())
        await is_held(life, WAITS)
        await Book(life.outbox).discard(Selection(sink=DRAIN), now=1.0)

        await is_held(life, NOT_RUN)
        assert not stage.runner.ran


async def test_skipped_step_is_no_success(stage: Stage) -> None:
    """The sink's filter excludes the event, the rule's does not: no command is run."""
    stage.options = {"when": When(resources=("other-*",))}
    async with stage.life() as life:
        await life.sees(reboot())
        await is_held(life, NOT_RUN)
        assert not stage.runner.ran


async def test_hold_ends_when_the_event_has_started(stage: Stage) -> None:
    async with stage.life() as life:
        await life.sees(reboot())
        await is_held(life, WAITS)
        await life.sees(BEGUN)
        await life.until(lambda: not life.pilot.withheld)

        assert not stage.imds.posts
        assert [kind for kind, _ in await life.outcomes()] == ["withheld"]


# -- events of this VM and of others ---------------------------------------------------


async def test_event_that_also_names_other_vms_is_withheld(stage: Stage) -> None:
    stage.runner.let.set()
    async with stage.life() as life:
        await life.sees(reboot(Resources=["WestNO_0", "WestNO_1"]))
        await is_held(life, OTHERS)

        assert stage.imds.successes() == [DRAIN]
        assert await life.outcomes() == [("withheld", OTHERS)]


async def test_others_may_be_ignored(stage: Stage) -> None:
    stage.rules = (after_rule(others="ignore"),)
    stage.runner.let.set()
    async with stage.life() as life:
        await life.sees(reboot(Resources=["WestNO_0", "WestNO_1"]))
        await is_approved(life)


async def test_own_name_is_recognised_in_azures_spelling(stage: Stage) -> None:
    """A name in Resources may have a leading underscore; case does not matter."""
    stage.runner.let.set()
    async with stage.life() as life:
        await life.sees(reboot(Resources=["_westno_0"]))
        await is_approved(life)


async def test_rule_never_fits_an_event_of_another_machine(stage: Stage) -> None:
    anything = Rule(name="anything", action="auto-approve")
    stage.rules = (after_rule(), anything)
    async with stage.life() as life:
        await life.sees(reboot(Resources=["WestNO_1"]))
        await life.until(lambda: life.has("relayed"))

        (withheld,) = await life.published()
        request = withheld.data["request"]
        assert isinstance(request, dict)
        assert request["approvedBy"] == "rule:anything"


async def test_later_rules_are_not_tried_while_a_rule_holds(stage: Stage) -> None:
    stage.rules = (after_rule(), Rule(name="anything", action="auto-approve"))
    async with stage.life() as life:
        await life.sees(reboot())
        await is_held(life, WAITS)
        assert not stage.imds.posts


async def test_event_is_held_while_the_own_name_is_unknown(stage: Stage) -> None:
    stage.me = Identity(vm_id=ME.vm_id)
    stage.rules = (after_rule(), Rule(name="anything", action="auto-approve"))
    stage.runner.let.set()
    async with stage.life() as life:
        await life.sees(reboot())
        await is_held(life, OTHERS)
        assert not stage.runner.ran


# -- published outcomes ----------------------------------------------------------------


async def test_withheld_is_published_once_for_each_content_and_reason(
    stage: Stage,
) -> None:
    other = reboot(Description="in other words")
    async with stage.life() as life:
        await life.sees(reboot())
        await is_held(life, WAITS)
    async with stage.life() as life:  # which does not publish it again
        await is_held(life, WAITS)
        await life.sees(other)
        await is_held(life, WAITS)
        await life.sees(reboot())
        await is_held(life, WAITS)

        published = await life.published()
        contents = [
            content_of(ScheduledEvent(event_id=EVENT_ID, raw=raw))
            for raw in (reboot(), other)
        ]
        assert [event.id for event in published] == [
            hash32(["", content, None, EVENT_ID, "withheld", WAITS])
            for content in contents
        ]


async def test_withheld_outcome_names_rule_and_reason(stage: Stage) -> None:
    async with stage.life() as life:
        await life.sees(reboot())
        await is_held(life, WAITS)

        (event,) = await life.published()
        assert event.type == "sebridge.startrequest.withheld.v1"
        assert event.extensions["severitytext"] == "WARN"
        assert event.data["event"] == reboot()
        assert event.data["imdsStatus"] is None
        request = event.data["request"]
        assert isinstance(request, dict)
        assert request["approvedBy"] == "rule:drained"
        assert life.counts == ["withheld"]
        shown = describe(event)
        assert shown.headline == "Approval not given yet (Reboot)"
        assert dict(shown.facts)["Held by"] == "rule:drained"
        assert dict(shown.facts)["Reason"] == WAITS


async def test_status_shows_why_an_event_is_held(stage: Stage) -> None:
    async with stage.life() as life:
        await life.sees(reboot())
        await is_held(life, WAITS)

        status_source = StatusSource(clock=stage.clock, metrics=life.poller.metrics)
        status_source.outbox, status_source.poller = life.outbox, life.poller
        status_source.event_context = event_context_of()
        status = await running_status(status_source)
        assert status.withheld == [Withheld(EVENT_ID, "drained", WAITS)]
        events, *_, approvals = overview(status, stage.clock.now()).tables
        assert [cell.mood for cell in approvals.rows[0]][1] == "warning"
        assert f"Scheduled, withheld by drained: {WAITS}" in [
            cell.text for cell in events.rows[0]
        ]


# -- approval messages -----------------------------------------------------------------


async def test_approval_message_is_relayed_while_the_command_runs(
    stage: Stage,
) -> None:
    async with stage.life() as life:
        await life.sees(reboot())
        await life.ran()
        came = stage.clock.monotonic()
        context = life.context()
        asked = message(EVENT_ID)
        handling = Handling(context, asked, key_of(context, asked))
        running = asyncio.create_task(handling.run(asyncio.Event()))
        await life.until(running.done)

        assert running.result() == Settlement("complete")
        assert stage.imds.posts == [EVENT_ID]
        assert stage.imds.done == [[]]
        assert stage.clock.monotonic() - came < 5
        assert stage.runner.running == 1


# -- the delay -------------------------------------------------------------------------


async def test_delay_is_counted_from_the_success(stage: Stage) -> None:
    stage.rules = (after_rule(delay=60),)
    async with stage.life() as life:
        await life.sees(reboot())
        await life.ran()
        await life.passes(100)
        stage.runner.let.set()
        await life.until(lambda: stage.imds.successes() == [DRAIN])
        done = stage.clock.monotonic()
        await life.passes(55)
        assert not stage.imds.posts

        await is_approved(life)
        assert stage.clock.monotonic() - done == pytest.approx(65, abs=5)


async def test_delay_continues_over_a_restart_and_pruning(stage: Stage) -> None:
    """Pruning renews the row of a success, but not the age of the success."""
    stage.rules = (after_rule(delay=60),)
    stage.runner.let.set()
    async with stage.life() as life:
        await life.sees(reboot())
        await life.until(lambda: stage.imds.successes() == [DRAIN])
        await life.passes(30)
    stage.clock.pass_by(20)
    async with stage.life() as life:
        now = stage.clock.now().timestamp()
        alive = frozenset({EVENT_ID})
        await life.outbox.pruning.prune(before=now - 10, now=now, alive=alive)
        await life.passes(5)
        assert not stage.imds.posts
        began = stage.clock.monotonic()
        await is_approved(life)
        assert stage.clock.monotonic() - began < 15


async def test_clock_that_is_set_forward_shortens_no_delay(stage: Stage) -> None:
    stage.rules, stage.options = (after_rule(delay=60),), {"lead": 9000.0}
    stage.runner.let.set()
    async with stage.life() as life:
        await life.sees(reboot(NotBefore=not_before(9000)))
        await life.until(lambda: stage.imds.successes() == [DRAIN])
        await life.passes(5)
        stage.clock.jump(3600)
        await life.passes(45)
        assert not stage.imds.posts

        await is_approved(life)


async def test_clock_set_forward_shortens_no_delay_after_a_restart(
    stage: Stage,
) -> None:
    """Housekeeping has noticed the jump, and corrected the stored times."""
    stage.rules, stage.options = (after_rule(delay=60),), {"lead": 9000.0}
    stage.runner.let.set()
    async with stage.life() as life:
        await life.sees(reboot(NotBefore=not_before(9000)))
        await life.until(lambda: stage.imds.successes() == [DRAIN])
        stage.clock.jump(3600)
        now = stage.clock.now().timestamp()
        await life.outbox.pruning.follow_clock(by=3600, now=now)
    async with stage.life() as life:
        await life.passes(45)
        assert not stage.imds.posts

        await is_approved(life)


async def test_success_of_a_clock_that_was_ahead_delays_no_longer_for_that(
    stage: Stage,
) -> None:
    stage.rules, stage.options = (after_rule(delay=60),), {"lead": 9000.0}
    stage.runner.let.set()
    async with stage.life() as life:
        await life.sees(reboot(NotBefore=not_before(9000)))
        await life.until(lambda: stage.imds.successes() == [DRAIN])
    stage.clock.jump(-3600)
    async with stage.life() as life:
        now = stage.clock.now().timestamp()
        await life.outbox.pruning.prune(before=0, now=now, alive=frozenset({EVENT_ID}))
        await life.passes(50)
        assert not stage.imds.posts
        await is_approved(life)
        assert stage.clock.now().timestamp() - now < 120


# -- voided successes ------------------------------------------------------------------

VOIDING = {
    "another-type": {"EventType": "Redeploy"},
    "longer": {"DurationInSeconds": 60},
    "not-known-any-more": {"DurationInSeconds": -1},
    "one-more-resource": {"Resources": ["WestNO_0", "WestNO_1"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", VOIDING.values(), ids=VOIDING.keys())
async def test_success_does_not_count_for_another_event(
    stage: Stage, change: dict[str, object]
) -> None:
    stage.rules = (after_rule(delay=30, others="ignore"),)
    stage.runner.ends = [Exit(code=0)]
    async with stage.life() as life:
        await life.sees(reboot())
        await life.until(lambda: stage.imds.successes() == [DRAIN])
        await life.sees(reboot(EVENT_ID, **change))
        await life.ran(2)
        await is_held(life, WAITS)
        await life.passes(60)
        assert not stage.imds.posts

        stage.runner.let.set()
        await is_approved(life)


@pytest.mark.parametrize("change", VOIDING.values(), ids=VOIDING.keys())
async def test_success_does_not_count_if_the_sink_misses_the_change(
    stage: Stage, change: dict[str, object]
) -> None:
    stage.options = {"when": When(transitions=("scheduled",))}
    stage.rules = (after_rule(delay=30, others="ignore"),)
    stage.runner.let.set()
    async with stage.life() as life:
        await life.sees(reboot())
        await life.until(lambda: stage.imds.successes() == [DRAIN])
        await life.sees(reboot(EVENT_ID, **change))
        await is_held(life, NOT_RUN)
        await life.passes(60)

        assert not stage.imds.posts


LESSER = {
    "words": {"Description": "in other words"},
    "shorter": {"DurationInSeconds": 1},
    "later": {"NotBefore": not_before(1800)},
}


@pytest.mark.parametrize("change", LESSER.values(), ids=LESSER.keys())
async def test_smaller_change_keeps_the_success_without_another_run(
    stage: Stage, change: dict[str, object]
) -> None:
    stage.rules = (after_rule(delay=30),)
    stage.runner.ends = [Exit(code=0)]
    async with stage.life() as life:
        await life.sees(reboot())
        await life.until(lambda: stage.imds.successes() == [DRAIN])
        done = stage.clock.monotonic()
        await life.passes(15)
        await life.sees(reboot(EVENT_ID, **change))
        await is_approved(life)

        assert stage.clock.monotonic() - done < 45  # nor does the delay begin again
        assert len(stage.runner.ran) == 1


async def test_success_of_an_event_that_was_gone_does_not_count(stage: Stage) -> None:
    stage.rules = (after_rule(delay=30),)
    stage.runner.ends = [Exit(code=0), Exit(code=0)]  # the second run is the restore
    async with stage.life() as life:
        await life.sees(reboot())
        await life.until(lambda: stage.imds.successes() == [DRAIN])
        await life.sees()
        await life.ran(2)
        await life.sees(reboot())
        await life.ran(3)
        await is_held(life, WAITS)
        await life.passes(60)
        assert not stage.imds.posts

        stage.runner.let.set()
        await is_approved(life)


async def test_failed_run_for_an_undone_change_voids_the_success(
    stage: Stage,
) -> None:
    """The failed run may have left anything behind: the command is run again."""
    stage.rules = (after_rule(delay=30),)
    stage.runner.ends = [Exit(code=0), Exit(code=1)]
    async with stage.life() as life:
        await life.sees(reboot())
        await life.until(lambda: stage.imds.successes() == [DRAIN])
        await life.sees(reboot(DurationInSeconds=60))
        await is_held(life, FAILED)
        await life.sees(reboot())
        await life.passes(60)
        assert not stage.imds.posts
        assert not stage.imds.successes()

        stage.runner.let.set()
        await is_approved(life)
        assert len(stage.runner.ran) == 3


async def test_restore_voids_the_success(
    stage: Stage,
) -> None:
    """A change excludes the event from the sink, the next one includes it again."""
    stage.options = {"when": When(event_sources=("Platform",))}
    stage.rules = (after_rule(delay=30),)
    stage.runner.ends = [Exit(code=0)]
    async with stage.life() as life:
        await life.sees(reboot())
        await life.until(lambda: stage.imds.successes() == [DRAIN])
        await life.sees(reboot(EventSource="User"))
        await life.ran(2)
        assert stage.runner.actions[-1] == ("restore", "updated")
        await life.sees(reboot())
        await life.passes(60)
        assert not stage.imds.posts
        assert not stage.imds.successes()

        stage.runner.let.set()
        await is_approved(life)
        assert stage.runner.actions[-1] == ("prepare", "updated")


async def test_success_does_not_count_while_a_restore_is_pending(
    stage: Stage,
) -> None:
    """The restore is pending, because the sink has a ``max_rate``."""
    stage.options = {"when": When(event_sources=("Platform",)), "max_rate": 0.01}
    stage.rules = (after_rule(delay=5),)
    stage.runner.ends = [Exit(code=0), Exit(code=75), Exit(code=1)]
    async with stage.life() as life:
        await life.sees(reboot())
        await life.until(lambda: stage.imds.successes() == [DRAIN])
        await life.sees(reboot(EventSource="User"))
        await life.passes(60)

        assert not stage.imds.posts
        assert len(stage.runner.ran) == 1


# -- a POST in doubt -------------------------------------------------------------------


async def test_post_in_doubt_is_not_repeated_without_a_success(stage: Stage) -> None:
    """The POST was based on a success, which a change has voided since."""
    stage.runner.ends = [Exit(code=0)]
    stage.imds.hangs = True
    async with stage.life() as life:
        await life.sees(reboot())
        await life.until(lambda: len(stage.imds.posts) == 1)
    stage.imds.hangs = False
    stage.imds.shows()
    async with stage.life() as life:
        await life.ran(2)  # the restore, which is slow
        await life.sees(reboot())
        await life.passes(30)
        assert len(stage.imds.posts) == 1


# -- the probe -------------------------------------------------------------------------


@dataclass
class Gated:
    """A stage whose VM has a traffic probe."""

    stage: Stage
    gate: Gate = field(init=False)
    seen: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = Gate(
            config=TrafficConfig(),
            clock=self.stage.clock,
            blind_after=30.0,
            watch=lambda: self.seen[-1].poller.watch,
            me=lambda: ME,
        )
        self.stage.rotation = self.gate

    @property
    def is_out(self) -> bool:
        return self.gate.look().is_out


FAR = {"NotBefore": not_before(9000)}


async def test_probe_says_out_after_the_command_and_the_post_waits(
    stage: Stage,
) -> None:
    stage.options = {"lead": 9000.0}
    gated = Gated(stage)
    async with stage.life() as life:
        gated.seen.append(life)
        await life.sees(reboot(**FAR))
        await life.ran()
        await is_held(life, WAITS)
        assert not gated.is_out

        stage.runner.let.set()
        await life.until(lambda: gated.is_out)
        out = stage.clock.monotonic()
        assert not stage.imds.posts
        await is_approved(life)
        assert stage.clock.monotonic() - out >= 15  # settle


async def test_event_that_changes_during_settle_is_not_approved(
    stage: Stage,
) -> None:
    stage.options = {"lead": 9000.0}
    stage.runner.ends = [Exit(code=0)]
    gated = Gated(stage)
    async with stage.life() as life:
        gated.seen.append(life)
        await life.sees(reboot(**FAR))
        await life.until(lambda: gated.is_out)
        await life.sees(reboot(**FAR, DurationInSeconds=60))
        await is_held(life, WAITS)
        await life.passes(60)
        assert not stage.imds.posts
        assert not gated.is_out  # resume_after is over

        stage.runner.let.set()
        await is_approved(life)
        assert stage.runner.actions == [
            ("prepare", "scheduled"),
            ("prepare", "updated"),
        ]


async def test_with_short_notice_command_and_settle_overlap(stage: Stage) -> None:
    """With 30 s of notice, the VM is out at once: the time of the command counts."""
    gated = Gated(stage)
    async with stage.life() as life:
        gated.seen.append(life)
        await life.sees(reboot(NotBefore=not_before(30, stage.clock.now())))
        assert gated.is_out
        await life.ran()
        await life.passes(5)
        stage.runner.let.set()
        await is_approved(life)

        event = ScheduledEvent(event_id=EVENT_ID, raw=reboot())
        assert event.not_before is not None
        assert stage.clock.now() < event.not_before


def test_rule_of_this_file_is_auto_approve_with_after() -> None:
    """With another default action, every test that expects no POST would pass."""
    rule = after_rule()
    assert (rule.action, rule.after, rule.others) == (
        "auto-approve",
        (DRAIN,),
        "withhold",
    )
    assert replace(ME).is_named_in(["WestNO_0"])
    assert imds_event()["Resources"] == ["WestNO_0", "WestNO_1"]
