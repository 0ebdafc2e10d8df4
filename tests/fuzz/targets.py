"""Everything that parses foreign bytes: how it is called, and what must hold of it.

A target takes any bytes. It returns where they were read, or refused with the one
error that the parser promises; whatever else it raises is a finding.
"""

import contextlib
import hashlib
import hmac
import io
import json
import math
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import orjson
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from approver import announcements, buttons, clicks, requests
from approver.errors import UnreadableError
from bridge.app import approve_reply
from bridge.app.approve_request import Approval, SeenEvent
from bridge.approvals.message import parse as parse_approval
from bridge.cli.approve import Answer
from bridge.configuration import load as config
from bridge.events.build import from_transition
from bridge.events.cloudevent import CloudEvent
from bridge.events.document import parse as parse_document
from bridge.events.document import parse_time
from bridge.events.identity import Identity
from bridge.events.transitions import diff
from bridge.events.watch import Moment, Watch
from bridge.foundation.errors import (
    ConfigError,
    MalformedApprovalError,
    MalformedDocumentError,
)
from bridge.net.http_client import retry_after
from bridge.servicebus.decode import read, readable
from bridge.simulator.errors import ScenarioError
from bridge.simulator.imds.scenario import parse_scenario
from bridge.simulator.servicebus.config import parse_entities
from bridge.simulator.servicebus.config_fields import ConfigError as EntitiesError
from bridge.sinks.base import ApprovalAddress
from bridge.sinks.slack.blocks import render
from tests.fuzz import outward, teams, wire
from tests.fuzz.target import Target, brief
from tests.support.builders import EVENT_ID, event_context_of, imds_event

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
DATA = Path(__file__).parents[1] / "data"
ROOT = Path(__file__).parents[2]
SECRET = "s" * 32
PREFIX = "sebridge"
_BOMB = b"[" * 100_000
# AMQP: a char, a list as a key, an array of nothing, an array of arrays, described
_ODD_VALUES = (
    *(b"\x73\0\0\0a", b"\xc1\x03\x02\x45\x40", b"\xf0\0\0\0\5\0\0\xff\xff\x40"),
    *(b"\xe0\x06\x01\xe0\x03\x01\x50\x07", b"\0" * 300, b"\0\xa3\x01x\xa1\x01y"),
)


def document(body: bytes) -> None:
    """Whatever is read can be diffed, published, posted to Slack and remembered."""
    try:
        found = parse_document(body)
    except MalformedDocumentError as error:
        brief(error)
        return
    now = Moment(at=NOW, monotonic=1.0)
    watch, steps = diff(Watch(), found, now, poll_interval=1, relayed=frozenset())
    for step in steps:
        shown = from_transition(
            event_context_of(),
            step,
            incarnation=found.incarnation,
            observed_at=NOW,
            repeats=0,
        )
        body = shown.event.to_json()
        assert len(body) <= 60 * 1024
        assert CloudEvent.from_json(body).to_json() == body
        orjson.dumps(render(shown.event))
    kept = watch.to_json()
    assert Watch.from_json(kept).to_json() == kept


def metadata(body: bytes) -> None:
    """Who this VM is, by instance metadata."""
    try:
        compute = orjson.loads(body)
    except orjson.JSONDecodeError:
        return
    if isinstance(compute, dict):
        who = Identity.from_metadata(compute)
        assert who.source is None or who.source.isprintable()
        with suppress(ValueError):
            who.expand("{vm_id}-{vm_name}-{group}")


def approval(packed: bytes) -> None:
    """An approval message: its properties as a line of JSON, then its body."""
    line, _, body = packed.partition(b"\n")
    try:
        properties = orjson.loads(line)
    except orjson.JSONDecodeError:
        properties, body = {}, packed
    if isinstance(properties, dict):
        _approval(body, properties)


def _approval(body: bytes, properties: Mapping[str, object]) -> None:
    try:
        found = parse_approval(body, properties, prefix=PREFIX)
    except MalformedApprovalError as error:
        brief(error)
        return
    assert 1 <= len(found.event_ids) <= 100
    assert all(one.strip() for one in found.event_ids)
    assert found.expires_at is None or found.expires_at.tzinfo is UTC


def amqp(payload: bytes) -> None:
    """A message as it comes off the wire: whatever it is, something of it is read."""
    taken = readable(payload)
    assert readable(taken) == taken
    decoded = decode_payload(memoryview(taken))
    frame: Any = (0, 0, bytes(16))
    message = ServiceBusReceivedMessage(decoded, frame=frame, receiver=None)
    received = read(message)
    if taken != payload:
        assert received.fault
        return
    _approval(received.body, received.application_properties)
    approve_reply._outcomes(message)


