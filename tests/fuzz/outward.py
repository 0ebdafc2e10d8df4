"""What comes back from where events go, and what a person has them rendered from."""

import math
from contextlib import suppress
from datetime import UTC, datetime

import orjson

from bridge.diagnostics.dry_run import notes, routings
from bridge.events.routing import When
from bridge.events.samples import read
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    RefusedDeliveryError,
)
from bridge.net.http_client import Answer, retry_after
from bridge.sinks.base import ApprovalAddress
from bridge.sinks.servicebus import sink as servicebus
from bridge.sinks.slack.blocks import Signer, render_card
from bridge.sinks.slack.bot import first_message
from bridge.sinks.slack.bot import read as read_slack
from bridge.sinks.slack.card import Card, after
from bridge.sinks.syslog import format as syslog_format
from bridge.sinks.syslog.format import Style
from bridge.sinks.webhook.body import Shape
from bridge.sinks.webhook.config import granted_rate
from bridge.sinks.webhook.presets import preset as rendering
from bridge.sinks.webhook.presets.preset import SuccessConfig, assumed, by_rule
from bridge.sinks.webhook.presets.registry import PRESETS
from tests.fuzz.target import brief
from tests.support.builders import (
    EVENT_ID,
    event_context_of,
    imds_event,
    outgoing,
    route,
    router,
)

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
TARGET = "https://siem.example/\u2026"
ORIGIN = "vm-1"
ADDRESS = ApprovalAddress(namespace="n", entity="q", session="{vm_id}")
SIGNER = Signer(address=ADDRESS, secret="s" * 32)
PICKY = router(
    {
        "own": route(When(scope="own")),
        "some": route(When(event_types=("Reboot",), resources=("web-*",))),
    }
)
STEP = outgoing(
    "1", key=EVENT_ID, data={"event": imds_event(), "reporter": {"vmName": "a"}}
).event
CARD = orjson.dumps(
    {
        "event": imds_event(),
        "step": "scheduled",
        "time": "2026-03-02T12:00:00Z",
        "not_before": "2026-03-02T12:15:00Z",
        "teller": "vm-1",
        "rulings": [
            {
                "id": "1",
                "outcome": "denied",
                "by": "me",
                "reason": "why",
                "because": "a rule",
                "time": "2026-03-02T12:01:00Z",
            }
        ],
        "channel": "C1",
        "ts": "1.2",
        "replied": "1",
        "buttons_until": 1772453700.0,
    }
)
ANSWERS = (
    b'[200]\n{"code":0,"text":"Success"}',
    b'[400]\n{"code":6}',
    b'[503,["Retry-After","5"]]\n{"code":9}',
    b'[200]\n{"errors":true,"items":[{"create":{"status":409,"error":{"type":"a_b"}}}]}',
    b'[200]\n{"errors":false,"items":[{"create":{"status":201}}]}',
    b'[200]\n{"status":"success","ok":true}',
    b"[302]\n<html>",
    b"[200]\n" + b"[" * 60_000,
)
SLACK_ANSWERS = (
    b'[200]\n{"ok":true,"channel":"C1","ts":"1.2"}',
    b'[429,["Retry-After","30"]]\n{"ok":false,"error":"ratelimited"}',
    b'[200]\n{"ok":false,"error":"invalid_auth"}',
    b'[200]\n{"ok":false,"error":"<xoxb-1>"}',
    b"[502]\n" + b"[" * 60_000,
)
PERMISSIONS = (
    b'[200,["WebHook-Allowed-Origin","*"],["WebHook-Allowed-Rate","120"]]\n',
    b'[200,["WebHook-Allowed-Origin","VM-1"],["WebHook-Allowed-Rate","*"]]\n',
    b'[405,["WebHook-Allowed-Origin","else"]]\n',
    b'[200,["WebHook-Allowed-Origin","*"],["WebHook-Allowed-Rate","-1e9"]]\n',
)
_TALKERS = tuple((Shape(preset=name).talker(), PRESETS[name]) for name in PRESETS)
_RENDERERS = (
    rendering.render_structured,
    rendering.render_batch,
    rendering.render_array,
    rendering.render_binary,
)
_RULES = (
    SuccessConfig(),
    SuccessConfig(status=(200, 409), json_path="status", json_equals="success"),
    SuccessConfig(json_path="items.0.create.status", json_equals=201),
    SuccessConfig(json_path="ok", json_equals=True),
)
_STYLES = tuple(
    Style(
        facility=16,
        hostname="vm",
        version="1",
        body=body,
        structured_data="sebridge@32473",
        with_bom=True,
        max_size=size,
    )
    for body in ("json", "cef")
    for size in (2048, 64 * 1024)
)


