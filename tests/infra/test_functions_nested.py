"""JSON that is nested very deep: each function takes it, or says that it does not."""

import json
from urllib.parse import urlencode

import pytest

from approver.errors import UnreadableError
from approver.loading import MOST_LEVELS
from function_app import handlers
from tests.infra.functions_world import (
    APPROVALS,
    SESSION,
    called,
    cloud_event,
    request,
    signature,
)
from tests.infra.test_functions_flow import ALICE, Stage, imds_event, stage
from tests.support.nested import HERE, Nest, holding, lists, objects

__all__ = ["stage"]  # a fixture

pytestmark = pytest.mark.asyncio(loop_scope="module")
DEPTHS = (60, 130, 240, 330, 500, 700, 930, 955, 970, 980, 990, 5000, 60_000)
each_nest = pytest.mark.parametrize("nest", [lists, objects])


@each_nest
async def test_approval_of_a_nested_event_is_sent_or_refused(
    nest: Nest, stage: Stage
) -> None:
    for name in ("Unknown", "Resources", "EventId"):
        for depth in DEPTHS:
            event_id = f"N-{name}-{depth}-{nest.__name__}"
            asked = {
                "eventId": event_id,
                "approvedBy": "ann",
                "approvedEvent": imds_event(event_id) | {name: HERE},
                "replyTo": APPROVALS,
                "replyToSessionId": SESSION,
            }
            body = holding(asked, nest(depth))
            response = await called("approve", request("approvals", body))

            is_taken = depth < MOST_LEVELS and name != "EventId"
            assert response.status_code == (202 if is_taken else 400), (name, depth)
            if is_taken:
                assert await stage.host.approvals()
            else:
                assert "error" in json.loads(response.get_body())


@each_nest
async def test_nested_event_is_recorded_or_unreadable(nest: Nest, stage: Stage) -> None:
    for name in ("Unknown", "Resources", "EventType", "DurationInSeconds"):
        for depth in DEPTHS:
            event = imds_event(f"R-{name}-{depth}-{nest.__name__}")
            found = json.loads(cloud_event("scheduled", event).to_json())
            found["data"]["event"][name] = HERE
            recorded = handlers().record(
                holding(found, nest(depth)), APPROVALS, SESSION
            )
            if depth < MOST_LEVELS:
                await recorded
                continue
            with pytest.raises(UnreadableError):
                await recorded


@each_nest
async def test_nested_click_is_kept_or_refused(nest: Nest, stage: Stage) -> None:
    for depth in DEPTHS:
        payload = stage.slack.payload(ALICE, "v", f"{depth}{nest.__name__}")
        payload["message"] = {"blocks": [{"type": "section", "x": HERE}]}
        body = urlencode({"payload": holding(payload, nest(depth))}).encode()
        response = await called("slack_click", request("slack", body, signature(body)))

        assert response.status_code == (200 if depth < MOST_LEVELS else 401)


async def test_nested_message_on_the_queue_of_clicks_is_unreadable(
    stage: Stage,
) -> None:
    click = dict.fromkeys(("id", "user", "name", "verb", "event_id", "digest"), "x")
    for shape in ({"teamsClick": click | {"name": HERE}}, {"blocks": [HERE]}, HERE):
        for depth in DEPTHS:
            with pytest.raises(UnreadableError):
                await handlers().count(holding(shape, lists(depth)))
