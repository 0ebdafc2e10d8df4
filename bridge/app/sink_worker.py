"""A sink as it is opened: at once, or in two steps where this VM is not known yet.

    early ──this VM is known──▶ what is in flight ends ──▶ opened again for good
      └── not at all, if the sink wants to be told what is not known yet

It is closed before it is opened for good: a file has one writer.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import ConfigError, Reason, TransientDeliveryError
from bridge.foundation.workers import waking
from bridge.outbox.delivery import Delivery
from bridge.pipeline.relay import Relay
from bridge.sinks.base import Resources, Sink, SinkConfig


@dataclass(frozen=True, slots=True)
class Opening:
    """How a sink is opened: with its placeholders filled in, and what it is lent."""

    config: SinkConfig
    resources: Resources


@dataclass(slots=True)
class SinkWorker:
    """Opens one sink, and runs its relay.

    Attributes:
        config: as it was read, with placeholders.
        resources: what the sink is lent, but for what depends on this VM.
        stack: closes the sink when everybody has stopped.
        relay: tries to deliver, by way of ``deliver``; given once it is made.
    """

    config: SinkConfig
    resources: Resources
    stack: AsyncExitStack
    relay: Relay = field(init=False)
    _sink: Sink | None = None
    _early: Opening | None = None
    _final: Opening | None = None
    _is_settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """How the worker is called."""
        return self.relay.name

    async def deliver(self, delivery: Delivery) -> None:
        """Make one attempt.

        Raises:
            DeliveryError: as ``Sink.deliver``.
        """
        if self._sink is None:  # the last call came before the sink was opened
            text = "the sink is not open: this VM is not known yet"
            raise TransientDeliveryError(text, Reason.CONNECTION)
        await self._sink.deliver(CloudEvent.from_json(delivery.body))

    async def open(self, opening: Opening) -> None:
        """Open the sink for good.

        Raises:
            ConfigError: a placeholder has no value on this machine.
            MissingExtraError: an optional package is not installed.
        """
        self._sink = await self.stack.enter_async_context(
            opening.config.open(opening.resources)
        )
        self._is_settled.set()

    def begin_with(self, opening: Opening) -> None:
        """Let ``run`` open the sink with what is known; ``settle`` follows."""
        self._early = opening

    def settle(self, opening: Opening) -> None:
        """Let ``run`` open the sink for good: this VM is known."""
        self._final = opening
        self._is_settled.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until asked to stop.

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
        await self.relay.run(stop)

    async def _run_early(self) -> None:
        if self._early is None:
            return
        async with AsyncExitStack() as stack:
            context = self._early.config.open(self._early.resources)
            try:
                self._sink = await stack.enter_async_context(context)
            except ConfigError:  # it is told if it still is one when this VM is known
                return
            try:
                await self.relay.run(self._is_settled)
            finally:
                self._sink = None
