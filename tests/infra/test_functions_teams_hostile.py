"""Who may not get in to the bot, and who may not decide."""

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any

import jwt
import pytest
import pytest_asyncio

from approver.teams.callers import Callers
from approver.teams.config import TeamsConfig
from approver.teams.errors import StrangerError, TeamsError
from approver.teams.web import Web
from approver.timings import Timings
from bridge.simulator.faults import Answer, Fault
from bridge.simulator.inbox import Inbox
from bridge.simulator.teams.tokens import ISSUER, Keys
from tests.infra.teams_world import (
    ALICE,
    APP_ID,
    BOB,
    EVE,
    GROUP,
    OTHER_APP,
    TeamsStage,
    buttons,
    event_of,
    heard,
    runs,
    settings_of,
    teams_stage,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

Table = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[TeamsStage]:
    async with teams_stage() as found:
        await found.tell("scheduled", event_of("H-0"))
        yield found


async def activity_of(
    stage: TeamsStage, verb: str = "look", user: str = ALICE
) -> Table:
    """Return what Teams sends when somebody looks at the card of H-0, or clicks."""
    post = stage.card(event_of("H-0"))
    await stage.click(user, "look", post)
    sent = stage.inbox.teams.clicks.last
    assert sent is not None
    found: Table = json.loads(sent.body)
    for each in post.card["actions"]:  # type: ignore[attr-defined]  # JSON
        action = each["card"]["actions"][0]
        if action["verb"] == verb:
            found["value"]["action"] = action
    found["id"] = f"f:{time.monotonic_ns()}"
    return found


def claims_of(stage: TeamsStage, **changes: object) -> Table:
    """Return what a good token says, with changes; None takes a claim out."""
    now = int(time.time())
    good = {
        "iss": ISSUER,
        "aud": APP_ID,
        "serviceurl": stage.inbox.teams.clicks.service_url,
        "nbf": now,
        "exp": now + 3600,
    }
    return {k: v for k, v in {**good, **changes}.items() if v is not None}


async def sent(activity: object, token: str) -> tuple[int, Any]:
    body = json.dumps(activity).encode()
    return await heard(body, {"authorization": f"Bearer {token}"})


async def test_good_token_is_let_in(stage: TeamsStage) -> None:
    activity = await activity_of(stage)
    token = stage.inbox.teams.keys.signed(claims_of(stage))

    status, answer = await sent(activity, token)

    assert status == 200
    assert answer["type"] == "application/vnd.microsoft.card.adaptive"


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": OTHER_APP},
        {"aud": None},
        {"iss": "https://sts.windows.net/72f988bf-0000-4000-8000-2d7cd011db47/"},
        {"iss": None},
        {"exp": -301},  # seconds from now
        {"exp": None},
        {"nbf": 900},
        {"serviceurl": "https://smba.example/teams/"},
        {"serviceurl": None},
    ],
    ids=str,
)
async def test_token_for_something_else_is_refused(
    changes: Table, stage: TeamsStage
) -> None:
    activity = await activity_of(stage, "approve")
    now = int(time.time())
    given = {
        name: now + value if isinstance(value, int) else value
        for name, value in changes.items()
    }
    token = stage.inbox.teams.keys.signed(claims_of(stage, **given))

    assert await sent(activity, token) == (401, None)
    assert stage.host.waiting() == 0


async def test_clocks_may_differ_by_minutes(stage: TeamsStage) -> None:
    activity = await activity_of(stage)
    token = stage.inbox.teams.keys.signed(claims_of(stage, exp=int(time.time()) - 200))

    assert (await sent(activity, token))[0] == 200


def of_another_key(stage: TeamsStage) -> str:
    """Its key has the name of the published one."""
    return Keys().signed(claims_of(stage))


def of_no_key(stage: TeamsStage) -> str:
    keys = Keys()
    keys.rotate()
    keys.rotate()
    keys.rotate()  # key-3 was never published
    return keys.signed(claims_of(stage))


def without_signature(stage: TeamsStage) -> str:
    parts = ({"alg": "none", "kid": "key-1"}, claims_of(stage))
    return ".".join([*(coded(each) for each in parts), ""])


def coded(part: Table) -> str:
    return urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def signed_with_the_public_key(stage: TeamsStage) -> str:
    """The published key as a secret: what a careless reader of ``alg`` would take."""
    key = f"key: {stage.inbox.teams.keys.published()}"  # PyJWT signs with no plain one
    return jwt.encode(claims_of(stage), key, "HS256", {"kid": "key-1"})


