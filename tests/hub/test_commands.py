"""``sebridge status --hub``, ``approve --hub`` and ``approve --via arm``."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from msgspec.structs import replace

from bridge.cli import hub_client
from bridge.cli.hub_client import Fleet, FleetBridges, HubClient
from bridge.cli.main import main
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import BridgeError
from bridge.hub.access import AccessConfig, AccessRule
from bridge.hub.answers import (
    ApprovalState,
    DecisionRow,
    EventPage,
    PersonsRow,
    Vote,
)
from bridge.hub.decisions import DecisionState
from bridge.hub.store.store import Store
from bridge.hub.view_rows import ReporterRow
from bridge.net.http_client import open_session
from bridge.simulator.arm import Arm
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.state import ImdsSettings, ImdsState
from tests.bench.measuring import served
from tests.support.builders import EVENT_ID
from tests.support.fleet import at, azure, event, life, outcome, step, vm
from tests.support.hub import HubWorld, beat, config, grid, received
from tests.support.terminal import on_terminal

ME = AccessConfig(approvers=("local",))
RESOURCE = vm(0).resource_id or ""


@pytest.fixture(autouse=True)
def ordinary_log() -> Iterator[None]:
    """The command sets up the log of its process, which is that of the tests here."""
    root, azure_log = logging.getLogger(), logging.getLogger("azure")
    kept = (root.handlers[:], root.level, azure_log.level)
    yield
    root.handlers[:], root.level, azure_log.level = kept


@pytest.fixture
async def world(store: Store) -> AsyncIterator[HubWorld]:
    async with HubWorld(store, config(access=ME)).open() as opened:
        yield opened


async def run(*arguments: str, stdin: str | None = None, **env: str) -> Result:
    def call() -> Result:
        given = {"SEBRIDGE_CONFIG": None, **env}
        return CliRunner().invoke(
            main, arguments, input=stdin, env=given, catch_exceptions=False
        )

    return await asyncio.to_thread(call)


# -- status ------------------------------------------------------------------------


async def test_status_of_a_hub_needs_no_configuration(world: HubWorld) -> None:
    await world.scheduled()
    await world.store.keep([grid(azure("Scheduled", event("E-2", Resources=["db"])))])
    world.clock.pass_by(200)

    found = await run("status", "--hub", world.url)

    assert found.exit_code == 0
    lines = found.stdout.splitlines()
    assert lines[:3] == [f"Hub {world.url}", "Bridges: 1 silent", "Silent: web-0"]
    assert any(EVENT_ID in line and "web-0, web-1" in line for line in lines)


async def test_status_of_an_empty_hub_says_so(world: HubWorld) -> None:
    found = await run("status", "--hub", world.url)
    assert "none has been heard yet" in found.stdout
    assert "No event can be shown until" in found.stdout


async def test_status_of_a_hub_that_hears_nothing_does_not_reassure(
    world: HubWorld,
) -> None:
    await world.store.keep([beat()])
    world.missing = ["source b is not connected"]

    found = await run("status", "--hub", world.url)
    assert found.exit_code == 1
    as_json = json.loads((await run("status", "--hub", world.url, "--json")).stdout)

    assert "Not ready: source b is not connected" in found.stdout
    assert "No event is known, but the hub may have missed some" in found.stdout
    assert "has announced no maintenance" not in found.stdout
    assert as_json["missing"] == world.missing


async def test_status_of_a_hub_behind_a_proxy_says_what_it_lacks(
    world: HubWorld,
) -> None:
    await world.store.keep([beat()])
    world.more["listening"] = {"b": None}
    assert "has not read all" in (await run("status", "--hub", world.url)).stdout
    world.more["not_connected"] = {"b": "no such name"}

    found = await run("status", "--hub", world.url)

    assert found.exit_code == 1
    assert "Not ready: source b is not connected" in found.stdout


async def test_status_of_a_hub_without_heartbeats_does_not_reassure(
    world: HubWorld,
) -> None:
    await world.store.keep([beat(), beat(1, intervalSeconds=0)])

    found = await run("status", "--hub", world.url)

    assert "Without a heartbeat: 1" in found.stdout
    assert "No event is known, but the hub may have missed some" in found.stdout
    assert "has announced no maintenance" not in found.stdout


async def test_status_of_a_hub_counts_no_more_than_200_without_heartbeats(
    world: HubWorld,
) -> None:
    await world.store.keep([beat(n, intervalSeconds=0) for n in range(201)])

    found = await run("status", "--hub", world.url)

    assert "Without a heartbeat: 200 or more" in found.stdout


async def test_status_of_a_hub_whose_bridges_have_stopped_does_not_reassure(
    world: HubWorld,
) -> None:
    stopped = received(life("stopped", seconds=1), 1)
    world.more["listening"] = {"b": at(-600)}
    await world.store.keep([beat(), stopped])

    found = await run("status", "--hub", world.url)

    assert "no bridge runs that could report one" in found.stdout


async def test_status_of_a_hub_tells_of_messages_it_could_not_read(
    world: HubWorld,
) -> None:
    await world.store.keep([beat(), grid(azure("Started")).put_aside("it is none")])

    found = await run("status", "--hub", world.url)

    assert "Messages of the last day that could not be read: 1" in found.stdout
    assert "the hub may have missed some: see Messages" in found.stdout


async def test_status_as_json_has_every_page(world: HubWorld) -> None:
    many = [received(step("scheduled", event(f"E-{n:03}"))) for n in range(201)]
    await world.store.keep(many)
    found = json.loads((await run("status", "--hub", world.url, "--json")).stdout)
    assert len(found["events"]) == 201
    assert found["bridges"] == {
        "count": 1,
        "states": {"unknown": 1},
        "silent": [],
    }


async def test_text_of_an_event_does_not_control_the_terminal(world: HubWorld) -> None:
    evil = "\x1b]0;owned\x07\r\nHub is fine"
    await world.store.keep([received(step("scheduled", event(Resources=[evil])))])
    found = await run("status", "--hub", world.url)
    assert "\x1b" not in found.stdout
    assert "\nHub is fine" not in found.stdout


DECISION = DecisionRow(
    id="d",
    event_id=EVENT_ID,
    event_type="Freeze",
    machines=(),
    machine_count=0,
    action="approve",
    via="bridge",
    state=DecisionState.DONE,
    by=("ann",),
    rule="one person",
    reason=None,
    time=at(0),
    outcome="relayed",
    outcome_reason="busy",
    address=None,
    overridden=False,
    about=None,
)
PAGE = EventPage(
    event_id=EVENT_ID,
    version=1,
    status="scheduled",
    is_open=True,
    event_type=None,
    event_source=None,
    subscription=None,
    resource_group=None,
    machines=("web-0",),
    machine_count=1,
    content="c",
    not_before=None,
    opened=at(0),
    ended=None,
    last_told=at(0),
    first_reported_by=ReporterRow(),
    unreported=False,
    bridges_say=None,
    said_to_be_over=None,
    two_reports_with_one_id=(),
    messages_not_kept=0,
    azure_status=None,
    occurrence=1,
    event=None,
    approval=ApprovalState(
        votes=(),
        persons=PersonsRow(wanted=1, rule="one person", raised_by=()),
        decision=None,
    ),
    occurrences=(),
    outcomes=(),
    messages=(),
    older_messages=None,
    decisions=(),
    record=(),
    set_aside=(),
)
_ROW: Any = msgspec.to_builtins(PAGE)


def vote(via: str) -> Vote:
    return Vote(person="ann", via=via, entry="ann", counts=True, why=None)


@pytest.mark.parametrize(
    ("votes", "state", "words"),
    [
        ([], None, "-"),
        (["bridge", "arm", "bridge"], None, "2 of 1 votes, 1 of 1 votes through ARM"),
        ([], "failed", "failed: busy"),
        (["arm"], "failed", "1 of 1 votes through ARM"),
        (["arm"], "sent", "sent, no outcome yet: busy; 1 of 1 votes through ARM"),
        (["arm"], "done", "approved by ann: relayed"),
    ],
)
def test_status_shows_votes_of_each_channel(
    votes: list[str], state: str | None, words: str
) -> None:
    made = replace(DECISION, state=DecisionState(state)) if state else None
    given = tuple(map(vote, votes))
    approval = replace(PAGE.approval, votes=given, decision=made)
    row = replace(PAGE, status="started", machines=(), approval=approval)
    found = Fleet("h", [row], FleetBridges(0, {}, []), [], 0)
    *_, line = hub_client.lines(found, lambda text, _: text)
    assert re.split("  +", line)[-2] == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["http://hub.example"], "must begin with https://"),
        (["https://hub.example/?x=1"], "must be an address"),
        (["hub"], "--hub"),
        (["http://127.0.0.1:1", "--hub-scope", "api://x/.default"], "secret"),
    ],
)
async def test_address_that_is_none_or_open_is_refused(
    given: list[str], words: str
) -> None:
    found = await run("status", "--hub", *given)
    assert found.exit_code == 2
    assert words in found.stderr


async def test_hub_that_does_not_answer_is_one_sentence() -> None:
    found = await run("status", "--hub", "http://127.0.0.1:1")
    assert found.exit_code == 1
    assert "the hub at http://127.0.0.1:1" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (302, "", "you must sign in"),
        (401, "", "you must sign in"),
        (200, "<html>", "is no hub"),
        (503, '{"error": "the store is away"}', "the hub says: the store is away"),
        (500, "oops", "HTTP 500"),
    ],
)
async def test_answer_that_is_none_of_a_hub_is_one_sentence(
    status: int, body: str, words: str
) -> None:
    async def answers(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    async with served([web.get("/api/v1/events", answers)]) as url:
        found = await run("status", "--hub", url)
    assert found.exit_code == 1
    assert words in found.stderr


@pytest.mark.parametrize("command", ["status", "approve"])
@pytest.mark.parametrize(
    "body",
    [
        {"a": 1},
        [],
        None,
        "hub",
        7,
        {"events": None, "next": None},
        {"events": 1, "next": None},
        {"events": [], "next": 1},
        {"events": [None], "next": None},
        {"events": [{**_ROW, "machines": None}], "next": None},
        {"events": [{**_ROW, "notBefore": 1}], "next": None},
        {"events": [{**_ROW, "approval": {"votes": [1]}}], "next": None},
        {"events": [{**_ROW, "approval": None}], "next": None},
        {**_ROW, "eventId": 1},
        {**_ROW, "decisions": [{"id": "d"}]},
    ],
    ids=range(15),
)
async def test_json_of_another_service_is_one_sentence(
    command: str, body: object
) -> None:
    async def answers(_: web.Request) -> web.Response:
        return web.json_response(body)

    given = [command, *(["E-123"] if command == "approve" else [])]
    async with served([web.get("/{path:.*}", answers)]) as url:
        found = await run(*given, "--hub", url)
    assert found.exit_code == 1
    assert found.stderr.startswith("sebridge: this is no hub, or not of this version")
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("status", [200, 202])
@pytest.mark.parametrize(
    "body", [{"a": 1}, [], None, {"state": "x", "id": "d", "missing": 0}]
)
async def test_vote_at_another_service_is_one_sentence(
    status: int, body: object
) -> None:
    async def shown(_: web.Request) -> web.Response:
        return web.json_response(_ROW)

    async def decide(_: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    path = "/api/v1/events/{id}"
    routes = [web.get(path, shown), web.post(f"{path}/approval", decide)]
    async with served(routes) as url:
        found = await run("approve", EVENT_ID, "--hub", url, "--wait")
    assert (found.exit_code, len(found.stderr.splitlines())) == (1, 1)
    assert "this is no hub" in found.stderr


class Credential:
    """Gives a token, or fails as that of azure-identity does."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    async def get_token(self, scope: str) -> Any:
        from azure.core.credentials import AccessToken  # noqa: PLC0415 - heavy
        from azure.core.exceptions import ClientAuthenticationError  # noqa: PLC0415 - heavy

        if self.fails:
            raise ClientAuthenticationError("a long text with ids")
        return AccessToken(f"token-of-{scope}", 1)


