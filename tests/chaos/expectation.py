"""Which steps of an event may be published, by the documents that were served.

The first document of a life was kept for sure if the same life has asked IMDS for
anything after it: the forwarder waits until that one is on the disk. A later one is
written while the forwarder reads on: it was kept for sure if the same life has asked
for something much later, or if a later one was kept. The last ones of each life may or
may not have been kept. So for each EventId there are several possible pasts, which
mostly become one again as soon as the next life has read.

The rules of config/events.md stand here once more, in other words.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime

from tests.chaos.history import Event, Request, Taken, canonical_json

GONE = frozenset({"completed", "cancelled", "ended"})
WINDOW = 10.0
RETURN_WITHIN = 300.0
_LONGEST_WRITE = 7.0  # one that is under way, and the next; 3 s each at most


@dataclass(frozen=True, slots=True)
class Step:
    """What has to be published.

    Attributes:
        kinds: how it may be called: what ended may be published in more than one way.
        event: as JSON, as is ``before``; "" where there was none.
    """

    kinds: frozenset[str]
    event: str
    before: str
    announced: bool


@dataclass(frozen=True, slots=True)
class Past:
    """One way in which an event can have been observed so far.

    Attributes:
        event: as it was last seen, as JSON; "" = not there.
        number: the incarnation of the last document that was kept.
        fallen_to: the incarnation after a fall, while absence does not count.
        seen: when and in which life the event was seen last.
        shown: the incarnation of the document that showed the event last.
    """

    steps: tuple[Step, ...] = ()
    event: str = ""
    announced: bool = False
    number: int | None = None
    fallen_to: int | None = None
    fallen_at: float = 0.0
    seen: tuple[float, int] = (0.0, 0)
    shown: int = 0


@dataclass(frozen=True, slots=True)
class Reads:
    """The documents that were served.

    Attributes:
        kept: of each, whether it was kept for sure.
        taken: the POSTs that IMDS took.
        asked: keys that an approval names: a mark may stand where no POST was taken.
    """

    documents: Sequence[Request]
    kept: Sequence[bool]
    taken: Sequence[Taken]
    asked: frozenset[str]

    @classmethod
    def of(
        cls, requests: Sequence[Request], taken: Sequence[Taken], asked: frozenset[str]
    ) -> "Reads":
        """Sort out what was served, and what was kept."""
        last = {request.life: request for request in requests}
        reads = [request for request in requests if request.is_read]
        first = {read.life: read for read in reversed(reads)}
        return cls(
            documents=reads,
            kept=[
                read.at + _LONGEST_WRITE < last[read.life].at
                or (read is first[read.life] and read is not last[read.life])
                for read in reads
            ],
            taken=taken,
            asked=asked,
        )

    def keys(self) -> set[str]:
        """Return all EventIds that any document showed."""
        return {key for document in self.documents for key in document.events}

    def seen_by(self, key: str, at: float) -> bool:
        """Whether a document with the event was kept for sure by then."""
        return any(
            is_kept and document.at < at and key in document.events
            for document, is_kept in zip(self.documents, self.kept, strict=True)
        )


def pasts(reads: Reads, key: str) -> set[tuple[Step, ...]]:
    """Return every sequence of steps that may have been published of an event."""
    known, cut, life = {Past()}, set[Past](), 0
    for document, is_kept in zip(reads.documents, reads.kept, strict=True):
        if document.life != life:
            known, cut, life = known | cut, set(), document.life
        if not is_kept:
            cut |= known  # a kill came before it was on the disk: nor is a later one
        known = {_next(past, document, key, reads) for past in known}
    return {past.steps for past in known | cut}


def _next(past: Past, document: Request, key: str, reads: Reads) -> Past:
    past = _counted(past, document)
    event = document.events.get(key)
    if event is None:
        return _gone(past, document, key, reads)
    return _here(past, document, event)


def _counted(past: Past, document: Request) -> Past:
    """Note the incarnation, and whether absence counts."""
    number = document.number
    if past.number is not None and number < past.number:
        return replace(past, fallen_to=number, fallen_at=document.at)
    is_over = past.fallen_to is not None and (
        number > past.fallen_to or document.at - past.fallen_at >= RETURN_WITHIN
    )
    return replace(past, fallen_to=None) if is_over else past


def _here(past: Past, document: Request, event: Event) -> Past:
    text, is_started = canonical_json(event), event["EventStatus"] == "Started"
    announced = not is_started or (bool(past.event) and past.announced)
    steps = past.steps
    if text != past.event:
        begins = is_started and '"EventStatus": "Started"' not in past.event
        kind = "started" if begins else "updated" if past.event else "scheduled"
        steps += (Step(frozenset({kind}), text, past.event, announced),)
    return replace(
        past,
        steps=steps,
        event=text,
        announced=announced,
        number=document.number,
        seen=(document.at, document.life),
        shown=document.number,
    )


def _gone(past: Past, document: Request, key: str, reads: Reads) -> Past:
    before = replace(past, number=document.number)
    if not past.event or past.fallen_to is not None:
        return before
    kinds = frozenset({"completed"})
    if '"EventStatus": "Started"' not in past.event:
        kinds = _endings(past, document, key, reads)
    step = Step(kinds, past.event, past.event, past.announced)
    return replace(before, steps=(*past.steps, step), event="", announced=False)


def _endings(past: Past, document: Request, key: str, reads: Reads) -> frozenset[str]:
    """Return how the end of an event that had not started may be published."""
    gap, life = document.at - past.seen[0], past.seen[1]
    notice = _notice(past.event, document.at)
    is_posted = any(t.key == key and t.at <= document.at for t in reads.taken)
    is_next = document.number == past.shown + 1
    if not is_next or gap > WINDOW + 1 or is_posted or notice <= 4:
        return frozenset({"ended"})
    is_sure = life == document.life and gap < WINDOW - 1 and notice > 7
    if is_sure and key not in reads.asked:
        return frozenset({"cancelled"})
    return frozenset({"cancelled", "ended"})


def _notice(event: str, at: float) -> float:
    return parsedate_to_datetime(_not_before(event)).timestamp() - at


def _not_before(event: str) -> str:
    value: Mapping[str, str] = json.loads(event)
    return value["NotBefore"]