def changed_after_it_was_signed(stage: TeamsStage) -> str:
    head, _, signature = stage.inbox.teams.keys.signed(claims_of(stage)).split(".")
    claims = json.dumps(claims_of(stage, exp=int(time.time()) + 9999)).encode()
    return f"{head}.{urlsafe_b64encode(claims).decode().rstrip('=')}.{signature}"


def that_names_no_key(stage: TeamsStage) -> str:
    return jwt.encode(claims_of(stage), "s" * 32, "HS256")


@pytest.mark.parametrize(
    "forged",
    [
        of_another_key,
        of_no_key,
        without_signature,
        signed_with_the_public_key,
        changed_after_it_was_signed,
        that_names_no_key,
        lambda _: "no-token",
        lambda _: "",
        lambda _: "a.b.c",
    ],
)
async def test_forged_token_is_refused(
    forged: Callable[[TeamsStage], str], stage: TeamsStage
) -> None:
    activity = await activity_of(stage, "approve")

    assert await sent(activity, forged(stage)) == (401, None)
    assert stage.host.waiting() == 0


async def test_request_without_a_token_is_refused(stage: TeamsStage) -> None:
    body = json.dumps(await activity_of(stage, "approve")).encode()
    basic = {
        "Authorization": "Basic " + stage.inbox.teams.keys.signed(claims_of(stage))
    }

    assert await heard(body, {}) == (401, None)
    assert await heard(body, basic) == (401, None)


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b"{}", b"[" * 100_000])
async def test_body_that_is_no_activity_is_refused(
    body: bytes, stage: TeamsStage
) -> None:
    token = stage.inbox.teams.keys.signed(claims_of(stage))

    assert await heard(body, {"Authorization": f"Bearer {token}"}) == (401, None)


async def test_other_channel_is_refused_with_a_good_token(stage: TeamsStage) -> None:
    """Whoever holds the secret of a web chat says there who they are."""
    activity = {**await activity_of(stage, "approve"), "channelId": "webchat"}
    token = stage.inbox.teams.keys.signed(claims_of(stage))

    assert await sent(activity, token) == (401, None)


OTHER_TENANT = "00000000-0000-4000-8000-00000000cafe"


@pytest.mark.parametrize(
    "changes",
    [
        {
            "conversation": {
                "id": "19:operations@thread.tacv2",
                "tenantId": OTHER_TENANT,
            }
        },
        {"channelData": {"tenant": {"id": OTHER_TENANT}}},
        {"conversation": {}, "channelData": {}},
        {"conversation": "x", "channelData": 7},
    ],
    ids=str,
)
async def test_other_tenant_is_refused(changes: Table, stage: TeamsStage) -> None:
    activity = {**await activity_of(stage, "approve"), **changes}
    token = stage.inbox.teams.keys.signed(claims_of(stage))

    assert await sent(activity, token) == (403, None)
    assert stage.host.waiting() == 0


async def test_other_conversation_is_refused(stage: TeamsStage) -> None:
    activity = await activity_of(stage, "approve")
    activity["conversation"]["id"] = "19:elsewhere@thread.tacv2;messageid=1"
    token = stage.inbox.teams.keys.signed(claims_of(stage))

    status, answer = await sent(activity, token)

    assert (status, answer["statusCode"]) == (200, 403)
    assert stage.host.waiting() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"from": {"id": "29:1", "name": "Alice Ndiaye"}},
        {"from": {"id": "29:1", "aadObjectId": "alice"}},
        {"value": {"action": {"verb": "delete", "data": {"eventId": "H-0"}}}},
        {"value": {"action": {"verb": "approve", "data": {"eventId": "H-0"}}}},
        {"value": {"action": {"verb": "approve", "data": "H-0"}}},
        {"value": None},
        {"id": ""},
    ],
    ids=str,
)
async def test_click_that_is_not_of_our_card_is_refused(
    changes: Table, stage: TeamsStage
) -> None:
    activity = {**await activity_of(stage, "approve"), **changes}
    token = stage.inbox.teams.keys.signed(claims_of(stage))

    status, answer = await sent(activity, token)

    assert (status, answer["statusCode"]) == (200, 400)
    assert stage.host.waiting() == 0


async def test_what_is_no_click_is_passed_over(stage: TeamsStage) -> None:
    activity = await activity_of(stage)
    token = stage.inbox.teams.keys.signed(claims_of(stage))

    assert await sent({**activity, "type": "message"}, token) == (200, None)
    assert await sent({**activity, "type": "conversationUpdate"}, token) == (200, None)
    assert await sent({**activity, "name": "task/fetch"}, token) == (501, None)


