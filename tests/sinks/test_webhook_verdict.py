"""What an answer means, and what of it is shown."""

import json
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import quote

import pytest

from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.sections import Reader
from bridge.net.http_client import MAX_ANSWER_BYTES, Answer
from bridge.sinks.base import Resources
from bridge.sinks.webhook.presets.preset import SuccessConfig, by_rule
from tests.support.configurations import webhook
from tests.support.sink_fixtures import Inbox, cloud_event, opened_sink

NO_ERRORS = SuccessConfig(json_path="errors", json_equals=False)
DEEP = SuccessConfig(json_path="a.b.1.c", json_equals="ok")


def judged(
    rule: SuccessConfig, status: int, body: bytes = b""
) -> tuple[type[DeliveryError], Reason] | None:
    answer = Answer(status=status, body=body, retry_after=None)
    error = by_rule(rule, answer)
    return (type(error), error.reason) if error else None


@pytest.mark.parametrize(
    ("rule", "status", "body"),
    [
        (SuccessConfig(), 204, b""),
        (SuccessConfig(status=(200, 202)), 202, b""),
        (SuccessConfig(status=(201, 409)), 409, b""),
        (NO_ERRORS, 200, b'{"errors": false}'),
        (DEEP, 200, b'{"a": {"b": [0, {"c": "ok"}]}}'),
    ],
)
def test_answer_within_the_rule_is_a_success(
    rule: SuccessConfig, status: int, body: bytes
) -> None:
    assert judged(rule, status, body) is None


@pytest.mark.parametrize(
    ("rule", "status", "body"),
    [
        (SuccessConfig(status=(200,)), 202, b""),
        (NO_ERRORS, 200, b'{"errors": true}'),
        (NO_ERRORS, 200, b'{"errors": 0}'),
        (NO_ERRORS, 200, b"{}"),
        (NO_ERRORS, 200, b"[]"),
        (DEEP, 200, b'{"a": {"b": [0]}}'),
        (DEEP, 200, b'{"a": {"b": "ok"}}'),
        (NO_ERRORS, 200, b"x" * MAX_ANSWER_BYTES),
        (NO_ERRORS, 400, b""),
    ],
)
def test_no_of_the_other_side_is_permanent(
    rule: SuccessConfig, status: int, body: bytes
) -> None:
    assert judged(rule, status, body) == (PermanentDeliveryError, Reason.REJECTED)


def test_page_in_place_of_json_is_not_the_service() -> None:
    found = judged(NO_ERRORS, 200, b"<html>please log in</html>")

    assert found == (TransientDeliveryError, Reason.SERVER)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(503, TransientDeliveryError), (401, RefusedDeliveryError)],
)
def test_statuses_outside_the_rule_keep_their_meaning(
    status: int, kind: type[DeliveryError]
) -> None:
    found = judged(SuccessConfig(status=(200,)), status)

    assert found is not None
    assert found[0] is kind


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"status": [302]}, "status: 302: must be from 200 to 299 or 400 to 599"),
        ({"status": [99]}, "status: 99: must be from 200 to 299 or 400 to 599"),
        (
            {"json_path": "ok"},
            "json_path: json_path and json_equals must be set together",
        ),
        (
            {"json_equals": True},
            "json_equals: json_path and json_equals must be set together",
        ),
        (
            {"json_path": "a..b", "json_equals": 1},
            'json_path: must be names with dots in between, such as "a.b.0"',
        ),
    ],
)
def test_configuration_says_what_is_wrong(table: dict[str, object], fault: str) -> None:
    reader = Reader(file="f")

    reader.section(SuccessConfig, table, "success")

    assert reader.faults == [f"f: success.{fault}"]


# -- What the receiver says is shown ---------------------------------------------------

SECRET = "5ec12e7-of/the sink"
KEY = "9d1c0e4b7a"


async def refusal(
    inbox: Inbox, resources: Resources, body: str, **keys: object
) -> DeliveryError:
    """Deliver to a receiver that refuses; return the error."""
    inbox.status, inbox.answer = 400, body.encode()
    url = f"{inbox.url}/hook/{KEY}?sig=a%2Fb"
    async with opened_sink(resources, {**webhook(url=url), **keys}) as sink:
        with pytest.raises(PermanentDeliveryError) as caught:
            await sink.deliver(cloud_event())
    return caught.value


async def test_refusal_says_why_in_the_words_of_the_receiver(
    inbox: Inbox, resources: Resources
) -> None:
    body = '{"error":\r\n  "unknown field \'severity\'\x1b[2J"}'
    error = await refusal(inbox, resources, body)

    assert str(error) == (
        f"{inbox.url} answered 400: "
        """{"error": "unknown field 'severity'\\x1b[2J"}"""
    )


async def test_page_is_shown_as_its_text_and_a_long_answer_is_cut(
    inbox: Inbox, resources: Resources
) -> None:
    page = "<!doctype html><style>b {}</style><title>400 Bad&nbsp;Request</title><hr>"
    assert str(await refusal(inbox, resources, page)).endswith("400 Bad Request")

    error = await refusal(inbox, resources, "x" * 70_000)
    assert len(str(error)) < 300
    assert str(error).endswith("x…")


@pytest.mark.parametrize(
    "keys",
    [
        {"auth": {"type": "bearer", "token": SECRET}},
        {"auth": {"type": "basic", "username": "me", "password": SECRET}},
        {"auth": {"type": "header", "name": "x-key", "value": SECRET}},
        {
            "auth": {"type": "body", "name": "key", "value": SECRET},
            "content_mode": "template",
            "content_type": "application/json",
            "template": "{}",
        },
        {"headers": {"x-api-key": SECRET}},
        {},
    ],
)
async def test_receiver_that_repeats_the_request_shows_no_secret(
    inbox: Inbox, resources: Resources, keys: Mapping[str, object]
) -> None:
    basic = b64encode(f"me:{SECRET}".encode()).decode()
    said = [SECRET, quote(SECRET), quote(SECRET, safe=""), json.dumps(SECRET)]
    said += [SECRET.upper(), f"Bearer {SECRET}"]
    own = [f"/hook/{KEY}", KEY, "sig=a%2Fb", "a/b", f"{inbox.url}/hook/{KEY}"]
    for word in own if not keys else said:
        if word == basic and "password" not in str(keys):
            continue
        error = await refusal(inbox, resources, f"not <{word}>!", **keys)

        shown = str(error).partition(" 400: ")[2].lower()
        assert "<secret>" in shown
        for part in (SECRET, KEY, basic, "a%2fb", "a/b", "of/the", "of%2fthe"):
            assert part.lower() not in shown
