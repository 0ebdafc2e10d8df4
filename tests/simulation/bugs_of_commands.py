"""Bugs to be planted on the way of a command."""

from typing import Any

from msgspec import structs
from msgspec.structs import replace as with_fields

from bridge.events.routing import Router
from bridge.events.vocabulary import GONE, TransitionKind
from bridge.outbox.lookups import Commands
from bridge.outbox.records import Delivery
from bridge.outbox.sink_state import Runs, Standing
from bridge.outbox.store import Outbox
from bridge.pipeline.acting import ActingRelay
from bridge.sinks.acting import Begin, Ending, Fate
from bridge.sinks.command import actor
from bridge.sinks.command.actor import CommandActor
from tests.simulation.planting import Patch, bug


@bug
def command_prepares_for_what_is_over(patch: Patch) -> None:
    patch.setattr(CommandActor, "_verdict_on_absent", lambda *_: Begin())


@bug
def command_is_run_on_the_word_of_an_earlier_life(patch: Patch) -> None:
    by_document = CommandActor._verdict_by_document

    def trusting(self: CommandActor, step: Any, event: Any) -> Any:
        is_unread = self.outlook.document is None
        return Begin() if is_unread else by_document(self, step, event)

    patch.setattr(CommandActor, "_verdict_by_document", trusting)


@bug
def later_step_overtakes_no_prepare(patch: Patch) -> None:
    standings = Runs.standings

    async def blind(self: Runs, deliveries: Any) -> dict[int, Standing]:
        found = await standings(self, deliveries)
        return {n: with_fields(one, newer=None) for n, one in found.items()}

    patch.setattr(Runs, "standings", blind)


@bug
def event_that_ended_somehow_is_not_restored(patch: Patch) -> None:
    gone = GONE - {TransitionKind.ENDED.value}
    patch.setattr(actor, "GONE", gone)


@bug
def any_two_commands_run_at_once(patch: Patch) -> None:
    patch.setattr(CommandActor, "may_join", lambda *_: True)


@bug
def command_goes_on_though_its_event_is_over(patch: Patch) -> None:
    patch.setattr(CommandActor, "void", lambda *_: None)


@bug
def command_that_was_killed_has_succeeded(patch: Patch) -> None:
    ending = CommandActor._ending

    def kind(self: CommandActor, found: Any) -> Ending:
        is_killed = found.code is not None and found.code < 0
        mine = ending(self, found)
        return structs.replace(mine, fate=Fate.SUCCEEDED) if is_killed else mine

    patch.setattr(CommandActor, "_ending", kind)


@bug
def result_of_a_command_is_published_in_a_commit_of_its_own(patch: Patch) -> None:
    commit = Outbox.commit

    async def split(self: Outbox, events: Any, **given: Any) -> bool:
        if settle := given.pop("settle", None):
            await commit(self, [], settle=settle, now=given["now"])
        return await commit(self, events, **given)

    patch.setattr(Outbox, "commit", split)


@bug
def command_is_settled_before_it_is_run(patch: Patch) -> None:
    act = ActingRelay._act

    async def early(self: ActingRelay, run: Any) -> None:
        good = Ending(fate=Fate.SUCCEEDED)
        await self._settle(run, good, attempts=1)
        await act(self, run)

    patch.setattr(ActingRelay, "_act", early)


@bug
def success_counts_though_the_event_went_while_the_command_ran(patch: Patch) -> None:
    succeed = Commands.succeed

    def keep(self: Commands, success: Any, rows: Any) -> None:
        now = self.appearance(success.key)
        succeed(self, with_fields(success, appearance=now), rows)

    patch.setattr(Commands, "succeed", keep)
    patch.setattr(CommandActor, "counts", lambda *_: True)


@bug
def success_counts_though_it_was_undone(patch: Patch) -> None:
    async def keep(self: Runs, key: str) -> None:
        pass

    patch.setattr(Runs, "void", keep)


@bug
def command_that_asks_for_it_is_not_run_again(patch: Patch) -> None:
    patch.setattr(CommandActor, "most_attempts", 1)


@bug
def command_that_runs_is_not_waited_for(patch: Patch) -> None:
    def first_of(self: ActingRelay, pending: list[Delivery]) -> list[Delivery]:
        first: dict[str | None, Delivery] = {}
        for delivery in pending:
            first.setdefault(delivery.key, delivery)
        return [*first.values()]

    patch.setattr(ActingRelay, "_first_of", first_of)


@bug
def restore_does_not_wait_for_the_first_document(patch: Patch) -> None:
    patch.setattr(CommandActor, "_verdict_on_restore", lambda *_: Begin())


@bug
def start_that_ends_an_event_here_is_delivered_to_no_command(patch: Patch) -> None:
    patch.setattr(Router, "_start_as_update", lambda _, __, subject: subject)
