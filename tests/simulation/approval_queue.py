"""The approval queue, simulated: peek-lock, redelivery, ten deliveries at most."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from bridge.foundation.errors import ApprovalQueueError
from bridge.servicebus.decode import ReceivedMessage, Settlement
from tests.simulation.on_the_spot import judge_settlement
from tests.simulation.plan import EXPIRES_SOON, Event, Plan, PlannedApproval
from tests.simulation.timeline import true_time

if TYPE_CHECKING:
    from tests.simulation.life import Life


@dataclass(slots=True)
class Message:
    """A message on the approval queue, until it is settled."""

    planned: PlannedApproval
    sequence: int
    body: bytes
    enqueued_at: datetime
    seen: Event | None = None  # what the approver was shown
    count: int = 0
    locked_by: int | None = None
    again_at: float = 0.0
    settled: str | None = None
    settled_at: float = 0.0


@dataclass(slots=True)
class Broker:
    """The approval queue: peek-lock, redelivery, ten deliveries at most."""

    plan: Plan
    messages: list[Message] = field(default_factory=list)
    settlements: int = 0

    def put(self, planned: PlannedApproval, seen: Event | None) -> None:
        """Enqueue what somebody sends."""
        self.messages.append(
            Message(
                planned,
                len(self.messages) + 1,
                _body(planned, seen),
                true_time(planned.at),
                seen,
            )
        )

    def is_quiet(self) -> bool:
        """Whether everything that was sent is settled."""
        is_all_sent = len(self.messages) == len(self.plan.approvals)
        return is_all_sent and all(m.settled for m in self.messages)


EXPIRY = {"seen": 10_800.0, "expired": -3600.0, "soon": EXPIRES_SOON}


def _body(planned: PlannedApproval, seen: Event | None) -> bytes:
    if planned.kind == "invalid":
        return b'{"StartRequests": [{}]}'
    event_id = "nobody-knows" if planned.kind == "unknown" else planned.event_id
    data: dict[str, object] = {"StartRequests": [{"EventId": event_id}]}
    if planned.kind == "seen" and seen is not None:
        data["approvedEvent"] = seen
    if (seconds := EXPIRY.get(planned.kind)) is not None:
        at = true_time(planned.at) + timedelta(seconds=seconds)
        data["expiresAt"] = at.isoformat()
    if planned.kind in {"seen", "expired", "soon"}:
        body: dict[str, object] = {
            "specversion": "1.0",
            "id": planned.message_id,
            "source": "/simulation",
            "type": "sebridge.startrequest.v1",
            "data": data,
        }
        return json.dumps(body).encode()
    return json.dumps(data).encode()


@dataclass(slots=True)
class SimulatedQueue:
    """The receiving end of one life."""

    life: "Life"

    async def receive(self, stop: asyncio.Event) -> list[ReceivedMessage]:
        """Return a message as soon as one is to be had."""
        broker = self.life.world.broker
        for _ in range(30):
            self.life.moment("receive")
            if stop.is_set():
                return []
            now = self.life.now()
            for message in broker.messages:
                if not message.settled and message.again_at <= now:
                    return [self._lock(message, now)]
            self.life.arrived.clear()
            await self.life.clock.wait(self.life.arrived, 1.0)
        return []

    def _lock(self, message: Message, now: float) -> ReceivedMessage:
        message.locked_by = self.life.number
        message.again_at = float("inf")  # renewed as long as this life lasts
        message.count += 1
        return ReceivedMessage(
            lock_token=f"{message.sequence}/{message.count}",
            message_id=message.planned.message_id,
            sequence_number=message.sequence,
            enqueued_at=message.enqueued_at,
            body=message.body,
            reply_to=message.planned.reply_to,
            delivery_count=message.count - 1,
            locked_until=true_time(now + 60),
        )

    async def settle(self, received: ReceivedMessage, settlement: Settlement) -> None:
        assert bool(settlement.words) == (settlement.verdict == "dead-letter")
        how = settlement.reason or settlement.verdict
        world = self.life.world
        self.life.moment("settle")
        number, count = map(int, received.lock_token.split("/"))
        message = world.broker.messages[number - 1]
        judge_settlement(world, message, how)
        await asyncio.sleep(0.01)
        world.broker.settlements += 1
        is_lost = world.plan.has("settle-errors") and (
            world.plan.chance("settle", world.broker.settlements) < 0.3
        )
        if message.settled or message.count != count:
            raise ApprovalQueueError("the lock of a message is lost")
        if is_lost and self.life.now() < world.plan.end:
            message.again_at = self.life.now() + 30
            raise ApprovalQueueError("the lock of a message is lost")
        if how == "abandon" and message.count < 10:
            message.again_at = self.life.now()
        else:
            message.settled, message.settled_at = how, self.life.now()
        self.life.moment("settled")
