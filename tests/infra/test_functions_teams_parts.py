"""The parts of the bot: its settings, its tokens, its card, and what Teams refuses."""

import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from approver.announcements import Announcement
from approver.ballots import Ballot, Decision, Mark, Vote
from approver.polls import announced
from approver.settings import Settings
from approver.teams import wording
from approver.teams.card import View, render
from approver.teams.config import TeamsConfig
from approver.teams.connector import Connector
from approver.teams.credential import Credential
from approver.teams.errors import TeamsError
from approver.teams.invoke import Invoke
from approver.teams.web import Web
from bridge.events.vocabulary import EVENT_TYPES
from bridge.events.wording import OUTCOME_WORDS, STEP_WORDS, impact_of
from bridge.simulator.faults import Answer, Fault
from bridge.simulator.inbox import Inbox
from bridge.simulator.teams.refusals import faults
from bridge.simulator.teams.team import Conversation, Person
from tests.infra.teams_world import (
    ALICE,
    APP_ID,
    CHANNEL,
    TeamsStage,
    buttons,
    event_of,
    runs,
    settings_of,
    teams_stage,
)
from tests.sinks.test_webhook_node import node
from tests.support.builders import EVENT_ID, imds_event, started
from tests.support.fakes import START

__all__ = ["node"]  # a fixture from elsewhere

BUS = {"SERVICEBUS__fullyQualifiedNamespace": "contoso.servicebus.windows.net"}
TEAMS = {
    "TEAMS_APP_ID": APP_ID.upper(),
    "TEAMS_TENANT": "72f988bf-0000-4000-8000-2d7cd011db47",
    "TEAMS_CONVERSATION": "19:a@thread.v2",
    "TEAMS_APP_SECRET": "very-secret",
}
CARDS = Path(__file__).parents[1] / "sinks" / "node" / "actions.js"


def test_settings_of_a_bot_are_taken() -> None:
    settings = Settings.from_environment({**BUS, **TEAMS, "TEAMS_GROUPS": ALICE})

    assert settings.teams is not None
    assert settings.teams.app_id == APP_ID
    assert settings.teams.groups == (ALICE,)
    assert settings.teams.service == "https://smba.trafficmanager.net/teams/"
    assert "very-secret" not in repr(settings)
    assert Settings.from_environment(BUS).teams is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"TEAMS_APP_ID": "bot"}, "TEAMS_APP_ID must be a GUID"),
        ({"TEAMS_TENANT": ""}, "TEAMS_TENANT must be a GUID"),
        ({"TEAMS_CONVERSATION": "general"}, "TEAMS_CONVERSATION must be the id"),
        ({"TEAMS_GROUPS": "ops"}, "TEAMS_GROUPS: not an object id: ops"),
        ({"TEAMS_GROUPS": ",".join([ALICE] * 21)}, "more than 20 groups"),
        ({"TEAMS_SERVICE": "http://smba.example/"}, "TEAMS_SERVICE must be an https"),
        ({"TEAMS_KEYS": "https://login.example"}, "TEAMS_KEYS must be an https"),
        ({"TEAMS_ISSUER": "urn:x"}, "TEAMS_ISSUER must be an https"),
        ({"APPROVERS": f"U1A2={ALICE}={ALICE}"}, "APPROVERS: not a Slack user id"),
        ({"APPROVERS": "U1A2=U1A3"}, "APPROVERS: not a Slack user id"),
        ({"APPROVERS": f"{ALICE},U1A2={ALICE}"}, "stands there twice"),
    ],
)
def test_faulty_setting_is_named(changes: dict[str, str], words: str) -> None:
    with pytest.raises(Exception, match=words) as found:
        Settings.from_environment({**BUS, **TEAMS, **changes})
    assert "very-secret" not in str(found.value)


def test_both_ids_of_a_person_may_vote() -> None:
    rules = Settings.from_environment(
        {**BUS, "APPROVERS": f"U012AB3CD={ALICE.upper()}, U045EF6GH"}
    ).rules

    assert rules.approvers == {"U012AB3CD", ALICE, "U045EF6GH"}
    assert rules.is_same("U012AB3CD", ALICE)
    assert rules.is_same(ALICE, "U012AB3CD")
    assert not rules.is_same("U045EF6GH", ALICE)


