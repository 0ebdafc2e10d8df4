"""Adds a restore at the start of the bridge, if the first document allows it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge.events.build import EventContext, from_bridge
from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.outbox.delivery import Delivery
from bridge.outbox.runs import Runs
from bridge.sinks.acting import Action, Actor

_REASON = "no event of this VM was there at the start"


@dataclass(slots=True)
class RestoreAtStart:
    """Decides once after the start whether a restore is necessary.

    Attributes:
        is_decided: whether this has been decided.
    """

    actor: Actor
    event_context: Callable[[], EventContext]
    clock: Clock
    is_decided: bool = False

    async def decide(self, runs: Runs, pending: Sequence[Delivery]) -> None:
        """Add a delivery of a restore, if one is needed and none is pending.

        Args:
            runs: the outbox of the sink.
            pending: the pending deliveries of the sink.
        """
        is_wanted = self.actor.restores_at_start()
        if is_wanted is None:
            return
        self.is_decided = True
        if is_wanted and not any(map(self._is_restore, pending)):
            now = self.clock.now()
            started = from_bridge(
                self.event_context(), "started", observed_at=now, reason=_REASON
            )
            await runs.add(started.event, now=now.timestamp())

    def _is_restore(self, delivery: Delivery) -> bool:
        event = CloudEvent.from_json(delivery.body)
        return self.actor.action(event) is Action.RESTORE
