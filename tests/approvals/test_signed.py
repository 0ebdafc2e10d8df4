"""``approvals.signed_by``: only what an approver has signed reaches IMDS, and once."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest
from msgspec.structs import replace

from bridge.approvals.auto_approve import AutoApprover
from bridge.approvals.listener import Listener
from bridge.approvals.rules import Rule
from bridge.events.cloudevent import rfc3339
from bridge.foundation.values import PublicKeys
from bridge.signing.approval import Approvers, expiry, signed
from bridge.signing.dsse import ATTRIBUTE
from bridge.signing.keys import PrivateKey, private_keys
from tests.approvals.approval_world import (
    PlayedQueue,
    World,
    message,
    with_many_decisions,
    world_of,
)
from tests.signing.test_dsse import KEY, OTHER
from tests.signing.test_keys import pem
from tests.support.builders import EVENT_ID, event_context_of, imds_event
from tests.support.fakes import START, FakeClock

SOURCE = event_context_of().source


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "approvers.jwks"
    write(path, KEY)
    return path


@pytest.fixture
async def world(tmp_path: Path, keys: Path) -> AsyncIterator[World]:
    approvers = Approvers([PublicKeys(f"file:{keys}", {})])
    async with world_of(tmp_path / "state.db", approvers=approvers) as found:
        found.imds.shows(imds_event())
        yield found


def write(path: Path, *keys: PrivateKey) -> None:
    path.write_bytes(orjson.dumps({"keys": [one.public.jwk for one in keys]}))


def event(**data: object) -> dict[str, Any]:
    """Return an approval before it is signed; None leaves a member out."""
    given: dict[str, object] = {
        "StartRequests": [{"EventId": EVENT_ID}],
        "approvedBy": "ann",
        "audience": SOURCE,
        "expiresAt": rfc3339(START + timedelta(hours=1)),
        "approvedEvent": imds_event(),
        **data,
    }
    return {
        "specversion": "1.0",
        "id": "a1",
        "source": "/approver",
        "type": "sebridge.startrequest.v1",
        "data": {name: value for name, value in given.items() if value is not None},
    }


def body(*signers: PrivateKey, **data: object) -> bytes:
    return signed(orjson.dumps(event(**data)), signers or [KEY])


async def outcome(world: World, given: bytes, **fields: Any) -> tuple[str, object]:
    """Handle a message; return the outcome and the reason of the newest event."""
    await world.handle(message(body=given, **fields))
    last = (await world.outcomes())[-1]
    return last.data["outcome"], last.data["reason"]  # type: ignore[return-value]  # text


async def test_signed_approval_is_relayed(world: World) -> None:
    assert await outcome(world, body()) == ("relayed", None)
    assert world.imds.posts == [EVENT_ID]


@pytest.mark.parametrize(
    "given",
    [
        {"StartRequests": [{"EventId": EVENT_ID}]},
        event(),
        {**event(), ATTRIBUTE: ""},
    ],
)
async def test_unsigned_approval_is_denied(world: World, given: Any) -> None:
    assert await outcome(world, orjson.dumps(given)) == ("denied", "Unsigned")
    assert world.imds.posts == []


async def test_binary_form_counts_as_unsigned(world: World) -> None:
    """Its properties are not signed as they came, and could be put beside a body."""
    whole = json.loads(body())
    data = whole.pop("data")
    properties = {f"cloudEvents_{name}": value for name, value in whole.items()}

    found = await outcome(world, orjson.dumps(data), application_properties=properties)
    assert found == ("denied", "Unsigned")


async def test_body_beside_signed_data_counts_for_nothing(world: World) -> None:
    whole = json.loads(body(StartRequests=[]))
    del whole["data"]
    whole["StartRequests"] = [{"EventId": EVENT_ID}]

    assert await outcome(world, orjson.dumps(whole)) == ("denied", "Unsigned")


@pytest.mark.parametrize(
    "change",
    [
        lambda whole: whole["data"].update(expiresAt="2026-03-03T12:00:00Z"),
        lambda whole: whole["data"].update(approvedBy="bob"),
        lambda whole: whole["data"].pop("approvedEvent"),
        lambda whole: whole.update(id="a2"),
        lambda whole: whole.update(time="0001-01-01T00:00:00+14:00"),
        lambda whole: whole.update(data={**whole["data"], "more": 1}),
        lambda whole: whole.update({ATTRIBUTE: whole[ATTRIBUTE][:-8]}),
        lambda whole: whole.update({ATTRIBUTE: "x"}),
    ],
)
async def test_changed_approval_is_denied(
    world: World, change: Callable[[dict[str, Any]], object]
) -> None:
    whole = json.loads(body())
    change(whole)

    assert await outcome(world, orjson.dumps(whole)) == ("denied", "WrongSignature")


async def test_approval_that_was_formatted_anew_is_denied(world: World) -> None:
    written_anew = json.dumps(json.loads(body()), indent=1).encode()

    assert await outcome(world, written_anew) == ("denied", "WrongSignature")


async def test_approval_by_a_foreign_key_is_denied(world: World) -> None:
    settlement = await world.handle(message(body=body(OTHER)))

    assert settlement is not None
    assert settlement.reason == "Denied"
    assert "a key that is not in signed_by" in settlement.words
    assert world.imds.posts == []


async def test_cut_message_is_invalid(world: World) -> None:
    assert (await outcome(world, body()[:-30]))[0] == "invalid"


@pytest.mark.parametrize("audience", [None, "/another", 5, [SOURCE]])
async def test_approval_for_others_is_denied(world: World, audience: object) -> None:
    found = await outcome(world, body(audience=audience))

    assert found == ("denied", "WrongAudience")


async def test_event_that_was_published_before_the_source_was_known_is_approved(
    world: World,
) -> None:
    """The hub has heard no other source of the event."""
    found = await outcome(world, body(audience="urn:sebridge:web-0"))
    assert found == ("relayed", None)


async def test_outcome_names_the_body_that_it_is_about(world: World) -> None:
    """Whoever sends another one under the same MessageId closes no decision."""
    for given in (body(), orjson.dumps(event())):
        await world.handle(message(body=given))
        request: Any = (await world.outcomes())[-1].data["request"]
        assert request["bodyHash"] == sha256(given).hexdigest()


async def test_audience_is_not_compared_while_the_own_source_is_not_known(
    tmp_path: Path, keys: Path
) -> None:
    makeshift = replace(event_context_of(), source="urn:sebridge:web-0")
    approvers = Approvers([PublicKeys(f"file:{keys}", {})])
    async with world_of(
        tmp_path / "s.db", approvers=approvers, event_context=makeshift
    ) as world:
        world.imds.shows(imds_event())
        assert await outcome(world, body()) == ("relayed", None)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"approvedEvent": None}, "approvedEvent is missing"),
        ({"expiresAt": None}, "expiresAt is no time"),
        ({"expiresAt": "2026-03-02T13:00:00"}, "expiresAt is no"),
        ({"expiresAt": rfc3339(START + timedelta(hours=25))}, "more than 24 h"),
    ],
)
async def test_approval_without_limits_is_invalid(
    world: World, data: dict[str, object], words: str
) -> None:
    kind, reason = await outcome(world, body(**data))

    assert kind == "invalid"
    assert words in str(reason)


@pytest.mark.parametrize(
    "twice",
    [
        (b'{"dssematerial"', b'{"id":"a1","dssematerial"'),
        (b'"approvedBy":"ann"', b'"approvedBy":"ann","approvedBy":"ann"'),
        (b'"EventType":', b'"EventType":"Freeze","EventType":'),
    ],
)
async def test_name_that_is_given_twice_is_invalid(
    world: World, twice: tuple[bytes, bytes]
) -> None:
    """Even with one value: who reads the first one may see another approval."""
    kind, reason = await outcome(world, body().replace(*twice))

    assert kind == "invalid"
    assert "given twice" in str(reason)


async def test_claims_outside_the_signature_do_not_count(world: World) -> None:
    given = {
        "approvedBy": "mallory",
        "reason": "none",
        "expiresAt": "2099-01-01T00:00Z",
    }
    asked = message(body=body(approvedBy=None), application_properties=given)
    await world.handle(asked)
    (found,) = await world.outcomes()

    assert found.data["outcome"] == "invalid", "two limits that differ"

    del given["expiresAt"]
    await world.handle(
        message(body=body(approvedBy=None), application_properties=given, sequence=8)
    )
    request: Any = (await world.outcomes())[-1].data["request"]
    assert (request["approvedBy"], request["reason"]) == (None, None)


async def test_data_as_base64_and_body_as_text_are_taken(world: World) -> None:
    """The JavaScript SDK sends a text as a JSON string."""
    whole = event()
    data = orjson.dumps(whole.pop("data"))
    whole["data_base64"] = base64.b64encode(data).decode()
    quoted = orjson.dumps(signed(orjson.dumps(whole), [KEY]).decode())

    assert await outcome(world, quoted) == ("relayed", None)


async def test_data_as_base64_may_begin_with_a_byte_order_mark(world: World) -> None:
    whole = event()
    data = b"\xef\xbb\xbf" + orjson.dumps(whole.pop("data"))
    whole["data_base64"] = base64.b64encode(data).decode()

    assert await outcome(world, signed(orjson.dumps(whole), [KEY])) == ("relayed", None)


# -- once ---------------------------------------------------------------------------


async def test_same_bytes_again_are_one_post(world: World) -> None:
    """Also under another MessageId, which nobody has signed."""
    given = body()
    assert await outcome(world, given) == ("relayed", None)

    again = await outcome(world, given, sequence=8, message_id="another")

    assert again == ("relayed", None)
    assert world.imds.posts == [EVENT_ID]


async def test_outcome_names_the_message_that_it_answers(world: World) -> None:
    """Whoever is first with the same bytes must not take the answer to the second."""
    given = body()
    for number, name in enumerate(("of-mallory", "of-the-hub")):
        await outcome(world, given, sequence=number, message_id=name)
        published: Any = (await world.outcomes())[-1].data

        assert published["outcome"] == "relayed"
        assert published["request"]["messageId"] == name


async def test_refused_bytes_are_decided_anew(world: World) -> None:
    world.with_terms(allow_event_types=("Reboot",))
    given = body()
    assert (await outcome(world, given))[0] == "denied"
    world.with_terms(allow_event_types=())
    later = START + timedelta(minutes=1)

    assert await outcome(world, given, sequence=8, enqueued_at=later) == (
        "relayed",
        None,
    )


async def test_same_id_with_other_bytes_is_denied(world: World) -> None:
    assert await outcome(world, body()) == ("relayed", None)

    again = await outcome(world, body(reason="more"), sequence=8)

    assert again == ("denied", "IdTaken")
    assert world.imds.posts == [EVENT_ID]


async def test_approval_waits_while_earlier_ones_cannot_be_read(
    world: World, tmp_path: Path
) -> None:
    """Another message may have had its id."""
    clock = FakeClock()
    async with with_many_decisions(tmp_path / "hanging.db") as door:
        world.context = replace(world.context, outbox=door.outbox, clock=clock)
        door.disk.freeze("SELECT")
        running = asyncio.create_task(world.handle(message(body=body())))
        while not clock.waits:
            await asyncio.sleep(0)
        assert world.imds.posts == []

        door.disk.thaw()
        await door.healed()
        await clock.advance(5)
        await running

        assert world.imds.posts == [EVENT_ID]


async def test_replay_after_its_end_is_expired(world: World) -> None:
    """A replay comes with an EnqueuedTime of its own, but not with a new expiresAt."""
    world.with_terms(allow_event_types=("Reboot",))
    given = body()
    await outcome(world, given)
    world.with_terms(allow_event_types=())
    world.clock.pass_by(2 * 3600)

    found = await outcome(world, given, sequence=8, enqueued_at=world.clock.now())

    assert found == ("expired", "ExpiresAt")
    assert world.imds.posts == []


async def test_own_rules_need_no_signature(world: World) -> None:
    world.with_terms(rules=(Rule(event_types=("Freeze",), action="auto-approve"),))
    await world.looks()
    async with asyncio.TaskGroup() as flows:
        await AutoApprover(world.context).step(flows)

    assert world.imds.posts == [EVENT_ID]


# -- the files of keys ----------------------------------------------------------------


async def test_approvals_wait_while_the_keys_cannot_be_read(
    world: World, keys: Path
) -> None:
    text = keys.read_bytes()
    keys.unlink()
    approvers = world.context.approvers
    assert approvers is not None
    assert "cannot be read" in str(approvers.fault)
    running = asyncio.create_task(outcome(world, body()))
    while not world.clock.waits:
        await asyncio.sleep(0)
    assert world.imds.posts == []

    keys.write_bytes(text)

    assert await running == ("relayed", None)
    assert approvers.fault is None


async def test_unknown_key_waits_for_a_file_that_cannot_be_read(
    tmp_path: Path, keys: Path
) -> None:
    """Its key may be in that file; what the other file knows is decided at once."""
    broken = tmp_path / "more.jwks"
    broken.write_text("{")
    approvers = Approvers([PublicKeys(f"file:{one}", {}) for one in (keys, broken)])
    async with world_of(tmp_path / "state.db", approvers=approvers) as world:
        world.imds.shows(imds_event())
        assert "signed_by[1]" in str(approvers.fault)
        assert await outcome(world, body()) == ("relayed", None)
        given = signed(orjson.dumps({**event(), "id": "a2"}), [OTHER])
        running = asyncio.create_task(outcome(world, given, sequence=2))
        while not world.clock.waits:
            await asyncio.sleep(0)
        assert len(world.imds.posts) == 1

        write(broken, OTHER)

        assert await running == ("relayed", None)


async def test_stop_gives_back_what_waits_for_keys(world: World, keys: Path) -> None:
    keys.write_text("{")
    queue, stop = PlayedQueue(), asyncio.Event()
    listener = Listener(queue, world.context)
    queue.waiting.put_nowait(message(body=body()))
    running = asyncio.create_task(listener.run(stop))
    while not world.clock.waits:
        await asyncio.sleep(0)
    assert listener.fault is not None
    stop.set()
    await running

    assert [verb for verb, *_ in queue.settled] == ["abandon"]
    assert world.counts == []


async def test_unsigned_approval_does_not_wait_for_keys(
    world: World, keys: Path
) -> None:
    keys.unlink()

    assert await outcome(world, orjson.dumps(event())) == ("denied", "Unsigned")


# -- how a key is replaced ------------------------------------------------------------


async def test_key_is_replaced_with_the_bridges_first(world: World, keys: Path) -> None:
    """Both keys in the file, then the signer's new one, then the old one goes."""
    steps = [
        ([KEY], [KEY], "relayed"),
        ([KEY, OTHER], [KEY], "relayed"),
        ([KEY, OTHER], [OTHER], "relayed"),
        ([OTHER], [OTHER], "relayed"),
        ([OTHER], [KEY], "denied"),
    ]
    for number, (known, used, expected) in enumerate(steps):
        write(keys, *known)
        whole = {**event(), "id": f"a{number}"}
        given = signed(orjson.dumps(whole), used)
        kind, _ = await outcome(world, given, sequence=number)
        assert kind == expected, number
    assert len(world.imds.posts) == 4


async def test_key_is_replaced_with_the_signer_first(world: World, keys: Path) -> None:
    """The signer signs with both, so the bridges may change one after the other."""
    both = private_keys("".join(map(pem, (KEY, OTHER))))  # of one file
    for number, known in enumerate([[KEY], [OTHER], [KEY, OTHER]]):
        write(keys, *known)
        given = signed(orjson.dumps({**event(), "id": f"a{number}"}), both)
        assert await outcome(world, given, sequence=number) == ("relayed", None)


async def test_message_keeps_its_signature_over_the_replacement(
    world: World, keys: Path
) -> None:
    """What was signed before the change still counts while its key is named."""
    before = body(KEY)
    write(keys, OTHER, KEY)

    assert await outcome(world, before) == ("relayed", None)


def test_expiry_is_not_before_within_a_day() -> None:
    soon, late = START + timedelta(seconds=5), START + timedelta(days=3)

    assert expiry(soon, START) == START + timedelta(minutes=1)
    assert expiry(START + timedelta(hours=2), START) == START + timedelta(hours=2)
    assert expiry(late, START) == expiry(None, START) == START + timedelta(hours=24)