def ballot_of(**fields: object) -> Ballot:
    shown = Announcement(
        transition="scheduled",
        event_id=EVENT_ID,
        time=START,
        event={**imds_event(), **fields},
        reply_to="q",
        id="1",
        not_before=START + timedelta(seconds=900),
    )
    found = announced(None, shown)
    assert found is not None
    return found


def worst() -> Ballot:
    """Return an event whose every text is long, odd, and in the way."""
    odd = "{{DATE(2026-01-01T00:00:00Z)}} **b** <i> \ud800\u202e\n" * 400
    marks = tuple(
        Mark(id=str(each), what="denied", time="2026-03-02T12:00:00Z", because=odd)
        for each in range(8)
    )
    found = ballot_of(
        EventType=odd, Description=odd, EventSource=odd, Resources=[odd] * 100
    )
    votes = tuple(Vote(user=ALICE, click=odd, name=odd) for _ in range(50))
    return replace(found, trail=marks, votes=votes)


def cards() -> list[dict[str, object]]:
    both = View(actions=("approve", "refuse"), missing="1 more", users=["29:1"] * 99)
    decision = Decision(
        action="refuse",
        by=(f"teams:{ALICE}", "slack:U1", "x"),
        reason="",
        time="",
        request_id="",
        reply_to="q",
        session=None,
        names=("Alice",),
    )
    return [
        render(ballot_of(), both),
        render(replace(ballot_of(), decision=decision), View(note="A note.")),
        render(worst(), both),
        render(ballot_of(Resources=None, EventType=7, DurationInSeconds=0), View()),
    ]


def test_every_card_is_one_that_teams_takes() -> None:
    for card in cards():
        assert faults(card) == []
        assert len(json.dumps(card, ensure_ascii=False).encode()) < 28 * 1024


def test_text_from_outside_calls_nothing_and_stays_on_its_line() -> None:
    texts = runs(render(worst(), View()))

    ours = [each for each in texts if each.startswith("{{")]
    assert {each.partition("(")[2][:4] for each in ours} == {"2026"}
    assert not any("{{DATE(2026-01-01" in each or "\n" in each for each in texts)
    assert not any("\u202e" in each or "\ud800" in each for each in texts)


def test_refused_by_several_says_who_they_are() -> None:
    said = "Not approved: refused by Alice, U1 in Slack, a tool"
    assert said in runs(cards()[1])


def test_cards_are_read_by_microsofts_own_renderer(node: str) -> None:
    ran = subprocess.run(  # noqa: S603  # nothing comes from outside
        [node, str(CARDS)],
        input=json.dumps([*cards(), {**cards()[0], "body": [{"type": "x"}]}]).encode(),
        capture_output=True,
        check=True,
    )

    *read, unread = json.loads(ran.stdout)
    assert shutil.which("node")
    assert [each["faults"] for each in read] == [[]] * 4
    assert read[0]["actions"] == ["Action.ShowCard", "Action.ShowCard"]
    assert read[0]["inner"] == [["Action.Execute"], ["Action.Execute"]]
    assert read[0]["refresh"] == "look"
    assert unread["faults"] != []


def test_click_that_is_stored_is_read_again() -> None:
    click = Invoke(
        id="1", user=ALICE, name="A", verb="approve", event_id="E", digest="d"
    )

    assert Invoke.from_bytes(click.to_bytes()) == click
    assert Invoke.from_bytes(b'{"teamsClick": {"id": 1}}') is None
    for name in ("user", "verb", "digest"):
        kept = json.loads(click.to_bytes())
        kept["teamsClick"][name] = ["x"]
        assert Invoke.from_bytes(json.dumps(kept).encode()) is None


def config_of(inbox: Inbox, **changes: str) -> TeamsConfig:
    found = TeamsConfig.from_environment({**settings_of(inbox), **changes}, [])
    assert found is not None
    return found