def reply(body: bytes) -> None:
    """A reply: what ``sebridge approve`` shows is lines that forge nothing."""
    message: Any = _Received(body)
    found = Answer(
        message_id="m",
        event_id=EVENT_ID,
        to=ApprovalAddress(namespace="n", entity="e", session=None),
        outcomes=approve_reply._outcomes(message),
    )
    for as_json in (True, False):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            found.show(as_json=as_json)
        assert shown.getvalue().endswith("\n")
        if as_json:
            json.loads(shown.getvalue())
        else:
            assert shown.getvalue()[:-1].isprintable()


@dataclass(frozen=True, slots=True)
class _Received:
    body: bytes


def cloudevent(body: bytes) -> None:
    """An event in the state file."""
    with suppress(msgspec.ValidationError):
        event = CloudEvent.from_json(body)
        assert event.to_json() == body
        orjson.dumps(render(event))


def from_event(body: bytes) -> None:
    """``sebridge approve --from-event``: what is taken is sent as the bridge reads."""
    try:
        seen = SeenEvent.parse(body)
        asked = Approval(
            id="1", event_id=seen.event_id, approved_event=seen.event
        ).as_event(prefix=PREFIX, host="h", now=NOW)
    except ValueError as error:
        brief(error)
        return
    assert parse_approval(asked.to_json(), {}, prefix=PREFIX).event_ids == (
        seen.event_id,
    )


def kept(body: bytes) -> None:
    """The checkpoint in the state file."""
    try:
        watch = Watch.from_json(body)
    except msgspec.DecodeError:
        return
    again = watch.to_json()
    assert Watch.from_json(again).to_json() == again


def wish(value: bytes) -> None:
    """Retry-After, in both its forms."""
    found = retry_after({"Retry-After": value.decode("latin-1")}, NOW)
    assert found is None or (found >= 0 and not math.isnan(found))


def date(value: bytes) -> None:
    """The Date header of IMDS, and NotBefore."""
    found = parse_time(value.decode("latin-1"))
    assert found is None or found.tzinfo is UTC


def entities(body: bytes) -> None:
    """The entity file of the simulator."""
    with suppress(EntitiesError):
        parse_entities(body.decode("utf-8", "replace"))


def scenario(body: bytes) -> None:
    """A scenario file of the simulator."""
    with suppress(ScenarioError):
        parse_scenario(body, "f")


def settings(body: bytes) -> None:
    """The configuration, as TOML; no file that it names is read."""
    try:
        tables = tomllib.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return
    if b"file:" in body:
        return
    try:
        found = config.parse(tables, file="f", environ={})
    except ConfigError:
        return
    assert found.warnings() is not None


def http_approval(body: bytes) -> None:
    """The Functions app: an approval over HTTP."""
    try:
        found = requests.read(body)
    except UnreadableError as error:
        brief(error)
        return
    assert found.event_id.strip()
    assert found.approved_by.strip()


def slack_click(body: bytes) -> None:
    """The Functions app: what Slack signed."""
    try:
        click = clicks.read(body)
    except UnreadableError:
        return
    if click is not None:
        assert clicks.Click.from_bytes(click.to_bytes()) == click


def slack_signature(packed: bytes) -> None:
    """The Functions app: what Slack did not sign. Time, signature, body; by lines."""
    moment, signature, body = (*packed.split(b"\n", 2), b"", b"")[:3]
    headers = {
        "X-Slack-Request-Timestamp": moment.decode("latin-1"),
        "X-Slack-Signature": signature.decode("latin-1"),
    }
    assert not clicks.is_signed(body, headers, SECRET)


def kept_click(body: bytes) -> None:
    """The Functions app: a click on its queue."""
    with suppress(UnreadableError):
        clicks.Click.from_bytes(body)


def button(body: bytes) -> None:
    """The Functions app: a button's value, with a signature that is right."""
    text = body.decode("utf-8", "replace")
    signed = b"sebridge-button-v1:" + text.encode("utf-8", "replace")
    mac = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    try:
        found = buttons.read(f"{mac}.{text}", [SECRET])
    except UnreadableError:
        return
    assert found.action in {"approve", "refuse"}


