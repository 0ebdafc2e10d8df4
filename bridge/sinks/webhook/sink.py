"""CloudEvents to any HTTP endpoint, with authentication and handshake.

Source: https://github.com/cloudevents/spec/tree/ce@v1.0.2
        (http-protocol-binding.md section 3, http-webhook.md sections 2 and 4)
"""

import asyncio
import gzip
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bridge.events.cloudevent import CloudEvent, hash32
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    ConfigError,
    DeliveryError,
    OutboxError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
    UnprovenError,
)
from bridge.foundation.pace import Pace
from bridge.net.http_client import (
    MAX_ANSWER_BYTES,
    Answer,
    Request,
    exchange,
    failure,
    reach,
    redact,
    revealed,
    turn,
)
from bridge.net.tls import Tls, TlsFiles
from bridge.sinks.base import Memory, Preview, Resources, Sink
from bridge.sinks.webhook.auth import (
    Auth,
    AuthConfig,
    auth_of,
    filled,
    revealed_value,
)
from bridge.sinks.webhook.body import Shape
from bridge.sinks.webhook.config import (
    ORIGIN,
    SECRET,
    WebhookKeys,
    granted_rate,
    origin_of,
    question,
    signed,
)
from bridge.sinks.webhook.presets.preset import (
    NOTHING,
    Call,
    Many,
    Rendered,
    Standing,
    Talker,
    Verdict,
    advanced,
    assumed,
    excerpt,
    line,
    secrets_of,
)
from bridge.sinks.webhook.template import TemplateFaultError

log = logging.getLogger(__name__)

T = TypeVar("T")

# -- A webhook that takes several events in one request --------------------------------


_ANSWER_BYTES = 1024  # of an answer, for each event


class BatchingWebhook(Struct, kw_only=True):
    """POSTs several events in one request.

    Attributes:
        sink: posts the requests.
        many: makes their headers and bodies.
        size: the most bytes of a request with several events.
    """

    sink: "WebhookSink"
    many: Many
    size: int

    async def deliver(self, event: CloudEvent) -> None:
        """POST one event, in the form of several; see ``Sink.deliver``."""
        await self.sink.deliver(event)

    async def probe(self) -> None:
        """See ``Probing``."""
        await self.sink.probe()

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
            return self.many.judge(answer, count)
        if (error := self.sink.judge(answer)) is not None:
            raise error
        return [None] * count


class RemindingWebhook(Struct, kw_only=True):
    """Posts events, and the alerts that still fire again every few minutes.

    Attributes:
        sink: posts the requests.
        standing: makes the reminders.
        memory: what fires, also after a restart.
        last_fault: why the last reminder was not accepted; "" = it was.
        _stale: what was sent again while it changed, and is not put right yet.
    """

    sink: "WebhookSink"
    standing: Standing
    memory: Memory
    clock: Clock
    last_fault: str = ""
    _stale: dict[str, bytes] = msgspec.field(default_factory=dict)

    async def deliver(self, event: CloudEvent) -> None:
        """POST one event, and remember what fires since; see ``Sink.deliver``."""
        await self.sink.deliver(event)
        if (change := self.standing.changed(event)) is not None:
            await self.memory.keep(*change)

    async def probe(self) -> None:
        """See ``Probing``."""
        await self.sink.probe()

    async def remind(self, stop: asyncio.Event) -> None:
        """See ``Reminding.remind``."""
        while not await self.clock.wait(stop, self.standing.every):
            try:
                await self._remind()
                self._note("")
            except (DeliveryError, OutboxError) as error:
                self._note(str(error))

    async def _remind(self) -> None:
        """Send what fires; what has changed meanwhile is put right at once."""
        before = {key: one for key, one in (await self.memory.all()).items() if one}
        try:
            await self._post(tuple(before.values()), ())
        finally:
            now = await self.memory.all()
            self._stale |= {k: v for k, v in before.items() if now.get(k) != v}
        changed = [one for key in self._stale if (one := now.get(key))]
        if self._stale:
            await self._post(changed, tuple(self._stale.values()))
            self._stale = {}

    async def _post(self, firing: Sequence[bytes], over: Sequence[bytes]) -> None:
        for call in self.standing.again(firing, over, self.clock.now()):
            name = hash32(call.body.hex())
            answer = await self.sink.attempt(partial(self.sink.called, call, name))
            if error := self.sink.judge(answer):
                raise error

    def _note(self, fault: str) -> None:
        if fault and fault != self.last_fault:
            log.warning(
                "open alerts not sent again",
                extra={"sink": self.sink.config.name, "fault": fault},
            )
        self.last_fault = fault


