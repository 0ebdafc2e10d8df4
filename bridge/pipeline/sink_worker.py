"""Opens a sink and runs its relay; twice if this VM's identity is not known at first.

    opened early ──this VM is known──▶ attempts in flight end ──▶ closed, opened again
      └── not opened early, if the sink needs a value that is not known yet

The sink is closed before it is opened again, because a file has only one writer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import msgspec

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import ConfigError, Reason, TransientDeliveryError
from bridge.foundation.pace import RetryPolicy
from bridge.foundation.workers import waking
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import RelayPolicy
from bridge.pipeline.relay import Relay
from bridge.sinks.base import Probing, Reminding, Resources, Sink, SinkConfig
from bridge.telemetry.metrics import Metrics


class Opening(msgspec.Struct, frozen=True):
    """The arguments for opening a sink; ``config`` has its placeholders filled in."""

    config: SinkConfig
    resources: Resources


class SinkWorker:
    """Opens one sink, and runs its relay.

    Attributes:
        config: the configuration with its placeholders.
        resources: the sink's resources, without those that depend on this VM.
        stack: closes the sink after all workers have stopped.
        relay: calls ``deliver`` for each attempt; see ``build_relay``.
    """

    relay: Relay

    def __init__(
        self, config: SinkConfig, resources: Resources, stack: AsyncExitStack
    ) -> None:
        self.config = config
        self.resources = resources
        self.stack = stack
        self._sink: Sink | None = None
        self._early: Opening | None = None
        self._final: Opening | None = None
        self._is_settled = asyncio.Event()

    def build_relay(
        self,
        outbox: Outbox,
        metrics: Metrics,
        chance: Callable[[], float],
        kind: Callable[..., Relay] = Relay,
    ) -> None:
        """Build the relay of the sink.

        Args:
            outbox: the outbox that it delivers from.
            metrics: count its deliveries.
            chance: see ``Relay``.
            kind: makes it: ``Relay``, or one with more arguments.
        """
        config = self.config
        self.relay = kind(
            sink=config.name,
            deliver=self.deliver,
            outbox=outbox,
            clock=self.resources.clock,
            metrics=metrics,
            policy=RelayPolicy(
                backoff=RetryPolicy(max_backoff=config.retry.max_backoff),
                max_age=config.retry.max_age,
                slots=config.slots,
                most_slots=config.most_slots,
            ),
            chance=chance,
            pace=self.resources.pace,
            busy=self.resources.busy,
            repeats=config.repeats,
        )

    @property
    def name(self) -> str:
        """The name of the worker."""
        return self.relay.name

    def deliver(self, delivery: Delivery) -> Awaitable[None]:
        """Make one attempt, alone; what is returned must be awaited.

        Raises:
            DeliveryError: as ``Sink.deliver``.
        """
        if self._sink is None:  # stopped before the sink was opened
            text = "the sink is not open: this VM is not known yet"
            raise TransientDeliveryError(text, Reason.CONNECTION)
        return self._sink.deliver(CloudEvent.from_json(delivery.body))

    async def open(self, opening: Opening) -> None:
        """Open the sink until the forwarder stops.

        Raises:
            ConfigError: a placeholder has no value on this machine.
            MissingExtraError: an optional package is not installed.
        """
        self._use(
            await self.stack.enter_async_context(opening.config.open(opening.resources))
        )
        self._is_settled.set()

    def begin_with(self, opening: Opening) -> None:
        """Let ``run`` open the sink early; ``settle`` must follow."""
        self._early = opening

    def settle(self, opening: Opening) -> None:
        """Let ``run`` open the sink again, and finally: this VM is known."""
        self._final = opening
        self._is_settled.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until ``stop`` is set.

        Raises:
            ConfigError: as ``open``; also in an ExceptionGroup.
            MissingExtraError: as ``open``.
        """
        if not self._is_settled.is_set():
            async with waking(stop, self._is_settled):
                await self._run_early()
                await self._is_settled.wait()
        if stop.is_set():
            return
        if self._final is not None:
            await self.open(self._final)
        async with asyncio.TaskGroup() as group:
            if isinstance(self._sink, Reminding):
                group.create_task(self._sink.remind(stop), name=f"{self.name} reminds")
            group.create_task(self.relay.run(stop), name=self.name)

    async def _run_early(self) -> None:
        if self._early is None:
            return
        async with AsyncExitStack() as stack:
            context = self._early.config.open(self._early.resources)
            try:
                self._use(await stack.enter_async_context(context))
            except ConfigError:  # ``run`` raises it later if the fault remains
                return
            try:
                await self.relay.run(self._is_settled)
            finally:
                self._sink = None
                self.relay.gather = None
                self.relay.probe_with(None)

    def _use(self, sink: Sink) -> None:
        """Deliver to an open sink from now on."""
        self._sink, limits = sink, self.config.batch_limits
        self.relay.probe_with(sink.probe if isinstance(sink, Probing) else None)
        if limits is None:
            return
        from bridge.pipeline.batches import Batches  # noqa: PLC0415 - only if needed
        from bridge.sinks.batch import BatchSink  # noqa: PLC0415 - likewise

        assert isinstance(sink, BatchSink)  # noqa: S101 - for mypy  # nosec B101
        relay, clock = self.relay, self.resources.clock
        sizes = relay.metrics.batch_events.labels(relay.sink)
        batches = Batches(sink, limits, clock, relay.may_send, sizes)
        relay.gather = batches.deliver
