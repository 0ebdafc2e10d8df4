"""Builds the parts for approvals: receivers, listeners, and the relay of replies."""

import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bridge.approvals.auto_approve import AutoApprover
from bridge.approvals.config import ApprovalsConfig
from bridge.approvals.context import ApprovalContext
from bridge.approvals.policy import Terms
from bridge.approvals.rotation import Rotation
from bridge.approvals.rules import ReplyRules
from bridge.events.build import EventContext
from bridge.foundation.clock import Clock
from bridge.foundation.errors import ConfigError
from bridge.foundation.pace import RetryPolicy
from bridge.imds.poller import Poller
from bridge.outbox.records import REPLIES
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import RelayPolicy
from bridge.pipeline.relay import Relay
from bridge.servicebus.namespace import TIMINGS, ApprovalSource, Timings
from bridge.signing.approval import Approvers
from bridge.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from bridge.approvals.listener import Listener
    from bridge.servicebus.receiver import ApprovalQueue

_REPLY_AGE = 3600.0  # after an hour, the approver no longer waits for the reply
_REPLY_BACKOFF = 30.0
_REPLY_SLOTS = 4


@dataclass(slots=True, kw_only=True)
class ApprovalWorkers:
    """Builds the workers for approvals.

    Attributes:
        reply_rules: decides to which entities a reply may be sent.
        rotation: takes this VM out of rotation before an approval; None without a
            traffic probe.
        bus: the time limits of Service Bus.
    """

    config: ApprovalsConfig
    outbox: Outbox
    poller: Poller
    event_context: EventContext
    clock: Clock
    metrics: Metrics
    reply_rules: ReplyRules
    rotation: Rotation | None = None
    bus: Timings = TIMINGS

    async def open(
        self, stack: AsyncExitStack
    ) -> "tuple[list[Listener], dict[str, ApprovalQueue]]":
        """Open a receiver and build a listener for each session, or for the entity.

        If no entity is configured, both results are empty.

        Raises:
            ConfigError: a placeholder has no value on this machine.
        """
        config = self.config
        if not config.has_entity:
            return [], {}
        # Only loaded if an entity is configured: it costs memory.
        from bridge.approvals.listener import Listener  # noqa: PLC0415 - see above
        from bridge.servicebus.receiver import (  # noqa: PLC0415 - see above
            LockTime,
            open_queue,
        )

        listeners, queues, lock_time = [], {}, LockTime()
        for session in self._sessions() or [None]:
            source = ApprovalSource(
                queue=config.queue,
                topic=config.topic,
                subscription=config.subscription,
                session=session,
            )
            queue = await stack.enter_async_context(
                open_queue(config, source, self.clock, lock_time, self.bus)
            )
            queues[str(source)] = queue
            listeners.append(
                Listener(queue, self._context(), f"listener:{source}", str(source))
            )
        return listeners, queues

    def _sessions(self) -> list[str | None]:
        expand = self.event_context.identity.expand
        try:
            return [expand(text) for text in self.config.sessions]
        except ValueError as error:
            raise ConfigError([f"approvals.sessions: {error}"]) from error

    def rules(self) -> AutoApprover | None:
        """Return what approves by rules; None if no rule has that action."""
        rules = self.config.rules
        is_wanted = any(rule.action == "auto-approve" for rule in rules)
        return AutoApprover(self._context()) if is_wanted else None

    def replies(self, stack: AsyncExitStack) -> list[Relay]:
        """Build the relay that sends replies; empty if no entity is configured.

        The sender of the relay is closed with ``stack``.
        """
        if not self.config.has_entity:
            return []
        from bridge.approvals.reply import (  # noqa: PLC0415 - as above
            ReplySender,
        )

        sender = ReplySender(self.config, timings=self.bus)
        stack.push_async_callback(sender.close)

        relay = Relay(
            sink=REPLIES,
            deliver=sender.deliver,
            outbox=self.outbox,
            clock=self.clock,
            metrics=self.metrics,
            policy=RelayPolicy(
                backoff=RetryPolicy(max_backoff=_REPLY_BACKOFF),
                max_age=_REPLY_AGE,
                slots=_REPLY_SLOTS,
            ),
            chance=random.random,
        )
        return [relay]

    def _terms(self) -> Terms:
        config = self.config
        return Terms(
            unknown_grace=config.unknown_grace,
            max_age=config.max_age,
            allow_event_types=config.allow_event_types,
            rules=config.rules,
            me=self.event_context.identity,
        )

    def _context(self) -> ApprovalContext:
        config = self.config
        return ApprovalContext(
            entity=config.entity_path,
            terms=self._terms(),
            approvers=Approvers(config.signed_by) if config.signed_by else None,
            abandons_unknown=config.on_unknown == "abandon",
            max_delivery_count=config.max_delivery_count,
            replies=self.reply_rules,
            outbox=self.outbox,
            event_context=self.event_context,
            poller=self.poller,
            rotation=self.rotation,
            clock=self.clock,
            chance=random.random,
        )
