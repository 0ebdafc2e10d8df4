"""The pages: what they show, what their forms do, and what nobody can make them do."""

import hashlib
import re
import sqlite3
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import aiohttp
import orjson
import pytest
from sqlalchemy import select
from yarl import URL

from bridge.hub.access import AccessRule
from bridge.hub.config import HubConfig
from bridge.hub.housekeeping import FleetMonitor
from bridge.hub.metrics import HubMetrics
from bridge.hub.pages.frame import is_token, token
from bridge.hub.pages.words import plain_span, span
from bridge.hub.store.store import Store
from bridge.hub.store.tables import events
from tests.support.builders import EVENT_ID
from tests.support.fleet import at, azure, event, life, outcome, step, vm
from tests.support.hub import (
    ARM_CONFIG,
    HubWorld,
    access,
    beat,
    config,
    forms,
    grid,
    offer,
    received,
)
from tests.support.stopwatch import Stopwatch

PAGE = f"/events/{EVENT_ID}"
EVIL = "<script>alert(1)</script>\"'&"


class Browser:
    """A browser without JavaScript."""

    def __init__(self, world: HubWorld, http: aiohttp.ClientSession) -> None:
        self.world, self._http = world, http
        self.status, self.text = 0, ""
        self.headers: Any = {}

    async def open(self, path: str, who: str = "ann") -> str:
        url = URL(f"{self.world.url}{path}", encoded=True)
        async with self._http.get(url, headers={"User": who}) as found:
            self.status, self.text = found.status, await found.text()
            self.headers = found.headers
        return self.text

    async def submit(
        self, who: str = "ann", via: str = "bridge", path: str = PAGE, **more: str
    ) -> str:
        """Fill in the form that is shown."""
        form = vote_forms(self.text)[via]
        headers = {"User": who, "Origin": self.world.url}
        headers |= {k[7:]: more.pop(k) for k in list(more) if k.startswith("header_")}
        data = {"decision": "approve", "reason": "drained", **form, **more}
        url = URL(f"{self.world.url}{path}", encoded=True)
        async with self._http.post(url, data=data, headers=headers) as found:
            self.status, self.text = found.status, await found.text()
            self.headers = found.headers
            self.path = found.url.path
        return self.text


def vote_forms(text: str) -> dict[str, dict[str, str]]:
    """Return the hidden fields of the forms of a page, by their way."""
    found = [one for one in forms(text) if "via" in one]
    return {one["via"]: {k: one[k] for k in one.keys() - {"action"}} for one in found}


@pytest.fixture
def given() -> HubConfig:
    return config()


@pytest.fixture
async def browser(store: Store, given: HubConfig) -> AsyncIterator[Browser]:
    async with HubWorld(store, given).open() as world, aiohttp.ClientSession() as http:
        yield Browser(world, http)


async def test_pages_of_an_empty_hub_say_so(browser: Browser) -> None:
    text = await browser.open("/")
    assert text.count("No bridge has been heard yet") == 2, "heading and list"
    assert "Azure has announced no maintenance" not in text
    assert "Nothing fits" in await browser.open("/?q=web")
    assert "No bridge has been heard" in await browser.open("/bridges")
    assert "Nobody has decided" in await browser.open("/decisions")
    await browser.open("/events/nobody")
    assert (browser.status, "Nothing is known" in browser.text) == (404, True)


async def test_overview_shows_what_waits(browser: Browser) -> None:
    await browser.world.scheduled(Description="Host maintenance")
    text = await browser.open("/")
    assert "1 event waits for a decision" in text
    assert "waits for one person" in text
    for words in ("Freeze", "web-0, web-1", "Host maintenance", "in 15 min"):
        assert words in text
    assert "What is over" in await browser.open("/?open=false")
    await browser.open("/?page=x")
    assert browser.status == 400


