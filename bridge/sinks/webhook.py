"""CloudEvents to any HTTP endpoint, in one of the three modes of the HTTP binding.

Source: https://github.com/cloudevents/spec/tree/ce@v1.0.2
        (http-protocol-binding.md section 3, http-webhook.md section 2)
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

import aiohttp
import msgspec
import orjson

from bridge.cloudevent import BATCH_TYPE, STRUCTURED_TYPE, CloudEvent
from bridge.errors import ConfigError, Reason, RefusedDeliveryError
from bridge.options import Address, Duration, unknown_placeholders
from bridge.sinks.base import Resources, SinkConfig
from bridge.transport import (
    Request,
    exchange,
    failure,
    is_http,
    reach,
    redact,
    revealed,
)

ContentMode = Literal["structured", "binary", "batch"]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# These are made by the sink or by HTTP itself; a second one would be ambiguous.
_OWN_HEADERS = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# All that may stand unencoded: U+0021 to U+007E without the double quote and percent.
_UNENCODED = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')


class WebhookSinkConfig(SinkConfig, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "webhook"``."""

    url: Address
    content_mode: ContentMode = "structured"
    headers: dict[str, Address] = msgspec.field(default_factory=dict)
    timeout: Duration = Duration(10)
    proxy: Address | None = None

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check addresses and headers, without showing them."""
        for key, address in (("url", self.url), ("proxy", self.proxy)):
            if address is not None and not is_http(address.reveal()):
                yield key, "must be an http:// or https:// URL"
        if not self.timeout:
            yield "timeout", "must be more than 0s"
        names = [name.lower() for name in self.headers]
        for name, value in self.headers.items():
            for what in _header_faults(name, value):
                yield f"headers.{name}", what
            if names.count(name.lower()) > 1:
                yield f"headers.{name}", "is given twice: case makes no difference"

    @asynccontextmanager
    async def open(self, resources: Resources) -> AsyncIterator["WebhookSink"]:
        """Fill in placeholders; nothing is connected before the first delivery.

        Raises:
            ConfigError: a placeholder has no value on this machine.
        """
        try:
            expanded = {
                name: resources.expand(value.reference)
                for name, value in self.headers.items()
                if value.is_literal
            }
        except ValueError as error:
            raise ConfigError([f"sinks.{self.name}.headers: {error}"]) from error
        yield WebhookSink(config=self, expanded=expanded, http=resources.http)

    async def reach(self, resources: Resources) -> str:
        """Ask whether the endpoint is there; see ``SinkConfig.reach``."""
        async with self.open(resources) as sink:
            return await sink.reach()


def _header_faults(name: str, value: Address) -> Iterator[str]:
    if not _TOKEN.fullmatch(name):
        yield "is no name of a header"
    elif name.lower() in _OWN_HEADERS or name.lower().startswith("ce-"):
        yield "is set by the sink itself"
    if _CONTROL.search(value.reveal()):
        yield "must not hold line breaks or other control characters"
    # What a variable or file holds may well have braces of its own; and what stands
    # here openly may be a secret all the same, so it is not repeated.
    if value.is_literal and unknown_placeholders(value.reference):
        yield "unknown placeholder; allowed are {vm_id}, {vm_name} and {group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSink:
    """POSTs each event to one URL.

    Attributes:
        expanded: the headers that stand in the configuration, filled in.
    """

    config: WebhookSinkConfig
    expanded: Mapping[str, str] = field(repr=False)
    http: aiohttp.ClientSession

    async def deliver(self, event: CloudEvent) -> None:
        """POST the event; see ``Sink.deliver``.

        Raises:
            DeliveryError: as ``bridge.transport`` maps it.
        """
        headers, body = _RENDER[self.config.content_mode](event)
        request = self._request(headers, body)
        target = redact(request.url)
        answer = await exchange(self.http, request, target)
        if error := failure(
            answer.status, target=target, retry_after=answer.retry_after
        ):
            raise error

    async def reach(self) -> str:
        """Ask whether the endpoint is there; see ``SinkConfig.reach``.

        Raises:
            DeliveryError: it is not.
        """
        request = self._request({}, b"")
        return await reach(self.http, request, redact(request.url))

    def _request(self, headers: dict[str, str], body: bytes) -> Request:
        proxy = self.config.proxy
        return Request(
            url=revealed(self.config.url, "url"),
            headers=self._configured() | headers,
            body=body,
            timeout=self.config.timeout,
            proxy=revealed(proxy, "proxy") if proxy else None,
        )

    def _configured(self) -> dict[str, str]:
        """Return the headers of the configuration; secrets are read anew."""
        headers = {
            name: self.expanded.get(name) or revealed(value, f"headers.{name}")
            for name, value in self.config.headers.items()
        }
        for name, value in headers.items():
            if _CONTROL.search(value):
                text = f"headers.{name} holds line breaks or other control characters"
                raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
        return headers


Rendered = tuple[dict[str, str], bytes]


def render_structured(event: CloudEvent) -> Rendered:
    """Return headers and body of an event in structured mode."""
    return _content(STRUCTURED_TYPE), event.to_json()


def render_batch(event: CloudEvent) -> Rendered:
    """Return headers and body of a batch of one event."""
    return _content(BATCH_TYPE), b"[" + event.to_json() + b"]"


def render_binary(event: CloudEvent) -> Rendered:
    """Return headers and body of an event in binary mode."""
    attributes = event.attributes()
    content_type = str(attributes.pop("datacontenttype"))
    named = {f"ce-{k}": header_value(str(v)) for k, v in attributes.items()}
    return {**named, "Content-Type": content_type}, orjson.dumps(event.data)


def header_value(text: str) -> str:
    """Percent-encode an attribute for a header, as the HTTP binding has it."""
    return quote(text, safe=_UNENCODED)


def _content(kind: str) -> dict[str, str]:
    return {"Content-Type": f"{kind}; charset=utf-8"}


_RENDER: Mapping[ContentMode, Callable[[CloudEvent], Rendered]] = {
    "structured": render_structured,
    "binary": render_binary,
    "batch": render_batch,
}
