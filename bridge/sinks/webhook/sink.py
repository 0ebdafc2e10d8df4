"""CloudEvents to any HTTP endpoint, and how it learns to trust them.

Source: https://github.com/cloudevents/spec/tree/ce@v1.0.2
        (http-protocol-binding.md section 3, http-webhook.md sections 2 and 4)
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar

import aiohttp

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    ConfigError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
    UnprovenError,
)
from bridge.foundation.rate_limit import Pace
from bridge.net.http_client import (
    Request,
    exchange,
    failure,
    redact,
    revealed,
    turn,
)
from bridge.net.reachability import reach
from bridge.net.tls import Tls
from bridge.sinks.base import Preview, Resources
from bridge.sinks.webhook.auth import (
    Auth,
    auth_of,
)
from bridge.sinks.webhook.body import Shape
from bridge.sinks.webhook.config import WebhookKeys
from bridge.sinks.webhook.content_mode import Rendered
from bridge.sinks.webhook.handshake import (
    ORIGIN,
    granted_rate,
    origin_of,
    question,
)
from bridge.sinks.webhook.headers import revealed_value
from bridge.sinks.webhook.signing import signed
from bridge.sinks.webhook.template import TemplateFaultError

_SECRET = "<secret>"  # noqa: S105 - what stands for one  # nosec B105


class WebhookSinkConfig(WebhookKeys, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "webhook"``."""

    repeats: ClassVar[bool] = True

    @asynccontextmanager
    async def open(self, resources: Resources) -> AsyncIterator["WebhookSink"]:
        """Fill in placeholders; nothing is connected before the first delivery.

        Raises:
            ConfigError: a placeholder has no value on this machine, or the template
                cannot be read any more.
            MissingExtraError: Jinja2 is wanted and not installed.
        """
        yield WebhookSink(
            config=self,
            shape=self.shape,
            render=self._renderer(),
            expanded=self._expanded(resources),
            origin=self._origin(resources),
            auth=auth_of(
                self.auth_meant,
                clock=resources.clock,
                timeout=self.timeout,
                proxy=self.proxy,
            ),
            tls=Tls(self.tls_files),
            http=resources.http,
            pace=resources.pace,
            clock=resources.clock,
        )

    def _renderer(self) -> Callable[[CloudEvent], Rendered]:
        try:
            return self.shape.renderer()
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
        """Ask whether the endpoint is there; see ``SinkConfig.reach``."""
        async with self.open(resources) as sink:
            return await sink.reach()

    async def preview(self, resources: Resources, event: CloudEvent) -> Preview:
        """Return what would be posted; see ``SinkConfig.preview``."""
        async with self.open(resources) as sink:
            return sink.preview(event)


@dataclass(slots=True, kw_only=True)
class WebhookSink:
    """POSTs each event to one URL.

    Attributes:
        render: makes headers and body of an event.
        expanded: the headers that stand in the configuration, filled in.
        origin: who asks for permission; None = nobody is asked.
    """

    config: WebhookKeys
    shape: Shape
    render: Callable[[CloudEvent], Rendered]
    expanded: Mapping[str, str] = field(repr=False)
    origin: str | None
    auth: Auth
    tls: Tls
    http: aiohttp.ClientSession
    pace: Pace
    clock: Clock
    _is_settled: bool = False  # whether the question of permission is
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def deliver(self, event: CloudEvent) -> None:
        """POST the event; see ``Sink.deliver``.

        Raises:
            DeliveryError: as ``bridge.net.http_client`` maps it.
        """
        try:
            await self._ask()
            await self._post(event)
        except RefusedDeliveryError:
            self._is_settled = False
            self.auth.was_refused()
            raise
        if self.config.handshake == "attempt":
            self._is_settled = True  # who takes events and answers nothing never will

    async def reach(self) -> str:
        """Ask whether the endpoint is there; see ``SinkConfig.reach``.

        Raises:
            DeliveryError: it is not, or does not allow what it has to.
            UnprovenError: it is, and its answer says no more.
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
        """Say what came of the question for permission; "" = nothing was proven.

        Raises:
            DeliveryError: it does not allow what it has to.
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
        content, body = self._rendered(event)
        packed, _ = self.shape.packed(content, body)
        headers = self._shown() | self._origin_header() | packed
        if self.config.signature is not None:
            headers |= self._signature(event, body) | {"webhook-signature": _SECRET}
        target = redact(revealed(self.config.url, "url"))
        lines = (f"{name}: {value}" for name, value in headers.items())
        return Preview(head=(f"POST {target}", *lines), body=body)

    def _shown(self) -> dict[str, str]:
        """Return the headers of the configuration as anybody may see them."""
        shown = {
            name: self.expanded[name]
            if value.is_literal and not value.holds_secret(name)
            else _SECRET
            for name, value in self.config.headers.items()
        }
        if (auth := self.config.auth_meant) is not None:
            shown[auth.header] = auth.shown
        return shown

    async def _ask(self) -> None:
        """Ask for permission: once, and again after a refusal."""
        if self.origin is None or self._is_settled:
            return
        name, seconds = self.config.name, self.config.timeout
        async with turn(self._asking, seconds=seconds, what=f"{name}: handshake"):
            if not self._is_settled:
                await self._settle(self.origin)
            elif (rate := self.pace.granted) is not None:  # another one has asked
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
            return  # the delivery will show whether anybody is there
        self.pace.grant(rate, self.clock.monotonic())
        self._is_settled = True

    async def _permission(self, origin: str) -> float | None:
        """Return how many deliveries a second are allowed; None = any number.

        Raises:
            RefusedDeliveryError: none is.
            TransientDeliveryError: it is not known now.
        """
        asked = question(origin, self.pace.most)
        request = replace(await self._request(asked), method="OPTIONS")
        target = redact(request.url)
        answer = await exchange(self.http, request, target)
        error = failure(answer.status, target=target, retry_after=answer.retry_after)
        is_busy = isinstance(error, TransientDeliveryError) and answer.status != 501
        if error and is_busy and self.config.handshake == "required":
            raise error
        return granted_rate(answer, origin=origin, target=target)

    async def _post(self, event: CloudEvent) -> None:
        content, body = self._rendered(event)
        headers = content | self._signature(event, body)
        request = await self._request(*self.shape.packed(headers, body))
        target = redact(request.url)
        answer = await exchange(self.http, request, target)
        if error := self.shape.judge(answer, target):
            raise error

    def _rendered(self, event: CloudEvent) -> Rendered:
        headers, body = self.render(event)
        known = self.shape.known
        return headers | dict(known.headers(event)) if known else headers, body

    def _signature(self, event: CloudEvent, body: bytes) -> dict[str, str]:
        if self.config.signature is None:
            return {}
        return signed(self.config.signature, event.id, body, self.clock.now())

    async def _request(self, headers: dict[str, str], body: bytes = b"") -> Request:
        config, url = self.config, revealed(self.config.url, "url")
        auth = await self.auth.headers(url)
        return Request(
            url=url,
            headers=self._configured() | self._origin_header() | auth | headers,
            body=body,
            timeout=config.timeout,
            connect_timeout=config.connect_timeout,
            proxy=revealed(config.proxy, "proxy") if config.proxy else None,
            tls=self.tls.context(),
        )

    def _configured(self) -> dict[str, str]:
        """Return the headers of the configuration; secrets are read anew."""
        return {
            name: self.expanded.get(name) or revealed_value(value, f"headers.{name}")
            for name, value in self.config.headers.items()
        }

    def _origin_header(self) -> dict[str, str]:
        return {} if self.origin is None else {ORIGIN: self.origin}
