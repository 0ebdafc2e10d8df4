"""What an answer means where ``[sinks.success]`` says what a success is."""

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
from bridge.sinks.webhook.response import SuccessConfig, by_rule

NO_ERRORS = SuccessConfig(json_path="errors", json_equals=False)
DEEP = SuccessConfig(json_path="a.b.1.c", json_equals="ok")


def judged(
    rule: SuccessConfig, status: int, body: bytes = b""
) -> tuple[type[DeliveryError], Reason] | None:
    answer = Answer(status=status, body=body, retry_after=None)
    error = by_rule(rule, answer, "https://it.example")
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