async def test_event_that_is_over_is_said_so(stage: TeamsStage) -> None:
    activity = await activity_of(stage)
    activity["value"]["action"]["data"]["eventId"] = "H-nobody-knows"
    token = stage.inbox.teams.keys.signed(claims_of(stage))

    _, looked = await sent(activity, token)
    activity["value"]["action"] |= {"verb": "approve"}
    activity["value"]["action"]["data"]["digest"] = "d"
    _, clicked = await sent(activity, token)

    assert looked["value"] == "The event is over."
    assert "does not know the event" in clicked["value"]


async def test_member_of_a_group_may_decide(stage: TeamsStage) -> None:
    event = event_of("H-1")
    await stage.tell("scheduled", event)
    stage.inbox.teams.team.groups = {GROUP: frozenset({EVE})}
    async with stage.other(TEAMS_GROUPS=GROUP, APPROVERS=""):
        others = await stage.click(ALICE, "approve", stage.card(event))
        answer = await stage.click(EVE, "approve", stage.card(event))
    (message,) = await stage.host.approvals()

    assert "not among those" in others["words"]
    assert "Approved by Eve Moreau" in runs(answer["answer"]["value"])
    assert EVE.encode() in b"".join(message.body)


async def test_nobody_decides_while_groups_cannot_be_asked(stage: TeamsStage) -> None:
    event = event_of("H-2")
    await stage.tell("scheduled", event)
    post = stage.card(event)
    async with stage.other(TEAMS_GROUPS=GROUP):
        fault = Fault(path="/teams/graph", strike=Answer(status=503))
        stage.inbox.faults.add(fault)
        answer = await stage.click(EVE, "approve", post)

    assert answer["answer"]["statusCode"] == 500
    assert "cannot be found out" in answer["words"]
    assert buttons(post.card) == ["Approve", "Refuse"]
    assert stage.host.waiting() == 0


async def test_person_who_approved_may_still_refuse(stage: TeamsStage) -> None:
    event = event_of("H-3")
    await stage.tell("scheduled", event)
    post = stage.card(event)
    async with stage.other(VOTE_RULE="two"):
        first = await stage.click(ALICE, "approve", post)
        again = await stage.click(ALICE, "refuse", post)
        assert "Not approved: refused by Alice Ndiaye" in runs(post.card)
        assert again["answer"]["statusCode"] == 200
    assert "Alice Ndiaye approved; missing: 1 more" in runs(first["answer"]["value"])
    assert buttons(first["answer"]["value"]) == ["Refuse"]


async def test_one_person_does_not_vote_twice(stage: TeamsStage) -> None:
    event = event_of("H-4")
    await stage.tell("scheduled", event)
    post = stage.card(event)
    async with stage.other(VOTE_RULE="two"):
        await stage.click(ALICE, "approve", post)
        post.views.clear()  # her client still shows the button
        again = await stage.click(ALICE, "approve", post)
        assert again["words"] == "Your approval is already counted."
        assert stage.host.waiting() == 0
        await stage.click(BOB, "approve", post)
    (message,) = await stage.host.approvals()

    assert "Approved by Alice Ndiaye, Bob Keller" in runs(post.card)
    assert json.loads(b"".join(message.body))["data"]["approvedBy"] == (
        f"teams:{ALICE}, teams:{BOB}"
    )


async def test_click_that_cannot_be_counted_at_once_is_counted_later(
    stage: TeamsStage,
) -> None:
    event = event_of("H-5")
    await stage.tell("scheduled", event)
    post = stage.card(event)
    async with stage.other(Timings(count=0.0)):
        answer = await stage.click(ALICE, "approve", post)
        looked = await stage.click(ALICE, "look", post)
    assert answer["words"].startswith("Your click is stored")
    assert looked["answer"]["statusCode"] == 500
    assert buttons(post.card) == ["Approve", "Refuse"]

    await stage.host.count()

    assert "Approved by Alice Ndiaye" in runs(post.card)
    assert len(await stage.host.approvals()) == 1


async def test_click_that_cannot_even_be_stored_is_reported_as_lost(
    stage: TeamsStage,
) -> None:
    nobody = "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=a;SharedAccessKey=b"
    event = event_of("H-6")
    await stage.tell("scheduled", event)
    bus = f"{nobody};UseDevelopmentEmulator=true"
    async with stage.other(Timings(count=0.2, store=0.2), SERVICEBUS=bus):
        answer = await stage.click(ALICE, "approve", stage.card(event))

    assert answer["answer"]["statusCode"] == 500
    assert "Please click again" in answer["words"]