def announcement(body: bytes) -> None:
    """The Functions app: an event from the topic, and the ballot that it opens."""
    with suppress(UnreadableError):
        announcements.read(body, PREFIX)


_IMDS = json.dumps({"DocumentIncarnation": 1, "Events": [imds_event()]}).encode()
_PUBLISHED = orjson.dumps(
    {
        "specversion": "1.0",
        "id": "1",
        "source": "urn:x",
        "type": f"{PREFIX}.scheduledevent.scheduled.v1",
        "time": "2026-03-02T12:00:00Z",
        "dataschema": "urn:sebridge:schema:scheduledevent:v1",
        "correlationid": EVENT_ID,
        "data": {
            "transition": "scheduled",
            "event": imds_event(),
            "truncated": ["previous"],
            "reporter": {"vmName": "a", "vmId": "b", "resourceId": "c"},
        },
    }
)
_BODY = orjson.dumps({"StartRequests": [{"EventId": EVENT_ID}]})
_ASKED = {
    "approvedBy": "me",
    "reason": "why",
    "expiresAt": "2026-03-02T12:00:00+01:00",
    "approvedEvent": imds_event(),
}
_STRUCTURED = orjson.dumps(
    {
        "specversion": "1.0",
        "id": "1",
        "source": "urn:x",
        "type": f"{PREFIX}.startrequest.v1",
        "data": {**orjson.loads(_BODY), **_ASKED},
    }
)
_BINARY = b'{"cloudEvents_specversion":"1.0","cloudEvents:type":"%s.startrequest.v1"}\n'
_CLICK = {
    "type": "block_actions",
    "user": {"id": "U0ALICE", "team_id": "T1"},
    "response_url": "https://hooks.slack.com/actions/1",
    "actions": [{"action_id": "sebridge-approve", "value": "v", "action_ts": "1.1"}],
    "message": {"blocks": [{"type": "section"}]},
}
_BUTTON = {
    "action": "approve",
    "digest": "0" * 32,
    "eventId": EVENT_ID,
    "replyTo": "q",
    "session": None,
}


def _on_the_wire(body: bytes | str) -> bytes:
    message: Any = ServiceBusMessage(
        body,
        message_id="m-1",
        session_id="s",
        correlation_id="m",
        reply_to="replies",
        application_properties={"approvedBy": "me", "expiresAt": 1},
    )
    output = bytearray()
    made: Any = PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message)
    encode_payload(output, made)
    return bytes(output)


def _checkpoint() -> bytes:
    watch, _ = diff(
        Watch(),
        parse_document(_IMDS),
        Moment(at=NOW, monotonic=1.0),
        poll_interval=1,
        relayed=frozenset(),
    )
    return watch.to_json()


def _scenarios() -> tuple[bytes, ...]:
    folder = ROOT / "bridge" / "simulator" / "scenarios"
    return tuple(path.read_bytes() for path in sorted(folder.glob("*.json")))


