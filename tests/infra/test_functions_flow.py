"""The Functions app from the event to the approval, over a real namespace."""

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from azure.servicebus import ServiceBusReceivedMessage
from msgspec.structs import replace

import function_app
from approver.bus import Bus, Outgoing
from approver.handlers import Handlers
from approver.settings import Bus as BusSettings
from approver.settings import Settings
from approver.signing import Vault
from approver.timings import Timings
from bridge.approvals.message import Approval, parse
from bridge.foundation.values import Secret
from bridge.net.http_client import open_session
from bridge.servicebus.namespace import NamespaceConfig
from bridge.servicebus.sender import Sender
from bridge.signing.dsse import SignedEvent, Verdict, judge
from bridge.signing.keys import PrivateKey
from bridge.simulator.inbox import Inbox
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.slack.clicks import Interactivity
from bridge.sinks.base import ApprovalAddress, Resources, Sink
from tests.infra.functions_world import (
    ADDRESS,
    APPROVALS,
    BUTTON_SECRET,
    ENTITIES,
    SERVED,
    SESSION,
    SIGNING_SECRET,
    Host,
    Slack,
    button_value,
    called,
    cloud_event,
    form,
    on_the_bus,
    outcome_event,
    request,
    signature,
)
from tests.infra.key_vault import key_vault
from tests.signing.test_dsse import KEY, OTHER
from tests.support.brisk import without_naps
from tests.support.builders import imds_event as any_event
from tests.support.builders import not_before, started
from tests.support.sink_fixtures import sink_config

ALICE, BOB, EVE = "U0ALICE", "U0BOB", "U0EVE"
SOON = not_before(
    86_400, datetime.now(UTC)
)  # a busy machine needs an hour to come here
pytestmark = pytest.mark.asyncio(loop_scope="module")


def imds_event(event_id: str, **fields: object) -> dict[str, object]:
    """Return an event that can still be decided on."""
    return any_event(event_id, **{"NotBefore": SOON, **fields})


class Stage:
    """All that stands around the app, and short ways to make it happen."""

    def __init__(self, host: Host, slack: Slack, events: Sender) -> None:
        self.host = host
        self.slack = slack
        self._events = events

    async def tell(
        self,
        kind: str,
        event: Mapping[str, object],
        after: float = 0.0,
        at: ApprovalAddress = ADDRESS,
    ) -> None:
        """Let the bridge tell of an event, and the app hear it."""
        await self._events.send(on_the_bus(cloud_event(kind, event, after), at))
        await self.host.hear()

    async def settle(
        self, outcome: str, event: Mapping[str, object], message_id: str | None
    ) -> None:
        """Let the bridge tell what became of an approval, and the app hear it."""
        found = outcome_event(outcome, event, message_id)
        await self._events.send(on_the_bus(found))
        await self.host.hear()

    async def click(self, user: str, value: str, at: str = "1") -> dict[str, object]:
        """Let a person click, and return what Slack is answered in the end."""
        await self.press(user, value, at)
        await self.host.count()
        return self.slack.posts[-1]

    async def press(self, user: str, value: str, at: str = "1") -> None:
        """Let a person click; it is not counted yet."""
        body = form(self.slack.payload(user, value, at))
        response = await called("slack_click", request("slack", body, signature(body)))
        assert (response.status_code, response.get_body()) == (200, b"")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[Stage]:
    """One for all: opening a link takes half a second. Each test has its event."""
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(without_naps())
        broker = await stack.enter_async_context(Broker(ENTITIES))
        slack = await stack.enter_async_context(Slack())
        settings = {
            "SERVICEBUS": broker.connection_string,
            "APPROVERS": f"{ALICE},{BOB}",
            "BUTTON_SECRET": BUTTON_SECRET,
            "SLACK_SIGNING_SECRET": SIGNING_SECRET,
            "SLACK_HOOKS": slack.hooks,
        }
        for name, value in settings.items():
            patch.setenv(name, value)
        function_app.handlers.cache_clear()
        secret = Secret(broker.connection_string, {})
        events = Sender(NamespaceConfig(connection_string=secret), "scheduled-events")
        stack.push_async_callback(events.close)
        host = await stack.enter_async_context(Host(broker))
        async with SERVED.by(function_app.handlers()):
            yield Stage(host, slack, events)
        function_app.handlers.cache_clear()