async def test_token_goes_with_each_request() -> None:
    seen = []

    async def answers(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"ok": True})

    async with (
        served([web.get("/x", answers)]) as url,
        open_session(user_agent="t") as http,
    ):
        hub = HubClient(url, http, "api://x", Credential())  # type: ignore[arg-type]  # as little as it needs
        assert await hub.get("/x") == (200, {"ok": True})
        hub = HubClient(url, http, "api://x", Credential(fails=True))  # type: ignore[arg-type]  # as above
        with pytest.raises(BridgeError, match=r"no token for api://x: .*az login"):
            await hub.get("/x")
    assert seen == ["Bearer token-of-api://x"]


async def test_credential_is_that_of_whoever_is_signed_in() -> None:
    async with hub_client.open_hub("https://hub.example", "api://x") as hub:
        assert type(hub.credential).__name__ == "DefaultAzureCredential"


# -- approve by a hub --------------------------------------------------------------


async def test_approval_by_a_hub_is_a_decision_with_its_reason(world: HubWorld) -> None:
    await world.scheduled()

    found = await run(
        "approve", EVENT_ID[:6], "--hub", world.url, "--reason", "drained"
    )

    decided = await world.decision()
    assert found.exit_code == 0
    assert found.stdout == f"{EVENT_ID}: approved, decision {decided['id']}\n"
    assert (decided["reason"], decided["by"]) == ("drained", ["local"])


