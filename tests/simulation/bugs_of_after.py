"""Bugs to be planted on the way from a command's success to an approval."""

from typing import Any

from msgspec.structs import replace

from bridge.approvals import evidence, rules
from bridge.approvals.auto_approve import AutoApprover
from bridge.approvals.evidence import Evidence, Lack, SuccessCheck
from bridge.events.look import Withheld
from bridge.pipeline.acting import ActingRelay
from bridge.sinks.command import actor
from tests.simulation.planting import Patch, bug


@bug
def success_counts_whatever_the_event_has_become(patch: Patch) -> None:
    for module in (evidence, actor):
        patch.setattr(module, "is_material", lambda *_: False)


@bug
def rule_frees_machines_that_have_not_acted(patch: Patch) -> None:
    patch.setattr(rules, "names_others", lambda *_: False)


@bug
def command_that_failed_is_good_enough(patch: Patch) -> None:
    strict = SuccessCheck._evidence

    def lenient(self: SuccessCheck, *given: Any) -> Evidence:
        found = strict(self, *given)
        return replace(found, lack=None) if found.lack is Lack.FAILED else found

    patch.setattr(SuccessCheck, "_evidence", lenient)


@bug
def delay_after_a_success_is_skipped(patch: Patch) -> None:
    patch.setattr(SuccessCheck, "_age", lambda *_: float("inf"))


@bug
def success_counts_though_a_later_run_has_failed(patch: Patch) -> None:
    act = ActingRelay._act

    async def trusting(self: ActingRelay, run: Any) -> None:
        run.step = replace(run.step, done=None)
        await act(self, run)

    patch.setattr(ActingRelay, "_act", trusting)


@bug
def event_that_was_withheld_stays_withheld(patch: Patch) -> None:
    withhold = AutoApprover._withhold

    async def for_ever(self: AutoApprover, event: Any, *given: Any) -> Withheld:
        self._resting[rules.content_of(event)] = float("inf")
        return await withhold(self, event, *given)

    patch.setattr(AutoApprover, "_withhold", for_ever)