@asynccontextmanager
async def other_handlers(
    timings: Timings | None = None,
    bus: Callable[[BusSettings], Bus] = Bus,
    vault: Vault | None = None,
    **environ: str,
) -> AsyncIterator[None]:
    """Let the app have other settings meanwhile, less time, or another namespace."""
    settings = Settings.from_environment({**os.environ, **environ})
    handlers = Handlers(settings, timings=timings, bus=bus(settings.bus), vault=vault)
    async with SERVED.by(handlers):
        yield


def read(message: ServiceBusReceivedMessage) -> Approval:
    """Read an approval as the bridge does."""
    return parse(b"".join(message.body), {}, prefix="sebridge")


async def test_click_approves_the_announced_event(stage: Stage) -> None:
    event = imds_event("E-1")
    await stage.tell("scheduled", event)

    answer = await stage.click(ALICE, button_value(event))
    (message,) = await stage.host.approvals()

    assert (message.session_id, message.correlation_id) == (SESSION, event["EventId"])
    approval = read(message)
    assert approval.event_ids == (event["EventId"],)
    assert approval.approved_event == event
    assert (approval.approved_by, approval.reason) == (
        f"slack:{ALICE}",
        "decided in Slack, rule: one",
    )
    assert answer["replace_original"] is True
    assert f"Approved by <@{ALICE}>" in str(answer["text"])
    assert [block["block_id"] for block in answer["blocks"]] == ["s", "sebridge-votes"]  # type: ignore[attr-defined]  # JSON


async def test_button_that_the_bridge_posts_is_clicked_and_approves(
    stage: Stage,
) -> None:
    event = imds_event("E-0")
    found = cloud_event("scheduled", event)
    await stage.tell("scheduled", event)

    async with slack_with_the_app() as (inbox, bot):
        await bot.deliver(found)
        (channel,) = inbox.slack.workspace.channels.values()
        ts = next(iter(channel.posts))
        click = {"ts": ts, "actionId": "sebridge-approve", "user": ALICE}
        async with aiohttp.request(
            "POST", f"{inbox.url}/slack/click", json=click
        ) as response:
            answer = await response.json()
        assert answer.get("acknowledged"), answer
        async with other_handlers(SLACK_HOOKS=f"{inbox.url}/slack/actions/"):
            await stage.host.count()
        content = channel.posts[ts].content

    (message,) = await stage.host.approvals()
    assert read(message).approved_event == event
    assert f"Approved by <@{ALICE}>" in str(content.blocks)
    assert "Freeze is scheduled: WestNO_0" in str(content.blocks)
    assert "sebridge-approve" not in str(content.blocks)


@asynccontextmanager
async def slack_with_the_app() -> AsyncIterator[tuple[Inbox, Sink]]:
    """A local Slack that the bridge posts to, and that tells the app of clicks."""

    async def clicked(raw: web.Request) -> web.Response:
        body = await raw.read()
        response = await called("slack_click", request("slack", body, raw.headers))
        return web.Response(status=response.status_code)

    application = web.Application()
    application.router.add_post("/api/slack", clicked)
    async with (
        Inbox() as inbox,
        TestServer(application) as app,
        open_session(user_agent="sebridge/test") as http,
    ):
        url = str(app.make_url("/api/slack"))
        inbox.slack.clicks.app = Interactivity(url=url, signing_secret=SIGNING_SECRET)
        table = {
            "type": "slack",
            "token": "xoxb-simulated",
            "channel": "ops",
            "api_url": f"{inbox.url}/slack/api/",
            "buttons": True,
            "button_secret": BUTTON_SECRET,
        }
        lent = Resources(http=http, expand=str, approvals=ADDRESS)
        async with sink_config(table).open(lent) as bot:
            yield inbox, bot


async def test_two_persons_decide_and_a_changed_event_voids_votes(stage: Stage) -> None:
    event = imds_event("E-2")
    changed = imds_event("E-2", DurationInSeconds=60)
    await stage.tell("scheduled", event)

    async with other_handlers(VOTE_RULE="two"):
        first = await stage.click(ALICE, button_value(event), "1")
        await stage.tell("updated", changed, after=60)
        stale = await stage.click(BOB, button_value(event), "2")
        anew = await stage.click(BOB, button_value(changed), "3")
        assert stage.host.waiting() == 0
        last = await stage.click(ALICE, button_value(changed), "5")

    assert "missing: 1 more" in str(first["text"])
    assert stale["response_type"] == "ephemeral"
    assert "has changed since this message" in str(stale["text"])
    assert "missing: 1 more" in str(anew["text"])
    assert f"Approved by <@{BOB}>, <@{ALICE}>" in str(last["text"])
    (message,) = await stage.host.approvals()
    assert read(message).approved_event == changed