async def test_long_list_goes_on_and_says_what_it_counts(browser: Browser) -> None:
    many = [received(step("scheduled", event(f"E-{n:03}"))) for n in range(201)]
    await browser.world.store.keep(many)

    first = await browser.open("/?type=Freeze")
    assert "200 events wait for a decision on this page" in first
    assert 'href="/?type=Freeze&amp;page=1"' in first
    rest = await browser.open("/?type=Freeze&page=1")
    assert "1 event waits for a decision on this page" in rest
    assert 'href="/?type=Freeze"' in rest


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", PAGE, "/bridges", "/decisions"])
async def test_text_of_an_event_is_never_markup(browser: Browser, path: str) -> None:
    body = step("scheduled", event(Description=EVIL, EventType=EVIL, Resources=[EVIL]))
    await browser.world.store.keep([received(body), beat(0, version=EVIL)])
    await browser.world.post(reason=EVIL, decision="refuse")

    text = await browser.open(path)

    assert "<script>alert" not in text
    assert browser.status == 200


async def test_nothing_runs_but_the_script_of_the_page(browser: Browser) -> None:
    await browser.world.scheduled()
    for path in ("/", PAGE, "/bridges", "/decisions"):
        text = await browser.open(path)

        policy = browser.headers["Content-Security-Policy"]
        for tag in ("style", "script"):
            (body,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", text, re.DOTALL)
            digest = b64encode(hashlib.sha256(body.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy, path
        assert "default-src 'none'" in policy, path
        assert not re.search(r"\s(?:style|on\w+)=", text), path
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text), path
        assert browser.headers["X-Content-Type-Options"] == "nosniff", path


async def test_form_decides_without_javascript(browser: Browser) -> None:
    await browser.world.scheduled()
    await browser.open(PAGE)
    text = await browser.submit()

    assert (browser.status, browser.path) == (200, PAGE)
    assert "decided, not sent yet" in text
    assert "“drained”" in text
    (sent,) = (await browser.world.get("/api/v1/decisions"))["decisions"]
    await browser.world.dispatcher.step()
    assert "on its way" in await browser.open(PAGE)
    await browser.world.store.keep(
        [received(outcome("relayed", sent["id"], seconds=3))]
    )
    assert "approved by ann: relayed" in await browser.open(PAGE)
    assert vote_forms(browser.text) == {}
    assert "approved by ann" in await browser.open("/decisions")


async def test_form_refuses(browser: Browser) -> None:
    await browser.world.scheduled()
    await browser.open(PAGE)
    assert "refused by ann" in await browser.submit(decision="refuse")
    assert "Nothing needs you now" in await browser.open("/")


async def test_form_of_another_event_content_or_person_is_refused(
    browser: Browser,
) -> None:
    await browser.world.scheduled()
    await browser.open(PAGE)
    for forged in ({"token": "x"}, {"content": "x"}, {"who": "bob"}):
        await browser.open(PAGE)
        text = await browser.submit(**forged)
        assert (browser.status, "of another page" in text) == (403, True)
    assert (await browser.world.get("/api/v1/decisions"))["decisions"] == []


async def test_form_of_another_site_is_refused(browser: Browser) -> None:
    await browser.world.scheduled()
    await browser.open(PAGE)
    await browser.submit(header_Origin="https://evil.example")
    assert browser.status == 403
    url = f"{browser.world.url}{PAGE}"
    async with browser._http.post(url, json={}, headers={"User": "ann"}) as found:
        assert found.status == 415


async def test_event_that_has_changed_is_shown_anew(browser: Browser) -> None:
    await browser.world.scheduled()
    await browser.open(PAGE)
    longer = event(DurationInSeconds=90)
    await browser.world.store.keep(
        [received(step("updated", longer, previous=event(), seconds=5))]
    )
    text = await browser.submit()
    assert browser.status == 409
    assert "has changed since it was shown" in text
    assert "for 1 min 30 s" in text
    await browser.submit()
    assert browser.status == 200


async def test_who_may_only_look_has_no_form(browser: Browser) -> None:
    await browser.world.scheduled()
    text = await browser.open(PAGE, who="dan")
    assert "You may look, but not decide" in text
    assert vote_forms(text) == {}
    assert "dan, may look" in text


async def test_event_that_is_past_asking_has_no_form(browser: Browser) -> None:
    await browser.world.scheduled()
    await browser.world.store.keep([received(step("completed", seconds=9))])
    assert "Nothing can be decided: the event is over" in await browser.open(PAGE)
    assert "Completed" in await browser.open("/?open=false")


async def test_event_is_shown_whose_end_alone_was_heard(browser: Browser) -> None:
    """A hub that is new, or was away, hears of an event only when it is over."""
    await browser.world.store.keep([received(step("completed", seconds=9))])
    assert "Nothing can be decided: the event is over" in await browser.open(PAGE)
    assert (await browser.world.post())[0] == 409


@pytest.mark.parametrize("hub_config", ["sqlite"], indirect=True)  # one writer
async def test_event_is_shown_while_nobody_can_write(
    store: Store, sqlite_config: HubConfig
) -> None:
    """Another program has locked the file; and this hub was started a moment ago."""
    async with (
        HubWorld(store, config()).open() as world,
        aiohttp.ClientSession() as http,
    ):
        await world.scheduled()
        assert "Approve now" in await Browser(world, http).open(PAGE)
    other = sqlite3.connect(sqlite_config.sqlite_file or "", isolation_level=None)
    with closing(other):
        other.execute("BEGIN EXCLUSIVE")
        async with (
            HubWorld(store, config()).open() as world,
            aiohttp.ClientSession() as http,
        ):
            assert "Approve now" in await Browser(world, http).open(PAGE)


async def test_event_nobody_takes_approvals_for_can_only_be_refused(
    browser: Browser,
) -> None:
    await browser.world.store.keep([received(step("scheduled"), reply_to=None)])
    text = await browser.open(PAGE)
    assert "A bridge cannot be asked now" in text
    assert "Approve now" not in text
    await browser.submit()
    assert browser.status == 409


async def test_votes_of_several_are_counted(store: Store) -> None:
    async with (
        HubWorld(store, config(2)).open() as world,
        aiohttp.ClientSession() as http,
    ):
        browser = Browser(world, http)
        await world.scheduled()
        assert "It takes 2 different people" in await browser.open(PAGE)
        assert "1 of 2 votes" in await browser.submit()
        await browser.open(PAGE, "bob")
        assert "decided, not sent yet" in await browser.submit("bob")


@pytest.fixture
async def both(store: Store) -> AsyncIterator[Browser]:
    """Return a browser where two people decide, by a bridge or by ARM."""
    given = config(2, arm=ARM_CONFIG)
    async with HubWorld(store, given).open() as world, aiohttp.ClientSession() as http:
        rules = {"action": "allow"}
        await store.keep([beat(n, approvals=offer(rules)) for n in (0, 1)])
        await store.keep([received(step("scheduled", seconds=5))])
        world.clock.pass_by(600)
        world.more["listening"] = {"b": at(100)}
        await store.keep([grid(azure("Scheduled"), 590)])
        yield Browser(world, http)


async def test_votes_of_two_channels_are_not_added_up(both: Browser) -> None:
    """A vote for a bridge is none for ARM, where no bridge prepares the machines."""
    assert (await both.world.post("ann"))[0] == 202
    assert (await both.world.post("bob", via="arm"))[0] == 202

    for path in (PAGE, "/"):
        text = await both.open(path)
        assert "1 of 2 votes, 1 of 2 votes through ARM" in text
    assert "Voted: ann, bob (through ARM)" in await both.open(PAGE)


@pytest.mark.slow
async def test_vote_of_another_channel_does_not_hide_the_decision(
    both: Browser,
) -> None:
    await both.world.post("ann", via="arm")
    await both.world.post("ann")
    await both.world.post("bob")
    text = await both.open(PAGE)
    assert "decided, not sent yet; 1 of 2 votes through ARM" in text

    await both.world.store.keep([beat(0, 600, approvals=offer({"action": "allow"}))])
    await both.world.dispatcher.step()
    (sent,) = both.world.transport.taken
    await both.world.store.keep([received(outcome("relayed", sent.id, seconds=700))])
    text = await both.open("/")
    assert "approved by ann, bob: relayed" in text
    assert "1 of 2" not in text


async def test_decision_on_an_earlier_occurrence_is_none_on_this_one(
    browser: Browser,
) -> None:
    await browser.world.scheduled()
    await browser.world.post()
    await browser.world.dispatcher.step()
    (sent,) = browser.world.transport.taken
    over = [outcome("relayed", sent.id, seconds=1), step("completed", seconds=60)]
    again = step("scheduled", seconds=90, repeats=1)
    await browser.world.store.keep([*map(received, over), received(again)])

    assert "1 event waits for a decision" in await browser.open("/")
    assert "waits for one person" in browser.text
    assert "Approve now" in await browser.open(PAGE)


async def test_people_who_are_wanted_are_as_many_as_decide(store: Store) -> None:
    """Of an event that names no machine, no resource group is known either."""
    few = AccessRule(resource_groups=("web",), persons=1)
    given = config(access=access(2, few))
    async with HubWorld(store, given).open() as world, aiohttp.ClientSession() as http:
        await world.scheduled(Resources=[])
        text = await Browser(world, http).open("/")
        assert "waits for 2 people" in text
        assert (await world.post())[0] == 202


async def test_arm_is_a_way_of_its_own_and_confirmed(store: Store) -> None:
    given = config(arm=ARM_CONFIG)
    async with HubWorld(store, given).open() as world, aiohttp.ClientSession() as http:
        browser = Browser(world, http)
        rules = {"action": "allow"}
        await store.keep([beat(n, -600, approvals=offer(rules)) for n in (0, 1)])
        await store.keep([beat(n, approvals=offer(rules)) for n in (0, 1)])
        await store.keep([received(step("scheduled", seconds=5))])
        await browser.open(PAGE)
        assert "arm" not in vote_forms(browser.text), "a bridge answers"

        world.clock.pass_by(600)
        world.more["listening"] = {"b": at(100)}
        await store.keep([grid(azure("Scheduled"), 590)])
        await browser.open(PAGE)
        await browser.submit(via="arm")
        assert (browser.status, "has to be confirmed" in browser.text) == (400, True)
        await browser.submit(via="arm", confirmed="yes")
        assert browser.status == 200
        await world.dispatcher.step()
        assert len(world.arm.taken) == 1


async def test_fleet_is_shown_with_the_silent_first(browser: Browser) -> None:
    browser.world.more["listening"] = {"b": at(-600)}
    await browser.world.store.keep(
        [beat(0, 0, pending=2, dead=1), beat(1, -500), beat(2, 0, intervalSeconds=0)]
    )
    text = await browser.open("/bridges")
    assert "3 bridges, 1 of them silent" in text
    assert text.index("web-1") < text.index("web-0")
    assert "heartbeat every 1 min<" in text
    await browser.world.store.keep([beat(3, -500)])
    assert "4 bridges, 2 of them silent" in await browser.open("/bridges")
    await browser.open("/bridges?state=silent")
    assert ("web-1" in browser.text, "web-0" in browser.text) == (True, False)
    await browser.open("/bridges?q=WEB-0")
    assert ("web-1" in browser.text, "web-0" in browser.text) == (False, True)
    assert "No bridge fits" in await browser.open("/bridges?state=gone")


async def test_hub_that_hears_nothing_says_so(browser: Browser) -> None:
    await browser.world.store.keep([beat()])
    browser.world.more["listening"] = {"b": None}
    text = await browser.open("/")
    assert "still being read: what is shown may be old" in text
    assert "Nothing needs you now" not in text
    why = "the name x.servicebus.windows.net does not exist"
    browser.world.more["not_connected"] = {"b": why}
    text = await browser.open("/")
    assert f"The source b is not connected ({why}): its messages" in text
    assert "The hub does not receive everything" in browser.text
    found = await browser.world.get("/api/v1/hub")
    assert (found["notConnected"], found["drained"]) == ({"b": why}, None)


async def test_empty_hub_without_its_source_does_not_ask_for_a_forwarder(
    browser: Browser,
) -> None:
    assert "Start a forwarder" in await browser.open("/")
    browser.world.more["not_connected"] = {"b": "no such name"}
    assert "Start a forwarder" not in await browser.open("/")


async def test_silent_bridges_are_reported_before_the_events(browser: Browser) -> None:
    """ "Nothing needs you now" would be wrong: nobody tells of their machines."""
    world = browser.world
    world.more["listening"] = {"b": at(-600)}
    await world.store.keep([beat(0), beat(1, -500)])
    assert "Nothing needs you now" in await browser.open("/")
    await FleetMonitor(
        world.store,
        world.clock,
        HubMetrics(("b",), "1"),
        world.situation,
        retention=world.config.retention,
    ).step()

    text = await browser.open("/")

    assert '<h1 id="title">One bridge is silent</h1>' in text
    assert "Nothing needs you now" not in text
    assert "Azure has announced no maintenance" not in text
    assert re.search(r'<a href="/machines/[^"]+/web-1">web-1</a>', text)
    await world.store.keep([beat(1)])
    assert "Nothing needs you now" in await browser.open("/"), "it is back"


async def test_hub_whose_bridges_have_all_stopped_does_not_reassure(
    browser: Browser,
) -> None:
    world = browser.world
    world.more["listening"] = {"b": at(-600)}
    stopped = received(life("stopped", seconds=1), 1)
    await world.store.keep([beat(), stopped])

    text = await browser.open("/")
    assert '<h1 id="title">All bridges have stopped or are gone</h1>' in text
    assert "Nothing is announced" not in text
    assert "Azure has announced no maintenance" not in text
    over = await browser.open("/?open=false")
    assert "may have missed some: all bridges have stopped or are gone." in over

    await world.store.keep([beat(seconds=2)])
    assert "Nothing is announced" in await browser.open("/")


async def test_more_bridges_without_heartbeats_than_are_counted(
    browser: Browser,
) -> None:
    mute = [beat(n, intervalSeconds=0) for n in range(201)]
    await browser.world.store.keep(mute)

    text = await browser.open("/")

    title = "200 or more bridges send no heartbeat"
    assert f'<h1 id="title">{title}</h1>' in text
    assert f"{title}, so silence says nothing" in text


async def test_bridges_without_heartbeats_do_not_reassure(browser: Browser) -> None:
    """They may be dead: nothing would tell."""
    world = browser.world
    world.more["listening"] = {"b": at(-600)}
    mute = beat(1, intervalSeconds=0)
    await world.store.keep([beat(), mute])

    text = await browser.open("/")
    assert '<h1 id="title">One bridge sends no heartbeat</h1>' in text
    assert "silence says nothing" in text
    assert "Azure has announced no maintenance" not in text
    assert (await world.get("/api/v1/hub"))["withoutHeartbeat"] == 1
    text = await browser.open("/bridges")
    (href,) = re.findall(r'href="(/machines/[^"]+/web-1)"', text)
    assert "no heartbeat, so its silence says nothing" in await browser.open(href)

    stopped = received(life("stopped", seconds=1, who=vm(1)), 1)
    await world.store.keep([stopped])
    assert "Nothing needs you now" in await browser.open("/"), "it runs no more"


async def test_machine_that_has_ended_is_not_taken_for_all(browser: Browser) -> None:
    world = browser.world
    world.more["listening"] = {"b": at(-600)}
    ended = event(EventType="Preempt", Resources=["web-1"])
    over = received(step("completed", ended, seconds=30, who=vm(1)), 30)
    await world.store.keep([beat(), beat(1, seconds=20), over])
    world.clock.pass_by(60)

    text = await browser.open("/bridges?state=gone")
    assert "web-1" in text
    assert "All bridges have stopped or are gone" not in await browser.open("/")


async def test_search_finds_a_machine_without_an_event(browser: Browser) -> None:
    await browser.world.store.keep([beat(0), beat(1)])
    text = await browser.open("/?q=WEB-1")
    assert re.search(r'<a href="/machines/[^"]+/web-1">web-1</a>', text)
    assert "/web-0" not in text


async def test_decisions_tell_of_what_they_were(browser: Browser) -> None:
    names = [f"Web-{n}" for n in range(5)]
    await browser.world.scheduled(Resources=names)
    await browser.world.post()
    text = await browser.open("/decisions")
    for words in ("Freeze", "Web-0, Web-1, Web-2", "and 2 more", "12:00 UTC"):
        assert words in text


async def test_vote_shows_its_way_and_takes_the_button_away(store: Store) -> None:
    async with (
        HubWorld(store, config(2)).open() as world,
        aiohttp.ClientSession() as http,
    ):
        browser = Browser(world, http)
        await world.scheduled()
        await browser.open(PAGE)
        assert way(await browser.submit()) == ["now counted: 1 of 2", *REST]
        assert "You have voted." in browser.text
        assert "Approve now" not in browser.text
        assert "Approve now" in await browser.open(PAGE, "bob")
        text = await browser.submit("bob")
        assert way(text)[:3] == ["done counted", "done decided", "now sent"]
        assert "Approve now" not in text
        await world.dispatcher.step()
        (sent,) = world.transport.taken
        assert way(await browser.open(PAGE))[3] == "now relayed to Azure"
        await store.keep([received(outcome("relayed", sent.id, seconds=1))])
        assert way(await browser.open(PAGE))[3:] == ["done relayed", "now started"]
        await store.keep([received(step("started", seconds=2))])
        assert way(await browser.open(PAGE))[4] == "done started"


REST = [" decided", " sent", " relayed to Azure", " started"]


def way(text: str) -> list[str]:
    """Return the steps that a page shows of an approval, with their state."""
    shown = text.partition('id="way"')[2].partition("</ol>")[0]
    found = re.findall(r'<li class="(\w*)"[^>]*>([^<]*)</li>', shown)
    return [f"{kind} {words}" for kind, words in found]


async def test_list_reads_little_of_an_event_with_very_many_names(
    browser: Browser,
) -> None:
    """The first page parses 200 of them; the page of the event has all."""
    names = [f"Web-{n}" for n in range(2000)]
    await browser.world.scheduled(Resources=names)
    assert "and 1997 more" in await browser.open("/")
    (listed,) = (await browser.world.get("/api/v1/events"))["events"]
    assert (len(listed["machines"]), listed["machineCount"]) == (100, 2000)
    assert listed["event"]["Resources"] == names[:100]
    shown = await browser.world.get(f"/api/v1{PAGE}")
    assert shown["event"]["Resources"] == names
    assert "and 1900 more" in await browser.open(PAGE)
    read = await browser.world.store.read(lambda c: c.scalar(select(events.c.summary)))
    assert len(read or b"") < 10_000


async def test_reason_of_a_refused_form_is_kept(browser: Browser) -> None:
    await browser.world.scheduled()
    await browser.open(PAGE)
    text = await browser.submit(token="x", reason="half an hour of thought")
    assert ">half an hour of thought</textarea>" in text


async def test_page_of_an_event_is_small_whatever_was_sent(browser: Browser) -> None:
    """And nothing is lost: the older messages, and the rest of a long one."""
    padding = '&"<\u202e' * 12_000
    many = [step("updated", event(Resources=[f"{'n' * 200}{k}" for k in range(2000)]))]
    for number in range(40):
        body = orjson.loads(step("updated", event(), seconds=number, who=vm(number)))
        body["id"], body["data"]["padding"] = f"id-{number:02}", padding
        many.append(orjson.dumps(body))
    await browser.world.store.keep([received(one) for one in many])

    watch = Stopwatch()
    text = await browser.open(PAGE)
    assert watch.seconds < 3, "0.3 s on a machine that is idle"
    assert len(text.encode()) < 1_000_000
    assert ("id-39" in text, "id-19" in text) == (True, False)
    (whole,) = set(re.findall(r'href="(/events/[^"]+/messages/\d+)"', text)[:1])
    body = orjson.loads(await browser.open(whole))
    assert body["data"]["padding"] == padding
    assert browser.headers["Content-Type"] == "application/json"
    (older,) = re.findall(r'href="(/events/[^"]+before=[^"]+)"', text)
    text = await browser.open(older)
    assert ("id-39" in text, "id-19" in text) == (False, True)
    shown = await browser.world.get(f"/api/v1{older}")
    assert shown["messages"][-1]["id"] == "id-19"
    assert len(shown["messages"]) == 20
    await browser.open(f"{PAGE}/messages/99999")
    assert browser.status == 404


def test_token_is_for_one_form_alone() -> None:
    made = token(b"k", "ann", "E", "c")
    assert is_token(made, b"k", "ann", "E", "c")
    for other in (("bob", "E", "c"), ("ann", "F", "c"), ("ann", "E", "d")):
        assert not is_token(made, b"k", *other)
    assert not is_token(made, b"l", "ann", "E", "c")
    assert not is_token("\ud800", b"k", "ann", "E", "c")


@pytest.mark.parametrize(
    ("seconds", "words", "plain"),
    [
        (5, "5 s", "5 s"),
        (60, "1 min 00 s", "1 min"),
        (3600, "1 h 00 min", "1 h"),
        (90061, "1 d 1 h", "1 d 1 h"),
    ],
)
def test_span_of_time_is_reported_in_two_units(
    seconds: int, words: str, plain: str
) -> None:
    assert (span(seconds), plain_span(seconds)) == (words, plain)
