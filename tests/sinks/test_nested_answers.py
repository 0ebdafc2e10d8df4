"""Answers of a service with a value that is nested very deep: each has a meaning."""

from dataclasses import dataclass

import pytest

from bridge.foundation.errors import DeliveryError
from bridge.net.http_client import Answer
from bridge.sinks.slack.bot import read
from bridge.sinks.webhook.presets.preset import SuccessConfig, by_rule
from bridge.sinks.webhook.presets.registry import PRESETS, PresetName
from tests.receivers.serving import Post, Reply
from tests.sinks.preset_ways import NAMES, talked
from tests.sinks.test_webhook_alerts import published
from tests.support.nested import HERE, holding, lists, objects

DEPTHS = (90, 500, 960, 975, 985, 995, 1010, 1019, 5000)  # answers of at most 64 KiB
SHAPES = (
    HERE,
    {"result": [{"sys_id": HERE, "state": "-1"}]},
    {"result": [{"sys_id": "a", "state": HERE}]},
    {"result": [{"sys_id": {"value": HERE}, "state": {"value": HERE}}]},
    {"errors": True, "items": [{"create": {"status": HERE, "error": HERE}}]},
    {"errors": True, "items": [{"create": {"status": 400, "error": {"type": HERE}}}]},
    {"code": HERE, "invalid-event-number": HERE, "errors": HERE, "status": HERE},
    {"ok": False, "error": HERE},
)
BODIES = [
    holding(shape, nest(depth))
    for shape in SHAPES
    for depth in DEPTHS
    for nest in (lists, objects)
]


@dataclass
class Nesting:
    """A service with one answer for all requests."""

    reply: Reply

    def answer(self, post: Post) -> Reply:
        return self.reply


@pytest.mark.slow
@pytest.mark.parametrize("status", [200, 207, 400, 503])
@pytest.mark.parametrize("name", NAMES)
def test_preset_knows_what_a_nested_answer_means(name: PresetName, status: int) -> None:
    for body in BODIES:
        found = talked(name, Nesting(Reply(status, body)), published())
        assert found is None or isinstance(found, DeliveryError)


@pytest.mark.parametrize("name", [n for n in NAMES if PRESETS[n].many])
def test_many_events_in_one_request_have_a_nested_answer(name: PresetName) -> None:
    many = PRESETS[name].many
    assert many is not None
    if many.judge is None:
        return
    for body in BODIES:
        answer = Answer(status=200, body=body, retry_after=None)
        try:
            found = many.judge(answer, 1)
        except DeliveryError:
            continue
        assert len(found) == 1


def test_rule_of_the_user_knows_what_a_nested_answer_means() -> None:
    for path in ("result.0.sys_id", "errors", "ok.0.0"):
        rule = SuccessConfig(json_path=path, json_equals="x")
        for body in BODIES:
            answer = Answer(status=200, body=body, retry_after=None)
            assert by_rule(rule, answer) is not None


def test_slack_knows_what_a_nested_answer_means() -> None:
    for body in BODIES:
        answer = Answer(status=200, body=body, retry_after=None)
        with pytest.raises(DeliveryError):
            read(answer)
