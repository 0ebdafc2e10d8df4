"""Headers and body of an event, as the HTTP binding of CloudEvents defines them.

Source: https://github.com/cloudevents/spec/tree/ce@v1.0.2
        (http-protocol-binding.md section 3)
"""

from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import quote

import orjson

from bridge.events.cloudevent import BATCH_TYPE, STRUCTURED_TYPE, CloudEvent

ContentMode = Literal["structured", "binary", "batch", "array", "template"]
Rendered = tuple[dict[str, str], bytes]

# All characters that need no encoding: U+0021 to U+007E except double quote, percent.
_UNENCODED = "".join(chr(c) for c in range(0x21, 0x7F) if chr(c) not in '"%')


def render_structured(event: CloudEvent) -> Rendered:
    """Return headers and body of an event in structured mode."""
    return _content(STRUCTURED_TYPE), event.to_json()


def render_batch(event: CloudEvent) -> Rendered:
    """Return headers and body of a batch of one event."""
    return _content(BATCH_TYPE), b"[" + event.to_json() + b"]"


def render_array(event: CloudEvent) -> Rendered:
    """Return headers and body of a plain JSON array of one event."""
    return {"Content-Type": "application/json"}, b"[" + event.to_json() + b"]"


def render_binary(event: CloudEvent) -> Rendered:
    """Return headers and body of an event in binary mode."""
    attributes = event.attributes()
    content_type = str(attributes.pop("datacontenttype"))
    named = {f"ce-{k}": header_value(str(v)) for k, v in attributes.items()}
    return {**named, "Content-Type": content_type}, orjson.dumps(event.data)


def header_value(text: str) -> str:
    """Percent-encode an attribute for a header, as the HTTP binding requires."""
    return quote(text, safe=_UNENCODED)


def _content(kind: str) -> dict[str, str]:
    return {"Content-Type": f"{kind}; charset=utf-8"}


RENDER: Mapping[ContentMode, Callable[[CloudEvent], Rendered]] = {
    "structured": render_structured,
    "binary": render_binary,
    "batch": render_batch,
    "array": render_array,
}
