"""Find out whether Slack refuses a message, and with which error code. Pure.

Source:  docs.slack.dev/reference/methods/chat.postMessage,
         docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from bridge.simulator.errors import SimulatorError

_MOST_ATTACHMENTS: Final = 100
# For all blocks together. Slack enforces it, but does not document it:
# slackapi/bolt-js#2509.
_LONGEST_BLOCKS: Final = 13_200


class Refusal(Struct, frozen=True):
    """Slack's refusal of a message.

    Attributes:
        code: Slack's error code.
        details: the exact faults, each with a JSON pointer; may be empty.
    """

    code: str
    details: Sequence[str] = ()


class RefusedError(SimulatorError):
    """Slack refuses a request.

    Args:
        code: Slack's error code.
        details: the exact faults.
        members: members of the answer besides ``ok`` and ``error``.
    """

    def __init__(
        self, code: str, details: Sequence[str] = (), **members: object
    ) -> None:
        super().__init__(code)
        self.code = code
        self.details = details
        self.members = members


class RateError(SimulatorError):
    """A request is above a rate limit.

    Args:
        seconds: how long to wait.
    """

    def __init__(self, seconds: int) -> None:
        super().__init__("ratelimited")
        self.seconds = seconds


def refusal(message: object) -> str | None:
    """Return the error code with which Slack refuses a message; None: accepted.

    Args:
        message: the body as JSON; text if it is not JSON.
    """
    found = judge(message)
    return found.code if found else None


def judge(message: object) -> Refusal | None:
    """Return why Slack refuses a message; None: accepted."""
    if not isinstance(message, Mapping):
        return Refusal("invalid_payload")
    text, attachments = message.get("text"), message.get("attachments")
    if not text and not message.get("blocks") and not attachments:
        return Refusal("no_text")
    if attachments is not None and (code := _attachments(attachments)):
        return Refusal(code)
    if faults := all_faults(message):
        return Refusal("invalid_blocks", faults)
    if characters([each for _, each in blocks_of(message)]) > _LONGEST_BLOCKS:
        return Refusal("msg_blocks_too_long")
    return None


def _attachments(given: object) -> str | None:
    if not isinstance(given, list):
        return "invalid_attachments"
    if len(given) > _MOST_ATTACHMENTS:
        return "too_many_attachments"
    is_good = all(isinstance(each, Mapping) for each in given)
    return None if is_good else "invalid_attachments"


# -- Find the faults of blocks: Slack's texts, with JSON pointers. Pure ----------------
#
# Source:  docs.slack.dev/reference/block-kit/blocks, …/block-elements,
#          …/composition-objects; the texts as in slackapi/bolt-js and others


MOST_BLOCKS: Final = 50
_MOST_FIELDS: Final = 10
_MOST_ELEMENTS: Final = {"context": 10, "actions": 25}
_LONGEST_ID: Final = 255
_LONGEST_VALUE: Final = 2000
_LONGEST_URL: Final = 3000
_LONGEST_MARKDOWN: Final = 12_000
_ANY_TEXT: Final = frozenset({"plain_text", "mrkdwn"})
_PLAIN: Final = frozenset({"plain_text"})
_STYLES: Final = frozenset({"primary", "danger"})
_CONFIRM: Final = {
    "title": (100, _PLAIN),
    "text": (300, _ANY_TEXT),
    "confirm": (30, _PLAIN),
    "deny": (30, _PLAIN),
}
_BLOCKS: Final = frozenset(
    {
        "actions",
        "context",
        "divider",
        "file",
        "header",
        "image",
        "input",
        "markdown",
        "rich_text",
        "section",
        "table",
        "video",
    }
)

Table = Mapping[str, object]


def faults(blocks: object, at: str = "/blocks") -> Iterator[str]:
    """Yield faults, such as ``must be more than 0 characters [json-pointer:…]``.

    Args:
        blocks: the value of ``blocks``.
        at: the JSON pointer of ``blocks`` in the message.
    """
    if not isinstance(blocks, list):
        yield _fault("must provide an array", at)
        return
    yield from _counted(blocks, at, 0, MOST_BLOCKS)
    for place, block in enumerate(blocks):
        yield from _block(block, f"{at}/{place}")
    yield from _repeated(blocks, "block_id", at)


def all_faults(message: Table) -> list[str]:
    """Return the faults of the blocks of a message and of its attachments."""
    return [each for at, blocks in blocks_of(message) for each in faults(blocks, at)]


def blocks_of(message: Table) -> list[tuple[str, object]]:
    """Return each ``blocks`` of a message and its attachments, with its pointer."""
    own, attachments = message.get("blocks"), message.get("attachments")
    below = enumerate(attachments) if isinstance(attachments, list) else ()
    found = [
        (f"/attachments/{place}/blocks", each.get("blocks"))
        for place, each in below
        if isinstance(each, Mapping)
    ]
    return [each for each in (("/blocks", own), *found) if each[1] is not None]


def characters(value: object) -> int:
    """Return the number of characters in the texts of blocks, or of a part of them."""
    if isinstance(value, list):
        return sum(map(characters, value))
    if not isinstance(value, Mapping):
        return 0
    text = value.get("text")
    own = len(text) if isinstance(text, str) else 0
    return own + sum(map(characters, value.values()))


def _block(block: object, at: str) -> Iterator[str]:
    if not isinstance(block, Mapping):
        yield _fault("must provide an object", at)
        return
    kind = block.get("type")
    if not _is_one_of(kind, _BLOCKS):
        yield _fault(f"unsupported type: {kind}", f"{at}/type")
        return
    yield from _string(block, "block_id", _LONGEST_ID, at)
    match kind:
        case "section":
            yield from _section(block, at)
        case "header":
            yield from _text(block.get("text"), f"{at}/text", 150, _PLAIN)
        case "context" | "actions":
            yield from _elements(block.get("elements"), f"{at}/elements", kind)
        case "markdown":
            yield from _string(block, "text", _LONGEST_MARKDOWN, at, is_needed=True)
        case "image":
            yield from _string(block, "alt_text", 2000, at, is_needed=True)


def _section(block: Table, at: str) -> Iterator[str]:
    text, fields = block.get("text"), block.get("fields")
    if text is None and fields is None:
        yield _fault("missing required field: text", at)
    if text is not None:
        yield from _text(text, f"{at}/text", 3000)
    if isinstance(fields, list):
        yield from _counted(fields, f"{at}/fields", 1, _MOST_FIELDS)
        for place, field in enumerate(fields):
            yield from _text(field, f"{at}/fields/{place}", 2000)
    elif fields is not None:
        yield _fault("must provide an array", f"{at}/fields")
    if (accessory := block.get("accessory")) is not None:
        yield from _element(accessory, f"{at}/accessory")


def _elements(elements: object, at: str, kind: str) -> Iterator[str]:
    if not isinstance(elements, list):
        yield _fault("must provide an array", at)
        return
    yield from _counted(elements, at, 1, _MOST_ELEMENTS[kind])
    for place, element in enumerate(elements):
        yield from _element(element, f"{at}/{place}", is_in_context=kind == "context")
    yield from _repeated(elements, "action_id", at)


def _element(element: object, at: str, *, is_in_context: bool = False) -> Iterator[str]:
    if not isinstance(element, Mapping) or not isinstance(element.get("type"), str):
        yield _fault("must provide an object with a type", at)
        return
    is_text = element["type"] in _ANY_TEXT
    if is_in_context != (is_text or element["type"] == "image"):
        yield _fault(f"unsupported type: {element['type']}", f"{at}/type")
    elif is_text:
        yield from _text(element, at, 3000)
    elif element["type"] == "button":
        yield from _button(element, at)


def _button(button: Table, at: str) -> Iterator[str]:
    yield from _text(button.get("text"), f"{at}/text", 75, _PLAIN)
    yield from _string(button, "action_id", _LONGEST_ID, at)
    yield from _string(button, "value", _LONGEST_VALUE, at)
    yield from _string(button, "url", _LONGEST_URL, at)
    yield from _style(button, at)
    if (confirm := button.get("confirm")) is not None:
        yield from _confirm(confirm, f"{at}/confirm")


def _confirm(confirm: object, at: str) -> Iterator[str]:
    if not isinstance(confirm, Mapping):
        yield _fault("must provide an object", at)
        return
    for name, (most, kinds) in _CONFIRM.items():
        yield from _text(confirm.get(name), f"{at}/{name}", most, kinds)
    yield from _style(confirm, at)


def _style(element: Table, at: str) -> Iterator[str]:
    style = element.get("style")
    if style is not None and not _is_one_of(style, _STYLES):
        yield _fault("must be a valid enum value", f"{at}/style")


def _text(
    text: object, at: str, most: int, kinds: frozenset[str] = _ANY_TEXT
) -> Iterator[str]:
    if not isinstance(text, Mapping):
        yield _fault("must provide an object", at)
    elif not _is_one_of(text.get("type"), kinds):
        yield _fault(f"unsupported type: {text.get('type')}", f"{at}/type")
    else:
        yield from _string(text, "text", most, at, is_needed=True)


def _string(
    holder: Table, name: str, most: int, at: str, *, is_needed: bool = False
) -> Iterator[str]:
    value = holder.get(name)
    if value is None and not is_needed:
        return
    if not isinstance(value, str):
        yield _fault("must provide a string", f"{at}/{name}")
    elif not value:
        yield _fault("must be more than 0 characters", f"{at}/{name}")
    elif len(value) > most:
        yield _fault(f"must be less than {most + 1} characters", f"{at}/{name}")


def _counted(items: list[object], at: str, least: int, most: int) -> Iterator[str]:
    if len(items) < least:
        yield _fault(f"no less than {least} items allowed", at)
    if len(items) > most:
        yield _fault(f"no more than {most} items allowed", at)


def _repeated(items: list[object], name: str, at: str) -> Iterator[str]:
    """Yield a fault for each id that an earlier item has, too."""
    tables = (
        (place, item) for place, item in enumerate(items) if isinstance(item, Mapping)
    )
    ids = [(place, str(item[name])) for place, item in tables if item.get(name)]
    for number, (place, own) in enumerate(ids):
        if own in {other for _, other in ids[:number]}:
            yield _fault(f"`{name}` already exists", f"{at}/{place}/{name}")


def _is_one_of(value: object, words: frozenset[str]) -> bool:
    return isinstance(value, str) and value in words


def _fault(words: str, at: str) -> str:
    return f"{words} [json-pointer:{at}]"


# -- Slack's rate limits. Pure: the caller passes the time -----------------------------
#
# Each key has a bucket: a full bucket allows a burst, and it fills at a constant rate.
#
# Source:  docs.slack.dev/apis/web-api/rate-limits: posting is a message a second for
#          each channel, with bursts allowed for short times (of unknown size);
#          the other methods have tiers of 20, 50 and 100 calls a minute


_MOST_BUCKETS: Final = 10_000
_ROUNDING: Final = 1e-6


class Rate(Struct, frozen=True):
    """Calls per second, and the largest burst."""

    per_second: float
    burst: int


POSTS: Final = Rate(1.0, 3)
TIER_2: Final = Rate(20 / 60, 20)
TIER_3: Final = Rate(50 / 60, 50)
TIER_4: Final = Rate(100 / 60, 100)


class Limiter(Struct):
    """The buckets, by their keys."""

    _left: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, key: str, rate: Rate, now: float) -> int:
        """Return 0 if a call may pass, else the seconds to wait.

        Args:
            key: the bucket.
            rate: the limit.
            now: seconds since the epoch.
        """
        left, at = self._left.pop(key, (float(rate.burst), now))
        left = min(rate.burst, left + max(0.0, now - at) * rate.per_second)
        is_free = left > 1 - _ROUNDING
        self._left[key] = (left - 1 if is_free else left, now)
        while len(self._left) > _MOST_BUCKETS:
            del self._left[next(iter(self._left))]
        return 0 if is_free else max(1, math.ceil((1 - left) / rate.per_second))