async def test_refusal_by_a_hub_is_kept(world: HubWorld) -> None:
    await world.scheduled()
    found = await run("approve", EVENT_ID, "--hub", world.url, "--refuse", "--wait")
    assert (found.exit_code, found.stdout) == (0, f"{EVENT_ID}: refused\n")
    assert (await world.decision())["state"] == "refused"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "code"),
    [("relayed", 0), ("already-started", 0), ("event-ended", 1), ("denied", 1)],
)
async def test_outcome_is_waited_for(world: HubWorld, what: str, code: int) -> None:
    await world.scheduled()

    async def bridge() -> None:
        clock, never = SystemClock(), asyncio.Event()
        while not (await world.page())["decisions"]:
            await clock.wait(never, 0.05)
        await world.dispatcher.step()
        (sent,) = world.transport.taken
        await world.store.keep(
            [received(outcome(what, sent.id, seconds=1, reason="so"))]
        )

    arguments = ("approve", EVENT_ID, "--hub", world.url, "--wait", "--json")
    found, _ = await asyncio.gather(run(*arguments), bridge())

    assert found.exit_code == code
    assert json.loads(found.stdout)["outcome"] == what


async def test_hub_that_is_away_while_the_outcome_is_waited_for_is_asked_again() -> (
    None
):
    looks = list[str]()

    async def shown(request: web.Request) -> web.Response:
        looks.append(request.path)
        if len(looks) in {2, 3} and request.transport is not None:
            request.transport.abort()
        done = replace(DECISION, outcome_reason=None)
        page = replace(PAGE, decisions=(done,))
        return web.json_response(msgspec.to_builtins(page))

    async def decide(_: web.Request) -> web.Response:
        return web.json_response({"state": "decided", "id": "d", "missing": 0})

    path = "/api/v1/events/{id}"
    routes = [web.get(path, shown), web.post(f"{path}/approval", decide)]
    async with served(routes) as url:
        found = await run("approve", EVENT_ID, "--hub", url, "--wait")

    assert (found.exit_code, len(looks)) == (0, 4)
    assert found.stdout == f"{EVENT_ID}: done, relayed\n"


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--wait",), 1)])
async def test_vote_that_decides_nothing_is_no_outcome(
    store: Store, more: tuple[str, ...], code: int
) -> None:
    """``--wait`` promises with 0 that the event starts."""
    two = AccessConfig(approvers=("local",), rules=(AccessRule(persons=2),))
    async with HubWorld(store, config(access=two)).open() as world:
        await world.scheduled()
        found = await run("approve", EVENT_ID, "--hub", world.url, *more)
    assert found.exit_code == code
    assert found.stdout == f"{EVENT_ID}: counted, 1 more person must approve\n"