# -- CloudEvents to any HTTP endpoint, with authentication and handshake ---------------


_PROBE_LIMIT = 3.0  # seconds
_USUAL = ("POST", "", MAX_ANSWER_BYTES)  # method, path and most of a request


class WebhookSinkConfig(WebhookKeys, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "webhook"``."""

    @asynccontextmanager
    async def open(self, resources: Resources) -> AsyncIterator[Sink]:
        """Fill in placeholders; nothing is connected before the first delivery.

        Raises:
            ConfigError: a placeholder has no value on this machine, or the template can
                no longer be read.
            MissingExtraError: Jinja2 is needed and not installed.
        """
        sink, many = self._sink(resources), self.shape.many
        if (standing := self.shape.standing) is not None:
            yield RemindingWebhook(
                sink=sink,
                standing=standing,
                memory=resources.memory,
                clock=resources.clock,
            )
            return

        if self.batch == 1 or many is None:
            yield sink
            return
        yield BatchingWebhook(sink=sink, many=many, size=self.batch_size)

    def _sink(self, resources: Resources) -> "WebhookSink":
        origin, written = self._origin(resources), self.auth_meant
        return WebhookSink(
            config=self,
            shape=self.shape,
            talk=self._talker(),
            judge=self.shape.judge,
            expanded=self._expanded(resources),
            origin=origin,
            own={} if origin is None else {ORIGIN: origin},
            written=written,
            auth=auth_of(
                written,
                clock=resources.clock,
                timeout=self.timeout,
                proxy=self.proxy,
            ),
            tls=None if self.tls_files == TlsFiles() else Tls(self.tls_files),
            http=resources.http,
            pace=resources.pace,
            clock=resources.clock,
        )

    def _talker(self) -> Talker:
        try:
            return self.shape.talker()
        except TemplateFaultError as error:
            raise ConfigError([f"sinks.{self.name}.template: {error}"]) from error

    def _expanded(self, resources: Resources) -> dict[str, str]:
        try:
            return {
                name: resources.expand(value.reference)
                for name, value in self.headers.items()
                if value.is_literal
            }
        except ValueError as error:
            raise ConfigError([f"sinks.{self.name}.headers: {error}"]) from error

    def _origin(self, resources: Resources) -> str | None:
        if self.handshake == "off":
            return None
        try:
            return origin_of(self.handshake_origin, resources.expand)
        except ValueError as error:
            place = f"sinks.{self.name}.handshake_origin"
            raise ConfigError([f"{place}: {error}"]) from error

    async def reach(self, resources: Resources) -> str:
        """Test the connection to the endpoint; see ``SinkConfig.reach``."""
        return await self._sink(resources).reach()

    async def preview(self, resources: Resources, event: CloudEvent) -> Preview:
        """Return what would be posted; see ``SinkConfig.preview``."""
        return self._sink(resources).preview(event)


@dataclass(slots=True, kw_only=True)
class WebhookSink:
    """POSTs each event to one URL, or makes the requests that its preset needs.

    Attributes:
        talk: makes the requests of an event.
        judge: decides what an answer means.
        expanded: the literal headers of the configuration, with placeholders filled in.
        origin: the origin that asks for permission; None = no handshake.
        own: the header that says it with each request.
        written: the authentication as it is configured.
        tls: its certificates and authorities; None = those of the system.
    """

    config: WebhookKeys
    shape: Shape
    talk: Talker
    judge: Verdict
    expanded: Mapping[str, str] = field(repr=False)
    origin: str | None
    own: dict[str, str]
    written: AuthConfig | None
    auth: Auth
    tls: Tls | None
    http: aiohttp.ClientSession
    pace: Pace
    clock: Clock
    _is_settled: bool = False  # whether the handshake is done
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def deliver(self, event: CloudEvent) -> None:
        """POST the event; see ``Sink.deliver``.

        Raises:
            DeliveryError: as ``bridge.net.http_client`` maps it.
        """
        await self.attempt(partial(self._post, event))

    async def attempt(self, post: Callable[[], Awaitable[T]]) -> T:
        """Ask for permission if need be, and make one attempt; return its result.

        Raises:
            DeliveryError: as ``deliver``.
        """
        try:
            if self.origin is not None and not self._is_settled:
                await self._ask(self.origin)
            result = await post()
        except RefusedDeliveryError:
            self._is_settled = False
            self.auth.was_refused()
            raise
        if self.config.handshake == "attempt":
            self._is_settled = True  # accepted without a handshake: it has none
        return result

    async def probe(self) -> None:
        """Ask with OPTIONS and no credentials; see ``Probing``."""
        url, proxy = revealed(self.config.url, "url"), self.config.proxy
        request = Request(
            method="OPTIONS",
            url=url,
            headers={},
            body=b"",
            timeout=_PROBE_LIMIT,
            proxy=revealed(proxy, "proxy") if proxy else None,
            tls=None if self.tls is None else self.tls.context(),
        )
        await exchange(self.http, request, redact(url), self.clock.now)

    async def reach(self) -> str:
        """Test the connection to the endpoint; see ``SinkConfig.reach``.

        Raises:
            DeliveryError: it cannot be reached, or refuses a required handshake.
            UnprovenError: it answers, but this does not prove that it takes events.
        """
        request = await self._request({})
        target = redact(request.url)
        doubt: UnprovenError | None = None
        try:
            found = await reach(self.http, request, target)
        except UnprovenError as error:
            doubt, found = error, f"{target} is there"
        said = "" if self.origin is None else await self._asked(self.origin, doubt)
        if doubt is not None and not said:
            raise doubt
        return f"{found}{said}"

    async def _asked(self, origin: str, doubt: UnprovenError | None) -> str:
        """Return the result of the handshake; "" = nothing was proven.

        Raises:
            DeliveryError: a required permission is refused.
        """
        try:
            await self._permission(origin)
        except RefusedDeliveryError as error:
            if self.config.handshake == "required":
                raise
            return "" if doubt is not None else f"; {error}"
        return f"; it allows {origin} to send"

    def preview(self, event: CloudEvent) -> Preview:
        """Return what would be posted; see ``SinkConfig.preview``."""
        calls = list(assumed(self.talk, self.shape.known, event, self.clock.now()))
        if not calls:
            return Preview(head=(NOTHING,), body=b"")
        body = filled(self.written, calls[-1].body, SECRET)
        packed, _ = self._packed(dict(calls[-1].headers), body)
        headers = self.config.shown_headers(self.expanded) | self.own | packed
        if (signature := self.config.signature) is not None:
            headers |= signed(signature, event.id, body, self.clock.now())
            headers["webhook-signature"] = SECRET
        target = redact(revealed(self.config.url, "url"))
        requests = (line(call, target) for call in calls)
        lines = (f"{name}: {value}" for name, value in headers.items())
        return Preview(head=(*requests, *lines), body=body)

    async def _ask(self, origin: str) -> None:
        """Do the handshake: once, and again after a refusal."""
        name, seconds = self.config.name, self.config.timeout
        async with turn(self._asking, seconds=seconds, what=f"{name}: handshake"):
            if not self._is_settled:
                await self._settle(origin)
            elif (rate := self.pace.granted) is not None:  # another call has done it
                text = f"{name} waits for its turn"
                wait = 1 / rate
                raise TransientDeliveryError(text, Reason.THROTTLED, retry_after=wait)

    async def _settle(self, origin: str) -> None:
        try:
            rate = await self._permission(origin)
        except RefusedDeliveryError:
            if self.config.handshake == "required":
                raise
            rate = None
        except TransientDeliveryError:
            if self.config.handshake == "required":
                raise
            return  # the delivery will show whether the endpoint can be reached
        self.pace.grant(rate, self.clock.monotonic())
        self._is_settled = True

    async def _permission(self, origin: str) -> float | None:
        """Return the allowed deliveries per second; None = any number.

        Raises:
            RefusedDeliveryError: nothing is allowed.
            TransientDeliveryError: the answer is not known now.
        """
        asked = question(origin, self.pace.most)
        request = replace(await self._request(asked), method="OPTIONS")
        target = redact(request.url)
        answer = await exchange(self.http, request, target, self.clock.now)
        error = failure(answer.status, target=target, retry_after=answer.retry_after)
        is_busy = isinstance(error, TransientDeliveryError) and answer.status != 501
        if error and is_busy and self.config.handshake == "required":
            raise error
        return granted_rate(answer, origin)

    async def _post(self, event: CloudEvent) -> None:
        talk = self.talk(event, self.judge, self.clock.now())
        answer: Answer | None = None
        while isinstance(step := advanced(talk, answer), Call):
            answer = await self.called(step, event.id)
        if step is not None:
            raise step

    async def called(self, call: Call, name: str) -> Answer:
        """Make one request.

        Args:
            call: what to send.
            name: the id in the signature: the same for each repeat of the event.
        """
        body, headers = filled(self.written, call.body), {**call.headers}
        if (signature := self.config.signature) is not None:
            headers |= signed(signature, name, body, self.clock.now())
        request = await self._request(*self._packed(headers, body))
        if (call.method, call.path, call.most) != _USUAL:  # a copy costs its time
            url = _placed(request.url, call.path)
            request = replace(request, method=call.method, url=url, most=call.most)
        target = redact(request.url)
        answer = await exchange(self.http, request, target, self.clock.now)
        is_good = 200 <= answer.status < 300 and self.config.success is None
        if is_good or not answer.body:
            return answer
        hidden = (*secrets_of(request.url), *self._secrets(request))
        return replace(answer, said=excerpt(answer.body, hidden))

    def _packed(self, headers: dict[str, str], body: bytes) -> Rendered:
        """Compress the body if it is large enough."""
        least = self.config.gzip
        if least is None or len(body) < least:
            return headers, body
        return {**headers, "Content-Encoding": "gzip"}, gzip.compress(body, mtime=0)

    def _secrets(self, request: Request) -> Iterator[str]:
        """Yield the secrets of a request besides those in its URL."""
        auth = self.written
        names = {
            name
            for name, value in self.config.headers.items()
            if not value.is_literal or value.holds_secret(name)
        }
        if auth is not None:
            names.add(auth.header)
            own = (auth.token, auth.password, auth.value)
            yield from (revealed(one, "auth") for one in own if one is not None)
        for name in names:
            value = request.headers.get(name, "")
            yield value
            yield value.partition(" ")[2]  # without a scheme, such as Bearer

    async def _request(self, headers: dict[str, str], body: bytes = b"") -> Request:
        config, url = self.config, revealed(self.config.url, "url")
        auth = await self.auth.headers(url)
        configured = {
            name: self.expanded.get(name) or revealed_value(value, f"headers.{name}")
            for name, value in config.headers.items()
        }
        return Request(
            url=url,
            headers=configured | self.own | auth | headers,
            body=body,
            timeout=config.timeout,
            connect_timeout=config.connect_timeout,
            proxy=revealed(config.proxy, "proxy") if config.proxy else None,
            tls=None if self.tls is None else self.tls.context(),
        )


def _placed(url: str, path: str) -> str:
    """Return the URL of a call; see ``Call.path``."""
    if not path:
        return url
    parts = urlsplit(url)
    where, _, query = path.partition("?")
    if not path.startswith("/"):
        where = f"{parts.path.rstrip('/')}/{where}"
        query = "&".join(filter(None, (parts.query, query)))
    return urlunsplit((parts.scheme, parts.netloc, where, query, ""))
