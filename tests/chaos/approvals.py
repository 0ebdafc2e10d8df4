"""The judge of approvals: what was posted, and how each message ended."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime

from tests.chaos.expectation import Reads
from tests.chaos.history import (
    Event,
    Got,
    History,
    Request,
    Sent,
    canonical_json,
    hashed,
    kind_of,
)

GOOD = frozenset({"relayed", "already-started"})
_ENTITY = "vm-approvals"
_STALE = 3.0  # a second by contract; the rest is for a machine that is busy
_DEAD_LETTERS = {
    "invalid": "InvalidMessage",
    "expired": "Expired",
    "unknown-event": "UnknownEvent",
    "denied": "Denied",
    "rejected": "RejectedByImds",
    "failed": "ImdsUnavailable",
}


class ApprovalCase:
    """The approvals of one round before the judge.

    Args:
        published: each event that a sink got, once.
        got: the same and more, with the times at which they came.
        outcomes: where outcomes are counted.
    """

    def __init__(
        self,
        *,
        history: History,
        reads: Reads,
        published: Sequence[Event],
        got: Sequence[Got],
        outcomes: Counter[str],
    ) -> None:
        self._history, self._reads = history, reads
        self._published, self._got = published, got
        self._counts = outcomes

    # -- POSTs -------------------------------------------------------------------

    def posts(self) -> Iterator[str]:
        """Nothing is posted but what was asked for and stands in the document."""
        decided = self._decided()
        latest: dict[int, Request] = {}
        for request in self._history.requests:
            if request.is_read:
                latest[request.life] = request
                continue
            for spelled in request.posted:
                fault = self._fault_of(request, spelled, latest, decided)
                if fault:
                    yield f"life {request.life} posted {spelled}: {fault}"

    def _decided(self) -> dict[tuple[str, str], float]:
        """Return since when an approval is known to be settled for the good."""
        decided: dict[tuple[str, str], float] = {}
        for got in self._got:
            if ".startrequest." in got.event["type"] and kind_of(got.event) in GOOD:
                data = got.event["data"]
                name = (data["request"]["messageId"], data["eventId"].upper())
                decided[name] = min(got.at, decided.get(name, math.inf))
        return decided

    def _fault_of(
        self,
        post: Request,
        spelled: str,
        latest: dict[int, Request],
        decided: dict[tuple[str, str], float],
    ) -> str | None:
        key, look = spelled.upper(), latest.get(post.life)
        if look is None or key not in look.events:
            return "the last document had it not"
        event = look.events[key]
        if event["EventStatus"] != "Scheduled" or event["EventId"] != spelled:
            return f"the last document had {event}"
        if post.at - look.at > _STALE:
            return f"the last document was {post.at - look.at:.1f} s old"
        if not any(
            sent.kind == "good"
            and key in sent.keys
            and sent.at <= look.at
            and post.at <= decided.get((sent.name, key), math.inf)
            for sent in self._history.sent
        ):
            return "no approval that was still open asked for it"
        return None

    # -- outcomes ----------------------------------------------------------------

    def outcomes(self) -> Iterator[str]:
        """Each message ends once for each EventId, in a way that can be true."""
        copies = Counter(sent.name for sent in self._history.sent)
        kinds = defaultdict[tuple[str, int], dict[str, str]](dict)
        for event in self._published:
            if ".startrequest." not in event["type"]:
                continue
            name, number = self._origin(event)
            if not number:
                yield f"outcome {event['id']} has the id of no message"
                continue
            key = str(event["data"]["eventId"] or "").upper()
            if key in kinds[name, number] and not self._history.degraded:
                yield f"{name} (number {number}) was published twice of {key}"
            kinds[name, number][key] = kind_of(event)
            self._counts[kind_of(event)] += 1
            yield from self._outcome(name, event)
        published = Counter(name for name, _ in kinds)
        if published != copies:
            more = published - copies
            yield f"outcomes of messages: missing {copies - published}, too many {more}"
        yield from self._letters(kinds)

    def _origin(self, event: Event) -> tuple[str, int]:
        """Return MessageId and sequence number that an outcome's id is made of."""
        data = event["data"]
        name = data["request"]["messageId"]
        for number in range(1, len(self._history.sent) + 1):
            cause = [_ENTITY, name, number, data["eventId"], data["outcome"]]
            if event["id"] == hashed(cause):
                return name, number
        return name, 0

    def _outcome(self, name: str, event: Event) -> Iterator[str]:
        data, kind = event["data"], kind_of(event)
        sent = next((s for s in self._history.sent if s.name == name), None)
        if sent is None:
            yield f"{kind} is published of {name}, which nobody sent"
            return
        key = str(data["eventId"] or "").upper()
        if (key or None) not in (sent.keys or (None,)):
            yield f"{name}: published of {key}, which it does not name"
        if kind not in self._possible(sent, key, data):
            yield f"{name}: {kind} of {key} cannot be true: {data}"

    def _possible(self, sent: Sent, key: str, data: Event) -> set[str]:
        """Return the outcomes that an approval may have had."""
        failed = {"failed"} if self._history.had_imds_faults else set[str]()
        if sent.kind in {"invalid", "undecodable"}:
            return {"invalid"}
        if sent.kind == "expired":
            return {"expired"} | failed
        if sent.kind == "unknown":
            return {"unknown-event"}
        states = {
            document.events[key]["EventStatus"]
            for document in self._reads.documents
            if key in document.events
        }
        possible = set[str]()
        observed = datetime.fromisoformat(data["observedAt"]).timestamp()
        if "Started" in states:
            possible.add("already-started")
        if states:
            possible.add("event-ended")
        if not self._reads.seen_by(key, observed - 1):
            possible.add("unknown-event")
        if sent.kind == "changed":
            return possible | ({"denied"} if states else set())
        return possible | self._relayed(key, data, observed)

    def _relayed(self, key: str, data: Event, observed: float) -> set[str]:
        is_taken = any(
            taken.key == key and taken.at <= observed + 1
            for taken in self._history.taken
        )
        begun = [
            request
            for request in self._history.requests
            if key in {each.upper() for each in request.posted}
        ]
        is_marked = key in self._history.marked or bool(begun)
        short = self._history.had_imds_faults and _notice(self._reads, key) < 60
        found = {"failed"} if short else set[str]()
        is_true = is_taken if data["confirmed"] else is_marked
        return found | ({"relayed"} if is_true else set())

    def twins(self) -> Iterator[str]:
        """Messages that were sent several times over are decided once."""
        published = defaultdict[tuple[str, str], set[str]](set)
        for event in self._published:
            if ".startrequest." in event["type"]:
                data = event["data"]
                published[data["request"]["messageId"], str(data["eventId"])].add(
                    canonical_json(data)
                )
        for (name, key), found in published.items():
            if len(found) > 1 and not self._history.degraded:
                yield f"{name}: published of {key} in {len(found)} ways: {found}"

    def replies(self) -> Iterator[str]:
        """Each message is answered once, with what was published of it."""
        published = {
            canonical_json(event["data"])
            for event in self._published
            if ".startrequest." in event["type"]
        }
        answers = defaultdict[str, dict[str, tuple[str, ...]]](dict)
        for reply in self._history.replies:
            known = answers[reply.name].setdefault(reply.number, reply.outcomes)
            if self._history.degraded:
                continue  # a kill forgets what was decided in memory
            if known != reply.outcomes:
                yield f"{reply.name}: reply {reply.number} has two contents"
            if not published.issuperset(reply.outcomes):
                yield f"{reply.name}: replied what was not published: {reply.outcomes}"
        sent = Counter(s.name for s in self._history.sent if s.kind != "undecodable")
        answered = Counter({name: len(found) for name, found in answers.items()})
        if answered != sent:
            yield f"replies: missing {sent - answered}, too many {answered - sent}"

    def _letters(self, kinds: dict[tuple[str, int], dict[str, str]]) -> Iterator[str]:
        """Exactly the messages that are to be dead letters are, for that reason."""
        wanted = Counter[tuple[str, str]]()
        sent = {each.name: each for each in self._history.sent}
        for (name, _), found in kinds.items():
            keys = sent[name].keys if name in sent else ()
            outcomes = [found.get(key, "") for key in keys or ("",)]
            if GOOD & set(outcomes):
                continue
            reasons = [_DEAD_LETTERS[o] for o in outcomes if o in _DEAD_LETTERS]
            wanted.update([(name, reason) for reason in reasons[:1]])
        there = Counter(self._history.dead)
        if there != wanted:
            yield f"dead letters: missing {wanted - there}, too many {there - wanted}"


def _notice(reads: Reads, key: str) -> float:
    """Return the shortest notice that any document gave of an event."""
    return min(
        (
            parsedate_to_datetime(event["NotBefore"]).timestamp() - document.at
            for document in reads.documents
            if (event := document.events.get(key)) and event["NotBefore"]
        ),
        default=0.0,
    )