async def test_two_clicks_at_once_both_count(stage: Stage) -> None:
    event = imds_event("E-9")
    await stage.tell("scheduled", event)
    async with other_handlers(VOTE_RULE="two"):
        for user in (ALICE, BOB):
            await stage.press(user, button_value(event))
        await stage.host.count(clicks=2)

    (message,) = await stage.host.approvals()
    assert read(message).event_ids == ("E-9",)


async def test_strangers_are_answered_in_private(stage: Stage) -> None:
    event = imds_event("E-3")
    await stage.tell("scheduled", event)

    stranger = await stage.click(EVE, button_value(event))
    forged = await stage.click(ALICE, button_value(event, secret="x" * 32))

    async with other_handlers(APPROVAL_ENTITIES="vm-approvals"):
        astray = await stage.click(ALICE, button_value(event))

    for answer in (stranger, forged, astray):
        assert answer["response_type"] == "ephemeral"
        assert answer["replace_original"] is False
    assert "not among those" in str(stranger["text"])
    assert "not a button of the bridge" in str(forged["text"])
    assert "may not send" in str(astray["text"])
    assert stage.host.waiting() == 0


async def test_refusal_sends_nothing_and_stops_tools(stage: Stage) -> None:
    event = imds_event("E-4")
    await stage.tell("scheduled", event)
    refused = await stage.click(BOB, button_value(event, "refuse"), "1")
    late = await stage.click(ALICE, button_value(event, "refuse"), "2")
    tool = await approved(event["EventId"])
    await stage.tell("started", started("E-4"), after=900)
    begun = await stage.click(ALICE, button_value(event), "3")
    await stage.tell("completed", started("E-4"), after=905)
    over = await stage.click(ALICE, button_value(event), "4")

    assert f"refused by <@{BOB}>" in str(refused["text"])
    assert f"already refused by <@{BOB}>" in str(late["text"])
    error = f"the event was refused by slack:{BOB}; people can still approve it"
    assert tool == (409, {"error": error})
    assert "already started" in str(begun["text"])
    assert "does not know the event" in str(over["text"])
    assert stage.host.waiting() == 0


async def test_event_that_was_refused_can_still_be_approved(stage: Stage) -> None:
    event = imds_event("E-45")
    await stage.tell("scheduled", event)
    refused = await stage.click(BOB, button_value(event, "refuse"), "1")
    approved_ = await stage.click(ALICE, button_value(event), "2")

    assert "all votes are deleted" in str(refused["text"])
    assert f"Approved by <@{ALICE}>" in str(approved_["text"])
    (message,) = await stage.host.approvals()
    assert str(event["EventId"]).encode() in b"".join(message.body)


async def test_redelivered_click_sends_the_same_message(
    stage: Stage,
) -> None:
    """The app dies after the StartRequest was sent, before that was written down."""
    event = imds_event("E-5")
    await stage.tell("scheduled", event)
    async with other_handlers(bus=DiesAfterItSent):
        with pytest.raises(ConnectionResetError):
            await stage.click(ALICE, button_value(event))
    await stage.host.count()

    one, two = await stage.host.approvals(2)

    assert one.message_id == two.message_id
    assert b"".join(one.body) == b"".join(two.body)
    assert stage.slack.posts[-1]["replace_original"] is True


def opinion(message: ServiceBusReceivedMessage, key: PrivateKey) -> Verdict:
    event = SignedEvent.parse(b"".join(message.body))
    return judge(event, {key.key_id: key.public}).verdict


async def test_redelivered_click_sends_the_same_signature(stage: Stage) -> None:
    """Key Vault makes another one each time, and a bridge takes an id only once."""
    event = imds_event("E-41")
    await stage.tell("scheduled", event)
    async with key_vault("a" * 32, "b" * 32) as vault:
        async with other_handlers(bus=DiesAfterItSent, vault=vault):
            with pytest.raises(ConnectionResetError):
                await stage.click(ALICE, button_value(event))
        async with other_handlers(vault=vault):
            await stage.host.count()

    one, two = await stage.host.approvals(2)
    assert b"".join(one.body) == b"".join(two.body)
    assert {opinion(one, key) for key in (KEY, OTHER)} == {Verdict.HOLDS}
    data = json.loads(b"".join(one.body))["data"]
    found = cloud_event("scheduled", event)
    assert data["audience"] == found.source
    ends = datetime.fromisoformat(data["expiresAt"])
    assert ends == datetime.fromisoformat(str(found.data["notBefore"]))