async def test_outcome_that_does_not_come_in_time_is_said(world: HubWorld) -> None:
    await world.scheduled()
    more = ("--wait", "--timeout", "0s")
    found = await run("approve", EVENT_ID, "--hub", world.url, *more)
    assert found.exit_code == 1
    assert found.stdout.startswith(f"{EVENT_ID}: approved, decision ")


async def test_wrong_words_are_one_sentence(world: HubWorld) -> None:
    both = [received(step("scheduled", event(name))) for name in ("E-1", "E-2")]
    await world.store.keep([beat(), *both])
    for given, words in (
        ([], "EVENT_ID must be given"),
        (["zzzz"], "is not known to the hub"),
        (["E-"], "is the beginning of several EventIds: E-1, E-2"),
        ([EVENT_ID, "--session", "s"], "--session cannot be used with --hub"),
        ([EVENT_ID, "--force"], "--force cannot be used with --hub"),
        ([EVENT_ID, "--resource", "r"], "are not for --hub"),
    ):
        found = await run("approve", *given, "--hub", world.url)
        assert (found.exit_code, words in found.stderr) == (2, True), given


async def test_what_the_hub_refuses_is_reported(world: HubWorld) -> None:
    await world.scheduled()
    found = await run("approve", EVENT_ID, "--hub", world.url, "--via", "arm", "--yes")
    assert found.exit_code == 1
    assert "the hub says: " in found.stderr
    assert "ARM" in found.stderr


