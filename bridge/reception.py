"""Composes the approval path: receivers, listeners, and the relay of replies."""

import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from bridge.approvals.autopilot import Autopilot
from bridge.approvals.desk import Desk
from bridge.approvals.envelope import ReplyRules
from bridge.approvals.listener import ApprovalsConfig, Listener
from bridge.approvals.locks import LockTime
from bridge.approvals.policy import Terms
from bridge.approvals.queue import ApprovalQueue, ApprovalSource, open_queue
from bridge.approvals.replies import ReplySender
from bridge.clock import Clock
from bridge.events import Teller
from bridge.imds.client import MetadataClient
from bridge.outbox.records import REPLIES
from bridge.outbox.store import Outbox
from bridge.poller import Poller
from bridge.relay import Relay, RelayPolicy
from bridge.retry import RetryPolicy
from bridge.sinks.base import ApprovalAddress
from bridge.telemetry import Metrics

_REPLY_AGE = 3600.0  # whoever asked has given up by then
_REPLY_BACKOFF = 30.0
_REPLY_SLOTS = 4


def entity_of(config: ApprovalsConfig) -> str:
    """Return how the approval entity is called in ids and status."""
    return config.queue or f"{config.topic}/Subscriptions/{config.subscription}"


def address_of(
    config: ApprovalsConfig, expand: Callable[[str], str]
) -> ApprovalAddress:
    """Return where an approval of an event is to be sent.

    A session that several VMs accept comes first: with duplicate detection one
    message speaks for all of them, and must not name a VM that may be going down.

    Raises:
        ValueError: a placeholder has no value on this machine.
    """
    shared = [session for session in config.sessions if "{vm_" not in session]
    session = next(iter([*shared, *config.sessions]), None)
    return ApprovalAddress(
        namespace=config.host,
        entity=config.queue or config.topic,
        session=None if session is None else expand(session),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reception:
    """What the approval path is built from.

    Attributes:
        sink_entities: where sinks of the same kind send: never replied to.
    """

    config: ApprovalsConfig
    outbox: Outbox
    poller: Poller
    client: MetadataClient
    teller: Teller
    clock: Clock
    metrics: Metrics
    sink_entities: tuple[str, ...]

    async def open(
        self, stack: AsyncExitStack
    ) -> tuple[list[Listener], dict[str, ApprovalQueue]]:
        """Open a receiver and build a listener for each session, or for the entity.

        Raises:
            ValueError: a placeholder has no value on this machine.
        """
        config = self.config
        expand = self.teller.identity.expand
        sessions: list[str | None] = [expand(text) for text in config.sessions]
        listeners, queues, lock_time = [], {}, LockTime()
        for session in sessions or [None]:
            source = ApprovalSource(
                queue=config.queue,
                topic=config.topic,
                subscription=config.subscription,
                session=session,
            )
            queue = await stack.enter_async_context(
                open_queue(config, source, self.clock, lock_time)
            )
            queues[str(source)] = queue
            listeners.append(Listener(queue, self._desk(), f"listener:{source}"))
        return listeners, queues

    def autopilots(self) -> list[Autopilot]:
        """Build what approves by itself; nothing where no rule says so."""
        rules = self.config.rules
        is_wanted = any(rule.action == "auto-approve" for rule in rules)
        return [Autopilot(self._desk())] if is_wanted else []

    def replies(self, stack: AsyncExitStack) -> Relay:
        """Build the relay that sends replies; its sender closes with ``stack``."""
        sender = ReplySender(self.config)
        stack.push_async_callback(sender.close)

        return Relay(
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

    def _desk(self) -> Desk:
        config = self.config
        own = (config.queue or config.topic, entity_of(config))
        return Desk(
            entity=entity_of(config),
            terms=Terms(
                unknown_grace=config.unknown_grace,
                max_age=config.max_age,
                allow_event_types=config.allow_event_types,
                rules=config.rules,
            ),
            abandons_unknown=config.on_unknown == "abandon",
            replies=ReplyRules.of(config.reply_to, [*own, *self.sink_entities]),
            outbox=self.outbox,
            teller=self.teller,
            watcher=self.poller,
            starter=self.client,
            clock=self.clock,
            chance=random.random,
            count=lambda outcome: self.metrics.start_requests.labels(outcome).inc(),
        )