async def test_token_of_the_bot_is_kept_until_shortly_before_its_end() -> None:
    now, web_ = [0.0], Web()
    async with Inbox() as inbox:
        config = config_of(inbox)
        credential = Credential(config, web_, lambda: now[0])
        scope = f"{config.issuer}/.default"
        first = await credential.token(scope)
        now[0] = 3299.0
        assert await credential.token(scope) == first
        now[0] = 3301.0

        assert await credential.token(scope) != first
        await web_.close()
        await credential.close()


async def test_token_of_a_lifetime_beyond_all_numbers_is_kept_for_a_day() -> None:
    now, web_ = [0.0], Web()
    odd = f'{{"access_token": "odd", "expires_in": {10**400}}}'
    async with Inbox() as inbox:
        strike = Answer(status=200, body=odd)
        inbox.faults.add(Fault(path="/teams/login", strike=strike))
        credential = Credential(config_of(inbox), web_, lambda: now[0])
        assert await credential.token("x/.default") == "odd"
        now[0] = 86_000.0
        assert await credential.token("x/.default") == "odd"
        now[0] = 86_101.0

        assert await credential.token("x/.default") != "odd"
        await web_.close()


@pytest.mark.parametrize("answer", ["{}", "[]", "no json", '{"access_token": "a"}'])
async def test_answer_without_a_token_is_an_error(answer: str) -> None:
    web_ = Web()
    async with Inbox() as inbox:
        inbox.faults.add(
            Fault(path="/teams/login", strike=Answer(status=200, body=answer))
        )
        with pytest.raises(TeamsError, match="without a token"):
            await Credential(config_of(inbox), web_).token("x/.default")
        await web_.close()


async def test_wrong_secret_is_an_error_that_does_not_show_it() -> None:
    web_ = Web()
    async with Inbox() as inbox:
        inbox.teams.tokens.secrets = {APP_ID: "right"}
        with pytest.raises(TeamsError, match=r"^Entra ID answered 401$"):
            await Credential(config_of(inbox), web_).token("x/.default")
        await web_.close()


async def test_bot_without_a_secret_is_a_managed_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        return web.json_response(
            {"access_token": "own", "expires_on": "4102444800", "resource": "x"}
        )

    application = web.Application()
    application.router.add_get("/token", answer)
    web_ = Web()
    async with Inbox() as inbox, TestServer(application) as server:
        monkeypatch.setenv("IDENTITY_ENDPOINT", str(server.make_url("/token")))
        monkeypatch.setenv("IDENTITY_HEADER", "h")
        credential = Credential(config_of(inbox, TEAMS_APP_SECRET=""), web_)

        token = await credential.token("https://api.botframework.com/.default")
        await credential.close()

    assert token == "own"
    assert asked[0]["resource"] == "https://api.botframework.com"
    assert APP_ID in asked[0].values()


async def test_token_goes_nowhere_else() -> None:
    """A redirect is not followed, and an answer names no address to talk to."""
    web_ = Web()
    async with Inbox() as inbox:
        config = config_of(inbox)
        connector = Connector(config, Credential(config, web_), web_)
        strike = Answer(status=307, body="")
        inbox.faults.add(Fault(path="/teams/v3", strike=strike))
        with pytest.raises(TeamsError, match="Teams answered 307"):
            await connector.post(cards()[0], "s")
        await web_.close()


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"id": 7}'])
async def test_answer_without_an_id_is_an_error(body: str) -> None:
    web_ = Web()
    async with Inbox() as inbox:
        config = config_of(inbox)
        connector = Connector(config, Credential(config, web_), web_)
        inbox.faults.add(Fault(path="/teams/v3", strike=Answer(status=201, body=body)))
        with pytest.raises(TeamsError, match="without the id"):
            await connector.post(cards()[0], "s")
        await web_.close()


async def test_members_are_read_page_by_page() -> None:
    web_ = Web()
    people = tuple(
        Person(object_id=f"{each:08x}-0000-4000-8000-000000000000", name=f"P{each}")
        for each in range(450)
    )
    async with Inbox() as inbox:
        config = config_of(inbox)
        channel = Conversation(id=CHANNEL, name="all", people=people)
        inbox.teams.team.conversations[CHANNEL] = channel
        connector = Connector(config, Credential(config, web_), web_)

        assert await connector.members() == {p.object_id: p.id for p in people}
        await web_.close()