async def test_arm_by_a_hub_asks_before_it_asks(world: HubWorld) -> None:
    await world.scheduled()
    found = await run(
        "approve", EVENT_ID, "--hub", world.url, "--via", "arm", stdin="n"
    )
    assert found.exit_code == 2
    assert "web-0, web-1" in found.stderr
    assert "nothing was approved" in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "answer", "code", "words"),
    [
        ((), "y", 0, "Approve it? [y/N]"),
        ((), "n", 1, "nothing was approved"),
        (("--refuse",), "y", 0, "Refuse it? [y/N]"),
        (("--refuse",), "n", 1, "nothing was refused"),
    ],
)
async def test_terminal_shows_the_event_of_the_hub_and_asks(
    world: HubWorld, more: tuple[str, ...], answer: str, code: int, words: str
) -> None:
    await world.scheduled()
    arguments = ["approve", EVENT_ID[:8], "--hub", world.url, *more]
    ended, shown = await asyncio.to_thread(on_terminal, arguments, answer)

    assert ended == code, shown
    assert "Freeze of web-0, web-1" in shown
    assert f"EventId {EVENT_ID}, not before " in shown
    assert words in shown
    found = (await world.get("/api/v1/decisions"))["decisions"]
    assert len(found) == (0 if code else 1)
    assert [one["state"] == "refused" for one in found] == [bool(more)] * len(found)


@pytest.mark.parametrize("option", ["--resource=x", "--refuse"])
async def test_options_of_other_ways_are_refused_on_the_bus(
    option: str, tmp_path: Path
) -> None:
    path = tmp_path / "bridge.toml"
    path.write_text("")
    found = await run("approve", EVENT_ID, "-c", str(path), option)
    assert found.exit_code == 2
    assert "is for --hub or --via arm" in found.stderr


# -- approve by ARM, without a hub -------------------------------------------------


@pytest.fixture
async def arm() -> AsyncIterator[Arm]:
    imds = ImdsState(ImdsSettings(vm_name="web-0"))
    life = EventLife(event_type="Freeze", resources=("web-0",), event_id=EVENT_ID)
    imds.schedule(life)
    async with Arm([imds]) as server:
        yield server


