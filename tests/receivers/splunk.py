"""The HTTP Event Collector, with the codes that Splunk documents.

Source: https://help.splunk.com/en/splunk-enterprise/get-data-in/collect-http-event-data
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.receivers.serving import Post, Reply, Way, json_reply

TOKEN = "11111111-2222-3333-4444-555555555555"
_TEXTS = {
    0: (200, "Success"),
    1: (403, "Token disabled"),
    2: (401, "Token is required"),
    3: (401, "Invalid authorization"),
    4: (403, "Invalid token"),
    5: (400, "No data"),
    6: (400, "Invalid data format"),
    7: (400, "Incorrect index"),
    8: (500, "Internal server error"),
    9: (503, "Server is busy"),
    10: (400, "Data channel is missing"),
    11: (400, "Invalid data channel"),
    12: (400, "Event field is required"),
    13: (400, "Event field cannot be blank"),
    14: (400, "ACK is disabled"),
    15: (400, "Error in handling indexed fields"),
    16: (400, "Query string authorization is not enabled"),
}
_ENVELOPE = {"time", "host", "source", "sourcetype", "index", "event", "fields"}


@dataclass(slots=True)
class Splunk:
    """One token of a collector.

    Attributes:
        says: a code that is answered whatever is sent; None = by the rules.
        uses_ack: whether the token has indexer acknowledgement, which wants a channel.
        bad: ids of events whose envelope it cannot read.
    """

    says: int | None = None
    uses_ack: bool = False
    bad: frozenset[str] = frozenset()
    taken: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, post: Post) -> Reply:
        if post.path != "/services/collector/event":
            return Reply(404)
        code, found = self._judged(post)
        self.taken += found if not code else []
        status, text = _TEXTS[code]
        said: dict[str, object] = {"text": text, "code": code}
        faults = [self._fault(one) for one in found]
        if code and any(faults):
            place = next(place for place, fault in enumerate(faults) if fault)
            said["invalid-event-number"] = place
            self.taken += found[:place]  # it has read these before
        return json_reply(status, said)

    def _fault(self, envelope: dict[str, Any]) -> int:
        event = envelope.get("event")
        is_bad = isinstance(event, dict) and event.get("id") in self.bad
        return 6 if is_bad else _fault(envelope)

    def _judged(self, post: Post) -> tuple[int, list[dict[str, Any]]]:
        if (code := self._refused(post)) is not None:
            return code, []
        if not post.body.strip():
            return 5, []
        found = []
        try:
            found = _envelopes(post.body.decode())
        except ValueError:
            return 6, []
        codes = [code for one in found if (code := self._fault(one))]
        return (codes[0] if codes else 0), found

    def _refused(self, post: Post) -> int | None:
        if "Authorization" not in post.headers:
            return 16 if "token" in post.query else 2
        if post.scheme != "Splunk":
            return 3
        if post.credentials != TOKEN:
            return 4
        if self.uses_ack:
            channel = post.headers.get("X-Splunk-Request-Channel")
            if channel is None:
                return 10
            try:
                UUID(channel)
            except ValueError:
                return 11
        return self.says


def _envelopes(text: str) -> list[dict[str, Any]]:
    """Read objects that stand one after the other."""
    decoder, found, at = json.JSONDecoder(parse_float=str, parse_int=str), [], 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        found += value if isinstance(value, list) else [value]
        at += len(text[at:]) - len(text[at:].lstrip())
    if not all(isinstance(one, dict) and one.keys() <= _ENVELOPE for one in found):
        raise ValueError("no envelope")
    return found


def _fault(envelope: dict[str, Any]) -> int:
    if "event" not in envelope:
        return 12
    if envelope["event"] in ("", None):
        return 13
    if not re.fullmatch(r"\d{1,12}(\.\d{1,9})?", envelope.get("time", "0")):
        return 15  # an exponent is none either
    fields = envelope.get("fields", {})
    flat = isinstance(fields, dict) and all(
        isinstance(v, str) and v for v in fields.values()
    )
    names = (envelope.get(key, "x") for key in ("host", "source", "sourcetype"))
    return 0 if flat and all(isinstance(n, str) and n for n in names) else 15


WAYS = {
    "splunk-hec": Way(
        Splunk,
        "/services/collector/event",
        {"Authorization": f"Splunk {TOKEN}"},
        {"auth": {"token": TOKEN}},
        {"SPLUNK_HEC_TOKEN": TOKEN},
        wrong={"auth": {"type": "bearer", "token": "wrong"}},
    )
}
