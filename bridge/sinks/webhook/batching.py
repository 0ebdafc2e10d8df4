"""A webhook that takes several events in one request."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import DeliveryError
from bridge.net.http_client import MAX_ANSWER_BYTES, Answer, redact, revealed
from bridge.sinks.base import Sink
from bridge.sinks.webhook.config import WebhookKeys
from bridge.sinks.webhook.many import Many
from bridge.sinks.webhook.presets.preset import Call

_ANSWER_BYTES = 1024  # of an answer, for each event
T = TypeVar("T")


class Poster(Sink, Protocol):
    """Posts requests; see ``WebhookSink``."""

    config: WebhookKeys

    async def attempt(self, post: Callable[[], Awaitable[T]]) -> T:
        """Ask for permission if necessary, and make one attempt."""
        ...

    async def called(self, call: Call, name: str) -> Answer:
        """Make one request."""
        ...

    def verdict(self, answer: Answer) -> DeliveryError | None:
        """Return what an answer means."""
        ...


@dataclass(slots=True, kw_only=True)
class BatchingWebhook:
    """POSTs several events in one request.

    Attributes:
        sink: posts the requests.
        many: makes their headers and bodies.
        size: the most bytes of a request with several events.
    """

    sink: Poster
    many: Many
    size: int

    async def deliver(self, event: CloudEvent) -> None:
        """POST one event, in the form of several; see ``Sink.deliver``."""
        await self.sink.deliver(event)

    async def deliver_many(
        self, events: Sequence[CloudEvent]
    ) -> Sequence[DeliveryError | None]:
        """POST as many events as fit in one request; see ``BatchSink.deliver_many``."""
        return await self.sink.attempt(partial(self._post, events))

    async def _post(
        self, events: Sequence[CloudEvent]
    ) -> Sequence[DeliveryError | None]:
        headers, body, count = self.many.first(events, self.size)
        # The id in the signature shows a repeat: the same events need the same id.
        name = "\n".join(event.id for event in events[:count])
        most = MAX_ANSWER_BYTES + count * _ANSWER_BYTES
        call = Call(headers=headers, body=body, most=most)
        return self._meaning(await self.sink.called(call, name), count)

    def _meaning(self, answer: Answer, count: int) -> Sequence[DeliveryError | None]:
        config = self.sink.config
        if self.many.judge is not None and config.success is None:
            target = redact(revealed(config.url, "url"))
            return self.many.judge(answer, target, count)
        if (error := self.sink.verdict(answer)) is not None:
            raise error
        return [None] * count