@pytest.fixture
async def stage() -> AsyncIterator[TeamsStage]:
    async with teams_stage() as found:
        yield found


async def test_large_conversation_is_refreshed_for_the_approvers(
    stage: TeamsStage,
) -> None:
    crowd = tuple(
        Person(object_id=f"{each:08x}-0000-4000-8000-000000000000", name=f"P{each}")
        for each in range(70)
    )
    channel = stage.conversation
    alice = channel.person(ALICE)
    channel.people = (*crowd, alice)
    event = event_of("P-1")
    await stage.tell("scheduled", event)

    refresh = stage.card(event).card["refresh"]
    assert refresh["userIds"] == [alice.id]  # type: ignore[index]  # JSON
    await stage.page(crowd[0].object_id)
    assert stage.inbox.teams.clicks.last is None
    await stage.page(ALICE)
    assert stage.inbox.teams.clicks.last is not None


async def test_what_teams_will_never_take_is_not_tried_again(stage: TeamsStage) -> None:
    event = event_of("P-2")
    refuse = Fault(path="/teams/v3", method="POST", strike=Answer(status=413))
    stage.inbox.faults.add(refuse)
    await stage.tell("scheduled", event)
    await stage.tell("scheduled", event, after=1)
    assert stage.cards(event) == []
    assert stage.host.waiting("approver-clicks") == 0

    await stage.tell("completed", started("P-2"), after=70)
    stage.clock.ahead += 901
    await stage.host.count()
    await stage.tell("scheduled", event, after=80)

    assert buttons(stage.card(event).card) == ["Approve", "Refuse"]


async def test_event_that_ends_before_teams_took_its_card_has_none(
    stage: TeamsStage,
) -> None:
    event = event_of("P-3")
    busy = Fault(path="/teams/v3", method="POST", strike=Answer(status=503))
    stage.inbox.faults.add(busy)
    await stage.tell("scheduled", event)
    await stage.tell("completed", started("P-3"), after=70)
    stage.clock.ahead += 6
    await stage.host.count()

    assert stage.cards(event) == []


async def test_roster_that_cannot_be_read_delays_no_card(stage: TeamsStage) -> None:
    event = event_of("P-4")
    stage.inbox.faults.add(
        Fault(path="/teams/v3", method="GET", strike=Answer(status=403))
    )
    await stage.tell("scheduled", event)

    assert "userIds" not in str(stage.card(event).card["refresh"])


async def test_app_that_cannot_post_for_an_hour_gives_up_aloud(
    stage: TeamsStage, caplog: pytest.LogCaptureFixture
) -> None:
    event = event_of("P-5")
    down = Fault(path="/teams/v3", method="POST", strike=Answer(status=500), times=None)
    stage.inbox.faults.add(down)
    await stage.tell("scheduled", event)
    for _ in range(12):
        stage.clock.ahead += 301
        await stage.host.count()

    assert stage.host.waiting("approver-clicks") == 0
    assert "event P-5: no card in Teams: Teams answered 500" in caplog.text


def test_card_says_of_steps_and_outcomes_what_the_bridge_says() -> None:
    for step, words in STEP_WORDS.items():
        ballot = Ballot(event={"EventType": "Reboot"}, time="", step=step)
        assert wording.headline(ballot) == f"Reboot {words}"
    for outcome, words in OUTCOME_WORDS.items():
        mark = Mark(id="", what=outcome, time="")
        assert wording.marked(mark) == f"Approval {words}"


@pytest.mark.parametrize("seconds", [-1, 0, 5, 119, 7199, 7200])
def test_card_says_of_an_impact_what_the_bridge_says(seconds: int) -> None:
    """The app is deployed without the bridge, and has a copy of its words."""
    for name in EVENT_TYPES:
        event = {"EventType": name, "DurationInSeconds": seconds}

        assert wording.impact_of(event) == impact_of(event)
