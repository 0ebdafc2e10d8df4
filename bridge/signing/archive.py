"""Finds CloudEvents in what a receiver has kept, and checks their signatures. Pure.

A line may be an event (sink ``file``, the archive of a webhook), a list of events (a
batch), or JSON around one of them:

    {"event": {…}}                   a request to Splunk's HEC
    {"result": {"_raw": "{…}"}}      an export of Splunk
    {"event": {"original": "{…}"}}   a document of Elastic, also below ``_source``
    {"Body": "{…}"}                  a message of Event Hubs

Source: config/signing.md
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
import orjson
from msgspec import Struct, field

from bridge.signing.dsse import Opinion, SignedEvent, Verdict, Verifier, judge

_AROUND = ("event", "result", "_source", "_raw", "original", "Body", "CloudEvent")
_DEEPEST = 4
GOOD = (Verdict.HOLDS, Verdict.REFORMATTED)


def events_in(text: bytes, depth: int = 0) -> Iterator[bytes]:
    """Yield the CloudEvents in a line, each as its very bytes."""
    if depth > _DEEPEST:
        return
    try:
        if text.startswith(b"["):
            for one in msgspec.json.decode(text, type=list[msgspec.Raw]):
                yield from events_in(bytes(one), depth + 1)
        elif text.startswith(b'"'):
            yield from events_in(msgspec.json.decode(text, type=str).encode(), depth)
        elif text.startswith(b"{"):
            yield from _events_of(text, depth)
    except (ValueError, RecursionError):
        return


def _events_of(text: bytes, depth: int) -> Iterator[bytes]:
    members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    if "specversion" in members:
        yield text
        return
    for name in _AROUND:
        if name in members:
            yield from events_in(bytes(members[name]), depth + 1)


class Found(Struct, frozen=True, kw_only=True):
    """An event of a file, and the verdict on it.

    Attributes:
        line: where it is, from 1.
        id: of the CloudEvent; "" = the line holds no event.
    """

    line: int
    id: str
    opinion: Opinion


class Tally(Struct):
    """How many events have which verdict, and how many lines hold no event."""

    verdicts: dict[Verdict, int] = field(default_factory=dict)
    no_event: int = 0

    @property
    def is_good(self) -> bool:
        """Whether there are events, and every signature holds."""
        return bool(self.verdicts) and self.verdicts.keys() <= set(GOOD)


def examined(
    lines: Iterable[bytes], keys: Mapping[str, Verifier], tally: Tally
) -> Iterator[Found]:
    """Yield the events of lines with their verdicts, and count them in ``tally``."""
    for number, line in enumerate(lines, 1):
        is_empty = True
        for text in events_in(line.strip()):
            is_empty = False
            opinion, name = _judged(text, keys)
            count = tally.verdicts.get(opinion.verdict, 0)
            tally.verdicts[opinion.verdict] = count + 1
            yield Found(line=number, id=name, opinion=opinion)
        tally.no_event += is_empty and bool(line.strip())


def _judged(text: bytes, keys: Mapping[str, Verifier]) -> tuple[Opinion, str]:
    try:
        event = SignedEvent.parse(text)
    except ValueError:
        return Opinion(verdict=Verdict.WRONG), ""
    return judge(event, keys), str(event.attributes.get("id"))


def is_one_document(start: bytes) -> bool:
    """Whether a file is one JSON document of several lines, such as an array."""
    first = start.lstrip()
    if not first.startswith((b"[", b"{")):
        return False
    try:
        orjson.loads(first.splitlines()[0])
    except orjson.JSONDecodeError:
        return True
    return False