async def by_arm(url: str, *more: str, stdin: str | None = None) -> Result:
    given = ("approve", "--via", "arm", "--arm-endpoint", url)
    return await run(*given, *more, stdin=stdin)


async def test_arm_acknowledges_without_a_hub_or_a_configuration(arm: Arm) -> None:
    found = await by_arm(arm.url, EVENT_ID, "--resource", RESOURCE, "--yes")

    assert found.exit_code == 0
    assert found.stdout == f"{EVENT_ID}: done, acknowledged\n"
    (asked,) = arm.requests
    assert asked.path.startswith(RESOURCE)


async def test_event_as_received_names_its_machine_and_is_asked_about(
    arm: Arm, tmp_path: Path
) -> None:
    path = tmp_path / "event.json"
    path.write_bytes(step("scheduled"))
    given = ("--from-event", str(path), "--json")

    refused = await by_arm(arm.url, *given, stdin="n\n")
    done = await by_arm(arm.url, *given, stdin="y\n")

    assert refused.exit_code == 2
    assert "web-0, web-1" in refused.stderr
    assert json.loads(done.stdout)["outcome"] == "acknowledged"
    assert len(arm.requests) == 1


@pytest.mark.integration
@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 2)])
async def test_terminal_is_told_what_nobody_prepares_before_azure_is_asked(
    arm: Arm, answer: str, code: int
) -> None:
    given = ["--via", "arm", "--arm-endpoint", arm.url, "--resource", RESOURCE]
    ended, shown = await asyncio.to_thread(
        on_terminal, ["approve", EVENT_ID, *given], answer
    )

    assert ended == code, shown
    assert "No bridge prepares the machines, and no bridge checks its rules" in shown
    assert len(arm.requests) == (0 if code else 1)
    assert ("acknowledged" if code == 0 else "nothing was approved") in shown


async def test_event_that_azure_does_not_know_is_a_failure(arm: Arm) -> None:
    other = EVENT_ID.replace("6", "7")
    found = await by_arm(arm.url, other, "--resource", RESOURCE, "--yes")
    assert found.exit_code == 1
    assert "failed, unknown-event" in found.stdout


async def test_arm_that_does_not_answer_is_one_sentence() -> None:
    url = "http://127.0.0.1:1"
    found = await by_arm(url, EVENT_ID, "--resource", RESOURCE, "--yes")
    assert found.exit_code == 1
    assert "Azure Resource Manager" in found.stderr


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([EVENT_ID], "needs --hub, --resource or --from-event"),
        (["--resource", RESOURCE], "EVENT_ID or --from-event must be given"),
        ([EVENT_ID, "--resource", "/x/../y"], "ARM needs the GUID"),
        (["a/b", "--resource", RESOURCE], "ARM needs the GUID"),
        ([EVENT_ID, "--resource", RESOURCE, "--refuse"], "--refuse needs --hub"),
        ([EVENT_ID, "--resource", RESOURCE], "answer it, or add --yes"),
    ],
)
async def test_wrong_words_ask_azure_nothing(
    arm: Arm, given: list[str], words: str
) -> None:
    found = await by_arm(arm.url, *given)
    assert found.exit_code == 2
    assert words in found.stderr
    assert arm.requests == []


async def test_endpoint_that_would_show_a_token_is_refused() -> None:
    url = "http://arm.example"
    found = await by_arm(url, EVENT_ID, "--resource", RESOURCE, "--yes")
    assert found.exit_code == 2
    assert "--arm-endpoint must begin with https://" in found.stderr


async def test_event_that_is_none_is_refused(arm: Arm, tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text("{}")
    found = await by_arm(arm.url, "--from-event", str(path))
    assert (found.exit_code, "--from-event" in found.stderr) == (2, True)
    path.write_bytes(step("scheduled"))
    found = await by_arm(arm.url, "other", "--from-event", str(path))
    assert "is not that of --from-event" in found.stderr