async def test_app_without_a_bot_refuses_everybody(stage: TeamsStage) -> None:
    activity = await activity_of(stage, "approve")
    token = stage.inbox.teams.keys.signed(claims_of(stage))
    named = dict.fromkeys(settings_of(stage.inbox), "")
    async with stage.other(None, **named):
        assert await sent(activity, token) == (401, None)


class Ticks:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def config_of(inbox: Inbox) -> TeamsConfig:
    found = TeamsConfig.from_environment(settings_of(inbox), [])
    assert found is not None
    return found


async def let_in(callers: Callers, inbox: Inbox) -> None:
    teams = inbox.teams
    url = teams.clicks.service_url
    token = teams.keys.token(APP_ID, url, time.time())
    await callers.check(f"Bearer {token}", {"channelId": "msteams", "serviceUrl": url})


async def test_rotated_key_is_read_at_most_once_a_minute() -> None:
    ticks, web = Ticks(), Web()
    async with Inbox() as inbox:
        callers = Callers(config_of(inbox), web, ticks)
        await let_in(callers, inbox)
        inbox.teams.keys.rotate()
        ticks.now += 30
        with pytest.raises(StrangerError, match="not published"):
            await let_in(callers, inbox)
        ticks.now += 31

        await let_in(callers, inbox)
        await web.close()


async def test_withdrawn_key_ends_after_a_day() -> None:
    ticks, web = Ticks(), Web()
    async with Inbox() as inbox:
        callers, teams = Callers(config_of(inbox), web, ticks), inbox.teams
        await let_in(callers, inbox)
        url = teams.clicks.service_url
        old = teams.keys.token(APP_ID, url, time.time())
        teams.keys.rotate()
        teams.keys.rotate()
        activity = {"channelId": "msteams", "serviceUrl": url}
        await callers.check(f"Bearer {old}", activity)
        ticks.now += 24 * 3600 + 1

        with pytest.raises(StrangerError, match="not published"):
            await callers.check(f"Bearer {old}", activity)
        await web.close()


async def test_known_keys_stay_in_use_while_new_ones_cannot_be_read() -> None:
    ticks, web = Ticks(), Web()
    async with Inbox() as inbox:
        callers = Callers(config_of(inbox), web, ticks)
        await let_in(callers, inbox)
        ticks.now += 24 * 3600 + 1
        inbox.faults.add(Fault(path="/teams/login", strike=Answer(status=500)))

        await let_in(callers, inbox)
        await web.close()


@pytest.mark.parametrize("answer", ["", "{}", '{"jwks_uri": "https://x.example/keys"}'])
async def test_nobody_is_let_in_before_the_keys_are_read(answer: str) -> None:
    web = Web()
    async with Inbox() as inbox:
        callers = Callers(config_of(inbox), web, Ticks())
        status = 200 if answer else 503
        strike = Answer(status=status, body=answer)
        inbox.faults.add(Fault(path="/teams/login", strike=strike))
        with pytest.raises(TeamsError):
            await let_in(callers, inbox)

        await let_in(callers, inbox)  # it is asked again at once
        await web.close()


async def test_key_that_does_not_vouch_for_teams_is_refused() -> None:
    web = Web()
    async with Inbox() as inbox:
        inbox.teams.keys.endorsements = ["webchat"]
        callers = Callers(config_of(inbox), web, Ticks())

        with pytest.raises(StrangerError, match="does not vouch"):
            await let_in(callers, inbox)
        await web.close()


async def test_key_that_is_too_short_is_refused() -> None:
    """NIST SP 800-131A: less than 2048 bits are not enough for a signature."""
    web = Web()
    async with Inbox() as inbox:
        inbox.teams.keys.size = 1024
        callers = Callers(config_of(inbox), web, Ticks())

        with pytest.raises(StrangerError, match="InvalidKeyError"):
            await let_in(callers, inbox)
        await web.close()


async def test_request_is_put_off_while_there_are_no_keys(stage: TeamsStage) -> None:
    activity = await activity_of(stage, "approve")
    token = stage.inbox.teams.keys.signed(claims_of(stage))
    async with stage.other():
        fault = Fault(path="/teams/login/v1", strike=Answer(status=500))
        stage.inbox.faults.add(fault)
        assert await sent(activity, token) == (503, None)