def event_file(body: bytes) -> None:
    """``render`` and ``route --event``: what is taken can be shown to every sink."""
    try:
        found = read(body, event_context_of(), NOW)
    except ValueError as error:
        one_line(str(error))
        return
    event = found.event
    message = servicebus.render(event, session="event", vm_id=None, approvals=ADDRESS)
    assert len(message.message_id) <= 128
    for render in _RENDERERS:
        headers, sent = render(event)
        assert sent
        assert all(f"{name}{value}".isascii() for name, value in headers.items())
    for talk, preset in _TALKERS:
        for call in assumed(talk, preset, event, NOW):
            assert f"{call.path}{call.headers}".isascii()
    for style in _STYLES:
        with suppress(PermanentDeliveryError):
            line = syslog_format.render(event, style)
            assert len(line) <= style.max_size
            assert b"\n" not in line
    orjson.dumps(first_message(event, NOW, SIGNER))
    notes(routings(PICKY, found), found, found.reporter)


def one_line(text: str) -> None:
    """Hold that a refusal that repeats what is wrong is a line all the same."""
    assert text.splitlines() == [text]


def answer_of(packed: bytes) -> Answer:
    """Return an answer: status and headers as a line of JSON, then the body."""
    line, _, body = packed.partition(b"\n")
    try:
        status, *pairs = orjson.loads(line)
        headers = {str(name): str(value) for name, value in pairs}
    except (ValueError, TypeError):
        status, headers, body = 200, {}, packed
    return Answer(
        status=status if isinstance(status, int) and 100 <= status <= 999 else 200,
        body=body,
        retry_after=retry_after(headers, NOW),
        target=TARGET,
        headers=headers,
    )


def webhook_answer(packed: bytes) -> None:
    """Whatever a receiver answers is a success, or one of the errors of a delivery."""
    answer = answer_of(packed)
    verdicts = [preset.judge(answer) for preset in PRESETS.values()]
    verdicts += [by_rule(rule, answer) for rule in _RULES]
    for verdict in verdicts:
        assert verdict is None or isinstance(verdict, DeliveryError)
        if verdict is not None:
            brief(verdict)


def slack_answer(packed: bytes) -> None:
    """Whatever Slack answers is its object, or one of the errors of a delivery."""
    try:
        found = read_slack(answer_of(packed))
    except DeliveryError as error:
        brief(error)
        return
    assert found["ok"] is True


def handshake(packed: bytes) -> None:
    """Whatever is answered to the question is a rate, any rate, or a refusal."""
    try:
        rate = granted_rate(answer_of(packed), ORIGIN)
    except RefusedDeliveryError as error:
        brief(error)
        return
    assert rate is None or (rate > 0 and math.isfinite(rate))


def slack_card(body: bytes) -> None:
    """A bot's memory of a message: none, or one that can be drawn and goes on."""
    card = Card.from_bytes(body)
    if card is None:
        return
    assert Card.from_bytes(card.to_bytes()) == card
    orjson.dumps(render_card(card, NOW, SIGNER).message)
    assert after(card, STEP) is not None