async def test_approval_of_a_tool_is_signed_and_ends_within_a_day(stage: Stage) -> None:
    event = imds_event("E-42", NotBefore=not_before(9 * 86400, datetime.now(UTC)))
    await stage.tell("scheduled", event)
    async with key_vault("a" * 32) as vault, other_handlers(vault=vault):
        assert (await approved(event["EventId"]))[0] == 202
        unknown = await approved("E-43", approvedEvent={"EventId": "E-43"})
    (message,) = await stage.host.approvals()

    assert unknown == (409, {"error": "give audience: the source of the event"})
    assert opinion(message, KEY) is Verdict.HOLDS
    whole = json.loads(b"".join(message.body))
    ends = datetime.fromisoformat(whole["data"]["expiresAt"])
    assert ends - datetime.fromisoformat(whole["time"]) == timedelta(days=1)


async def test_approval_that_key_vault_does_not_sign_is_not_sent(stage: Stage) -> None:
    event = imds_event("E-44")
    await stage.tell("scheduled", event)
    async with key_vault("a" * 32, status=403) as vault, other_handlers(vault=vault):
        status, _ = await approved(event["EventId"])

    assert status == 503
    assert stage.host.waiting() == 0


class DiesAfterItSent(Bus):
    async def send(self, entity: str, message: Outgoing, seconds: float) -> None:
        await super().send(entity, message, seconds)
        if entity == APPROVALS:
            raise ConnectionResetError


async def approved(event_id: object, **fields: object) -> tuple[int, dict[str, object]]:
    """Approve as a tool does, and return status and answer."""
    body = json.dumps({"eventId": event_id, "approvedBy": "runbook", **fields})
    response = await called("approve", request("approvals", body.encode()))
    return response.status_code, json.loads(response.get_body())


async def test_tool_approves_what_was_announced(stage: Stage) -> None:
    event = imds_event("E-6")
    await stage.tell("scheduled", event)

    status, answer = await approved(str(event["EventId"]).lower(), reason="drained")
    (message,) = await stage.host.approvals()
    late = await stage.click(ALICE, button_value(event))

    expected = {
        "messageId": message.message_id,
        "entity": APPROVALS,
        "sessionId": SESSION,
    }
    assert (status, answer) == (202, expected)
    assert (read(message).approved_by, read(message).reason) == ("runbook", "drained")
    assert read(message).approved_event == event
    assert "already approved by a tool" in str(late["text"])


@pytest.mark.parametrize("outcome", ["denied", "failed", "expired"])
async def test_failed_approval_is_void_and_can_be_given_again(
    outcome: str, stage: Stage
) -> None:
    event = imds_event(f"E-20-{outcome}")
    await stage.tell("scheduled", event)
    await stage.click(ALICE, button_value(event), "1")
    (first,) = await stage.host.approvals()

    await stage.settle(outcome, event, first.message_id)
    again = await stage.click(ALICE, button_value(event), "2")

    assert f"Approved by <@{ALICE}>" in str(again["text"])
    (second,) = await stage.host.approvals()
    assert second.message_id != first.message_id
    assert read(second).approved_event == event


@pytest.mark.parametrize("outcome", ["relayed", "already-started", "event-ended"])
async def test_approval_that_reached_its_end_stands(outcome: str, stage: Stage) -> None:
    event = imds_event(f"E-21-{outcome}")
    await stage.tell("scheduled", event)
    await stage.click(ALICE, button_value(event), "1")
    (message,) = await stage.host.approvals()

    await stage.settle(outcome, event, message.message_id)
    again = await stage.click(BOB, button_value(event), "2")

    assert f"already approved by <@{ALICE}>" in str(again["text"])
    assert stage.host.waiting() == 0


async def test_outcome_of_another_approval_leaves_the_votes_alone(
    stage: Stage,
) -> None:
    event, other = imds_event("E-22"), imds_event("E-23")
    await stage.tell("scheduled", event)
    await stage.click(ALICE, button_value(event), "1")
    (message,) = await stage.host.approvals()

    await stage.settle("denied", event, "of-somebody-else")
    await stage.settle("denied", event, None)
    await stage.settle("denied", other, message.message_id)
    again = await stage.click(BOB, button_value(event), "2")

    assert f"already approved by <@{ALICE}>" in str(again["text"])
    assert stage.host.waiting() == 0


async def test_outcome_of_an_event_without_votes_leaves_it_open(stage: Stage) -> None:
    event = imds_event("E-24")
    await stage.settle("denied", event, None)
    await stage.tell("scheduled", event)
    await stage.settle("denied", event, None)

    answer = await stage.click(ALICE, button_value(event))
    (message,) = await stage.host.approvals()

    assert f"Approved by <@{ALICE}>" in str(answer["text"])
    assert read(message).event_ids == (event["EventId"],)


