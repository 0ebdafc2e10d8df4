"""Builds the relay of a sink, and opens the sink: then the relay delivers to it.

A relay without an open sink is not run: its sink needs a value that is not known yet.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import Reason, TransientDeliveryError
from bridge.foundation.pace import RetryPolicy
from bridge.outbox.records import Delivery
from bridge.outbox.store import Outbox
from bridge.pipeline.attempt import RelayPolicy
from bridge.pipeline.relay import Relay
from bridge.sinks.base import Probing, Reminding, Resources, Sink, SinkConfig
from bridge.telemetry.metrics import Metrics


def relay_of(  # noqa: PLR0913 - what a relay is made of
    config: SinkConfig,
    resources: Resources,
    outbox: Outbox,
    metrics: Metrics,
    *,
    chance: Callable[[], float],
    kind: Callable[..., Relay] = Relay,
) -> Relay:
    """Build the relay of a sink that is not open yet.

    Args:
        config: the configuration of the sink.
        resources: those of the sink.
        outbox: the outbox that it delivers from.
        metrics: count its deliveries.
        chance: see ``Relay``.
        kind: makes it: ``Relay``, or one with more arguments.
    """
    return kind(
        sink=config.name,
        deliver=_closed,
        outbox=outbox,
        clock=resources.clock,
        metrics=metrics,
        policy=RelayPolicy(
            backoff=RetryPolicy(max_backoff=config.retry.max_backoff),
            max_age=config.retry.max_age,
            slots=config.slots,
            most_slots=config.most_slots,
        ),
        chance=chance,
        pace=resources.pace,
        busy=resources.busy,
        repeats=config.repeats,
    )


async def _closed(_: Delivery) -> None:
    text = "the sink is not open: this VM is not known yet"
    raise TransientDeliveryError(text, Reason.CONNECTION)


async def open_sink(
    relay: Relay, config: SinkConfig, resources: Resources, stack: AsyncExitStack
) -> None:
    """Open a sink until the stack is closed, and let its relay deliver to it.

    Args:
        relay: what ``relay_of`` has built.
        config: the configuration of the sink, with its placeholders filled in.
        resources: those of the sink.
        stack: closes the sink after all workers have stopped.

    Raises:
        ConfigError: a placeholder has no value on this machine.
        MissingExtraError: an optional package is not installed.
    """
    sink: Sink = await stack.enter_async_context(config.open(resources))

    def deliver(delivery: Delivery) -> Awaitable[None]:
        return sink.deliver(CloudEvent.from_json(delivery.body))

    relay.deliver = deliver
    if isinstance(sink, Probing):
        relay.probe_with(sink.probe)
    if isinstance(sink, Reminding):
        relay.remind = sink.remind
    if (limits := config.batch_limits) is not None:
        from bridge.pipeline.batches import Batches  # noqa: PLC0415 - only if needed
        from bridge.sinks.batch import BatchSink  # noqa: PLC0415 - likewise

        assert isinstance(sink, BatchSink)  # noqa: S101 - for mypy  # nosec B101
        sizes = relay.metrics.batch_events.labels(relay.sink)
        batches = Batches(sink, limits, relay.clock, relay.may_send, sizes)
        relay.gather = batches.deliver