TARGETS = {
    "document": Target(
        run=document,
        seeds=(
            _IMDS,
            *(
                json.dumps(one).encode()
                for path in ("live-migration", "user-reboot")
                for one in json.loads((DATA / f"{path}.json").read_text())["documents"]
            ),
            b'{"DocumentIncarnation":"18446744073709551616","Events":[]}',
            b'{"Events":[{"EventId":"a","X":1e999,"Y":"\\ud800","Resources":["_a"]}]}',
            b'{"Events":' + _BOMB,
        ),
    ),
    "metadata": Target(
        run=metadata,
        seeds=(
            orjson.dumps(
                {
                    "name": "vm",
                    "vmId": "1",
                    "resourceId": "/subscriptions/s/resourceGroups/g/providers/x",
                    "subscriptionId": "s",
                    "resourceGroupName": "g",
                    "vmScaleSetName": "",
                }
            ),
            _BOMB,
        ),
    ),
    "approval": Target(
        run=approval,
        seeds=(
            b"{}\n" + _BODY,
            orjson.dumps({**_ASKED, "approvedEvent": None}) + b"\n" + _BODY,
            b"{}\n" + orjson.dumps(_BODY.decode()),
            b"{}\n" + _STRUCTURED,
            _BINARY.replace(b"%s", PREFIX.encode())
            + orjson.dumps({**orjson.loads(_BODY), **_ASKED}),
            b"{}\n" + _BOMB[:60_000],
        ),
    ),
    "amqp": Target(
        run=amqp,
        seeds=(
            *(_on_the_wire(_BODY), _on_the_wire(_STRUCTURED), _on_the_wire("x")),
            *(_on_the_wire(_BODY) + b"\x00\x53\x77" + odd for odd in _ODD_VALUES),
        ),
    ),
    "reply": Target(
        run=reply,
        seeds=(
            b'{"messageId":"m","outcomes":[{"outcome":"denied","reason":"\\u001b[2J"}]}',
            b'{"outcomes":[{"outcome":"\\ud800\\n"}]}',
            b'{"outcomes":[1]}',
        ),
    ),
    "cloudevent": Target(run=cloudevent, seeds=(_PUBLISHED, _BOMB)),
    "from-event": Target(
        run=from_event,
        seeds=(_PUBLISHED, _PUBLISHED.replace(b"previous", b"Resources"), _BOMB),
    ),
    "checkpoint": Target(run=kept, seeds=(_checkpoint(), _BOMB)),
    "retry-after": Target(
        run=wish,
        seeds=(
            b"120",
            b"9" * 400,
            b"Mn, 2 Mar 2027 1" + b"2" * 30,
            b"Mon, 02 Mar 2026 12:00:05 GMT",
            b"\xb2",
        ),
    ),
    "date": Target(
        run=date,
        seeds=(b"Mon, 02 Mar 2026 12:00:05 GMT", b"2026-03-02T12:00:05.5+01:00"),
    ),
    "entities": Target(
        run=entities,
        seeds=(
            (ROOT / "tests" / "simulator" / "servicebus-config.json").read_bytes(),
            _BOMB,
        ),
    ),
    "scenario": Target(run=scenario, seeds=(*_scenarios(), _BOMB)),
    "config": Target(
        run=settings,
        seeds=((ROOT / "config" / "bridge.example.toml").read_bytes(),),
    ),
    "http-approval": Target(
        run=http_approval,
        seeds=(
            orjson.dumps({"eventId": EVENT_ID, **_ASKED, "replyTo": "q"}),
            _BOMB[:60_000],
        ),
    ),
    "slack-click": Target(
        run=slack_click,
        seeds=(
            urlencode({"payload": json.dumps(_CLICK)}).encode(),
            b"payload=" + _BOMB,
        ),
    ),
    "slack-signature": Target(
        run=slack_signature,
        seeds=(
            b"1772452800\nv0=00\npayload=1",
            b"1" * 400 + b"\nv0=00\nx",
            b"nan\nv0=\xff\n\xff",
            b"\n\n",
        ),
    ),
    "kept-click": Target(
        run=kept_click,
        seeds=(
            orjson.dumps(
                {
                    "id": "1",
                    "user": "U",
                    "team": "T",
                    "value": "v",
                    "response_url": "https://hooks.slack.com/",
                    "blocks": [],
                }
            ),
            _BOMB,
        ),
    ),
    "button": Target(run=button, seeds=(json.dumps(_BUTTON).encode(), _BOMB[:1900])),
    "announcement": Target(run=announcement, seeds=(_PUBLISHED, _BOMB)),
    "event-file": Target(
        run=outward.event_file,
        seeds=(
            _PUBLISHED,
            _IMDS,
            json.dumps(imds_event()).encode(),
            _PUBLISHED.replace(b"scheduledevent.scheduled", b"startrequest.denied"),
            _PUBLISHED.replace(b"scheduledevent.scheduled", b"bridge.heartbeat"),
            _BOMB,
        ),
    ),
    "webhook-answer": Target(run=outward.webhook_answer, seeds=outward.ANSWERS),
    "slack-answer": Target(run=outward.slack_answer, seeds=outward.SLACK_ANSWERS),
    "handshake": Target(run=outward.handshake, seeds=outward.PERMISSIONS),
    "broker": Target(run=wire.conversation, seeds=wire.CONVERSATIONS),
    "broker-value": Target(run=wire.value, seeds=wire.VALUES),
    "slack-card": Target(run=outward.slack_card, seeds=(outward.CARD, _BOMB)),
    "teams-activity": Target(run=teams.activity, seeds=teams.ACTIVITIES),
    "teams-token": Target(run=teams.token, seeds=teams.TOKENS),
    "teams-claims": Target(run=teams.claims, seeds=teams.CLAIMS),
    "teams-keys": Target(run=teams.keys, seeds=teams.KEYS),
    "teams-answer": Target(run=teams.answer, seeds=teams.ANSWERS),
    "teams-kept-click": Target(run=teams.kept, seeds=teams.CLICKS),
}