async def test_denied_approval_of_a_tool_is_open_to_votes_again(stage: Stage) -> None:
    event = imds_event("E-25")
    await stage.tell("scheduled", event)
    _, answer = await approved(str(event["EventId"]))
    await stage.host.approvals()

    await stage.settle("denied", event, str(answer["messageId"]))
    voted = await stage.click(ALICE, button_value(event))
    await stage.host.approvals()

    assert f"Approved by <@{ALICE}>" in str(voted["text"])


async def test_messages_name_the_source_that_was_set(stage: Stage) -> None:
    event = imds_event("E-26")
    await stage.tell("scheduled", event)
    event_id = str(event["EventId"])
    async with other_handlers(APPROVER_SOURCE="/contoso/approver"):
        await approved(event_id)
    (message,) = await stage.host.approvals()

    assert json.loads(b"".join(message.body))["source"] == "/contoso/approver"


async def test_tool_says_what_the_app_does_not_know(stage: Stage) -> None:
    unknown = await approved("E-8")
    elsewhere = await approved("E-8", replyTo="plain", approvedEvent={"EventId": "e-8"})
    known = await approved(
        "E-8", replyToSessionId="group-7", approvedEvent={"EventId": "e-8"}
    )
    (message,) = await stage.host.approvals(session="group-7")

    assert unknown[0] == 404
    assert elsewhere == (400, {"error": f"replyTo must be one of {APPROVALS}"})
    assert known[0] == 202
    assert read(message).approved_event == {"EventId": "e-8"}


async def test_announcement_does_not_say_where_approvals_go_beyond_the_allowed(
    stage: Stage,
) -> None:
    """Whoever may publish to the topic must not steer what this identity may send."""
    event = imds_event("E-12")
    elsewhere = replace(ADDRESS, entity="approver-clicks")
    await stage.tell("scheduled", event, at=elsewhere)
    before = stage.host.waiting("approver-clicks")

    status, answer = await approved(str(event["EventId"]))
    (message,) = await stage.host.approvals()

    assert (status, answer["entity"]) == (202, APPROVALS)
    assert read(message).event_ids == (event["EventId"],)
    assert stage.host.waiting("approver-clicks") == before


async def test_button_does_not_say_where_approvals_go_beyond_the_allowed(
    stage: Stage,
) -> None:
    event = imds_event("E-11")
    await stage.tell("scheduled", event)

    answer = await stage.click(ALICE, button_value(event, entity="elsewhere"))

    assert "may not send to the entity" in str(answer["text"])
    assert stage.host.waiting() == 0


async def test_announcement_may_choose_among_the_allowed(stage: Stage) -> None:
    event = imds_event("E-10")
    await stage.tell("scheduled", event)

    async with other_handlers(APPROVAL_ENTITIES=f"plain,{APPROVALS}"):
        status, answer = await approved(str(event["EventId"]))
    await stage.host.approvals()

    assert (status, answer["entity"]) == (202, APPROVALS)


async def test_click_is_refused_when_it_cannot_be_kept(stage: Stage) -> None:
    event = imds_event("E-7")
    body = form(stage.slack.payload(ALICE, button_value(event)))
    nobody = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"

    bus = f"{nobody};UseDevelopmentEmulator=true"
    async with other_handlers(Timings(store=0.2), SERVICEBUS=bus):
        response = await called("slack_click", request("slack", body, signature(body)))

    assert response.status_code == 503


async def test_the_host_is_told_of_five_functions() -> None:
    functions = {f.get_function_name(): f for f in function_app.app.get_functions()}
    triggers = {
        name: function.get_bindings()[0].get_dict_repr()
        for name, function in functions.items()
    }

    assert {name: trigger["type"] for name, trigger in triggers.items()} == {
        "hear_event": "serviceBusTrigger",
        "approve": "httpTrigger",
        "slack_click": "httpTrigger",
        "count_click": "serviceBusTrigger",
        "hear_teams": "httpTrigger",
    }
    assert triggers["hear_event"]["topicName"] == "%EVENTS_TOPIC%"
    assert triggers["hear_event"]["isSessionsEnabled"] is False
    assert triggers["approve"]["authLevel"].value == "function"
    assert triggers["slack_click"]["authLevel"].value == "anonymous"
    assert triggers["hear_teams"]["authLevel"].value == "anonymous"
    assert triggers["hear_teams"]["route"] == "messages"
