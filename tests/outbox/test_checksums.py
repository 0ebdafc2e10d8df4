"""What is damaged on the disk is not sent: it is dead, counted, and published again."""

import json
import logging
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

from bridge.app.identify import remembered, settle
from bridge.cli.events import as_record
from bridge.cli.rows import event_rows
from bridge.outbox.questions import Observation, Selection
from bridge.outbox.records import (
    CHECKPOINT,
    REPLIES,
    Decision,
    DeliveryState,
    Item,
    Reply,
    value_of,
)
from bridge.outbox.recovery.salvage import rescue
from bridge.outbox.recovery.soundness import check
from bridge.outbox.sink_state import Runs
from bridge.outbox.statefile import open_database, owner_of
from bridge.outbox.storage.file import connect
from bridge.outbox.storage.journal import checksum_of
from bridge.outbox.store import Outbox
from tests.support.book import Book
from tests.support.builders import (
    EVENT_ID,
    ME,
    SINK,
    body_of,
    imds_event,
    outgoing,
    patient_outbox,
    router,
    started,
)
from tests.support.damage import ForwarderParts
from tests.support.fakes import FakeClock
from tests.support.outboxes import publish_counts

NOW = 1_800_000_000.0
DAMAGED = "stored value is damaged: going on without it"


def test_checksum_is_the_same_in_every_version() -> None:
    """It stands in files: to count it in another way would make dead letters of all."""
    item = Item(7, "event", "K", "k", None, "a.type", b'{"id": "\xc3\xa4"}')

    plain = b'[7,"event","K","k",null,"a.type"]{"id": "\xc3\xa4"}'
    assert checksum_of(item) == zlib.crc32(plain) == 3358565466


HARMS = {
    "body": "UPDATE items SET body = replace(body, 'waits', 'waitz')",
    "type": "UPDATE items SET type = 'sebridge.scheduledevent.started.v1'",
    "event": "UPDATE items SET event_id = 'other'",
    "key": "UPDATE items SET key = 'OTHER'",
    "id": "UPDATE items SET cloud_event_id = 'other'",
    "kind": "UPDATE items SET kind = 'reply'",
    "no text": "UPDATE items SET type = CAST(x'73ff' AS TEXT)",
    "no bytes": "UPDATE items SET body = 7",
    "not text": "UPDATE items SET type = x'73'",
    "number": "UPDATE items SET created = 'soon'",
    "attempts": "UPDATE deliveries SET attempts = 'many'",
    "other item": "UPDATE items SET id = 99",
    "swapped": "UPDATE items SET body = x'7b7d', id = id",
}


async def left(path: Path, name: str = "waits") -> None:
    """Leave a file behind in which one event waits, and a later step of it."""
    async with open_database(path, ME.vm_id) as database:
        outbox = await Outbox.of(database, router())
        await outbox.commit([outgoing(name, key="K", data={"name": name})], now=NOW)


def harm(path: Path, statement: str) -> None:
    with closing(connect(path)) as db:
        db.create_function(
            "replace",
            3,
            lambda body, old, new: body.replace(old.encode(), new.encode()),
        )
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute(statement)


@pytest.mark.parametrize("statement", HARMS.values(), ids=HARMS)
async def test_damaged_delivery_is_a_dead_letter_and_what_is_behind_it_goes(
    statement: str, state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await left(state_path)
    harm(state_path, statement)
    lost = list[str]()

    async with patient_outbox(state_path, router()) as outbox:
        outbox.image.lost = lost.append
        await outbox.commit([outgoing("later", key="K")], now=NOW)
        found, _ = await outbox.deliveries.due(SINK, now=NOW, limit=9)

        assert [d.cloud_event_id for d in found] == ["later"]
        assert lost == [SINK]
        tally = (await outbox.deliveries.tallies())[SINK]
        assert (tally.pending, tally.dead) == (1, 1)
        assert "state file" in (tally.last_error or "")
    (record,) = [r for r in caplog.records if r.message == "dead letter"]
    assert vars(record)["reason"] == "damaged"
    assert vars(record)["sink"] == SINK


async def test_damaged_delivery_is_shown_and_stays_dead_when_sent_again(
    state_path: Path,
) -> None:
    await left(state_path)
    harm(state_path, HARMS["body"])
    dead = Selection(states=("dead",))

    async with patient_outbox(state_path, router()) as outbox:
        for _ in range(2):
            assert await outbox.deliveries.due(SINK, now=NOW, limit=9) == ([], None)
            (delivery,), _, _ = await Book(outbox).retry(dead, now=NOW, force=False)
            assert delivery.cloud_event_id == "waits"


async def test_several_damaged_ones_hold_up_nothing(state_path: Path) -> None:
    async with patient_outbox(state_path, router()) as outbox:
        await outbox.commit(
            [outgoing(f"bad {n}", key=f"K{n}") for n in range(9)], now=NOW
        )
        await outbox.commit([outgoing("good", key="G")], now=NOW + 1)
    harm(state_path, "UPDATE items SET type = 'x' WHERE cloud_event_id GLOB 'bad*'")

    async with patient_outbox(state_path, router()) as outbox:
        found, _ = await outbox.deliveries.due(SINK, now=NOW + 1, limit=2)
        assert [d.cloud_event_id for d in found] == ["good"]


async def test_delivery_that_names_the_content_of_another_tells_its_own_again(
    state_path: Path,
) -> None:
    """The other was published twice, and its own never."""
    async with patient_outbox(state_path, router()) as outbox:
        await outbox.commit(
            [outgoing("one", key="A"), outgoing("two", key="B")], now=NOW
        )
    harm(state_path, "UPDATE deliveries SET item = 2")

    async with patient_outbox(state_path, router()) as outbox:
        found, _ = await outbox.deliveries.due(SINK, now=NOW, limit=9)
        assert [d.cloud_event_id for d in found] == ["two"]
        assert outbox.observations.again == {"A"}


async def test_count_of_what_was_published_is_never_none(state_path: Path) -> None:
    """Otherwise it would be published again under an id that consumers have seen."""
    await left(state_path)
    harm(state_path, "UPDATE told SET times = 0")

    async with patient_outbox(state_path, router()) as outbox:
        assert list((await publish_counts(outbox, "waits")).values()) == [1]


async def test_damaged_reply_is_not_sent_and_asks_for_no_event(
    state_path: Path,
) -> None:
    async with patient_outbox(state_path, router()) as outbox:
        await outbox.commit([], now=NOW, reply=Reply(key="r", body=b"waits"))
    harm(state_path, HARMS["body"])

    async with patient_outbox(state_path, router()) as outbox:
        assert await outbox.deliveries.due(REPLIES, now=NOW, limit=9) == ([], None)
        assert outbox.observations.again == frozenset()


async def test_last_call_sends_nothing_damaged(state_path: Path) -> None:
    await left(state_path)
    harm(state_path, HARMS["body"])

    async with patient_outbox(state_path, router()) as outbox:
        assert await outbox.deliveries.of_cloud_event(SINK, "waits") == []


# -- published again from the document -------------------------------------------------


async def observed(path: Path, *documents: bytes) -> None:
    """Look at documents; nothing is delivered."""
    async with open_database(path, ME.vm_id) as database:
        parts = ForwarderParts(await Outbox.of(database, router()), FakeClock())
        parts.metadata.says(*documents)
        await parts.observer.restore()
        for _ in documents:
            await parts.poller.step()


async def next_life(
    path: Path,
    *documents: bytes,
    sees: Callable[[ForwarderParts], None] = lambda _: None,
) -> list[tuple[str, str, object]]:
    """Look at documents, and deliver what there is after each look.

    Returns:
        Id, transition and ``announced`` of each event that was taken.
    """
    async with open_database(path, ME.vm_id) as database:
        parts = ForwarderParts(await Outbox.of(database, router()), FakeClock())
        parts.metadata.says(*documents)
        await parts.observer.restore()
        for _ in documents:
            await parts.poller.step()
            await parts.outbox.state.write({})  # what is committed is on the disk
            due, _ = await parts.outbox.deliveries.due(SINK, now=NOW, limit=9)
            parts.sink.taken += due
            for one in due:
                await parts.outbox.deliveries.delivered(one, now=NOW)
        sees(parts)
    bodies = [json.loads(delivery.body) for delivery in parts.sink.taken]
    return [(b["id"], b["data"]["transition"], b["data"]["announced"]) for b in bodies]


BODY = HARMS["body"].replace("waits", "Host").replace("waitz", "Hust")


async def test_event_whose_step_was_damaged_is_published_again_under_a_new_id(
    state_path: Path,
) -> None:
    document = body_of(imds_event())
    await observed(state_path, document)
    harm(state_path, BODY)

    ((number, transition, announced),) = await next_life(
        state_path, document, document, document
    )

    assert (transition, announced) == ("scheduled", True)
    async with open_database(state_path, ME.vm_id) as database:
        (dead,) = await (await Book.of(database)).find(Selection(states=("dead",)))
    assert dead.cloud_event_id != number


async def test_started_event_is_published_again_as_what_it_was(
    state_path: Path,
) -> None:
    """That it was announced is still known: it is no failure of the host."""
    documents = body_of(imds_event()), body_of(started(), incarnation=3)
    await observed(state_path, *documents)
    harm(state_path, f"{BODY} WHERE type LIKE '%started%'")

    taken = await next_life(state_path, documents[1], documents[1], documents[1])

    assert [(what, announced) for _, what, announced in taken] == [
        ("scheduled", True),
        ("started", True),
    ]


async def test_what_is_to_be_published_again_survives_a_kill(state_path: Path) -> None:
    document = body_of(imds_event())
    await observed(state_path, document)
    harm(state_path, BODY)
    async with patient_outbox(state_path, router()) as outbox:
        await outbox.deliveries.due(SINK, now=NOW, limit=9)
        assert outbox.observations.again == {EVENT_ID.upper()}

    taken = await next_life(state_path, document, document)

    assert [what for _, what, _ in taken] == ["scheduled"]
    async with patient_outbox(state_path, router()) as outbox:
        await outbox.observations.load_again()
        assert outbox.observations.again == frozenset()


async def test_event_that_is_gone_by_then_is_published_as_gone(
    state_path: Path,
) -> None:
    await observed(state_path, body_of(imds_event()))
    harm(state_path, BODY)

    taken = await next_life(state_path, *[body_of(incarnation=3)] * 3)

    assert [what for _, what, _ in taken] == ["cancelled"]


async def test_event_that_may_come_back_is_published_again_when_it_does(
    state_path: Path,
) -> None:
    """After a move of the VM the document is empty at first."""
    document = body_of(imds_event(), incarnation=9)
    await observed(state_path, document)
    harm(state_path, BODY)

    taken = await next_life(
        state_path,
        body_of(incarnation=1),
        body_of(incarnation=1),
        *[body_of(imds_event(), incarnation=2)] * 3,
    )

    assert [what for _, what, _ in taken] == ["scheduled"]


async def test_damaged_outcome_does_not_tell_its_event_again(state_path: Path) -> None:
    await left(state_path)
    harm(
        state_path,
        "UPDATE items SET type = 'sebridge.startrequest.relayed.v1', body = x'00'",
    )

    async with patient_outbox(state_path, router()) as outbox:
        assert await outbox.deliveries.due(SINK, now=NOW, limit=9) == ([], None)
        assert outbox.observations.again == frozenset()


# -- what is saved of a damaged file ---------------------------------------------------


async def test_what_is_saved_keeps_its_numbers_its_order_and_its_memory(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decision = Decision(
        message="m", key="K", event_id="k", sequence=3, state="relayed", posted=True
    )
    async with open_database(state_path, ME.vm_id) as database:
        outbox = await Outbox.of(database, router())
        await outbox.commit([outgoing("gone", key="K")], now=NOW)
        ((gone,), _) = await outbox.deliveries.due(SINK, now=NOW, limit=9)
        await outbox.deliveries.delivered(gone, now=NOW)
        for name in ("first", "second"):
            await outbox.commit(
                [outgoing(name, key="K")], now=NOW, decisions=[decision]
            )
        await outbox.commit([outgoing("third", key="L")], now=NOW)
    harm(state_path, "INSERT INTO sightings (key, at) VALUES ('K', 'soon')")
    caplog.set_level(logging.ERROR)

    async with open_database(state_path, ME.vm_id) as database:
        (record,) = caplog.records
        assert (vars(record)["unreadable"], vars(record)["isWhole"]) == (1, True)
        outbox = await Outbox.of(database, router())
        found, _ = await outbox.deliveries.due(SINK, now=NOW, limit=9)
        assert [(d.id, d.cloud_event_id) for d in found] == [(2, "first"), (4, "third")]
        assert await publish_counts(outbox, "gone", "first") == {
            "gone": 1,
            "first": 1,
        }
        assert await outbox.approvals.of_message("m") == {"K": decision}
        await outbox.deliveries.delivered(found[0], now=NOW)
        (second, _), _ = await outbox.deliveries.due(SINK, now=NOW, limit=9)
        assert second.cloud_event_id in {"second", "third"}
        await outbox.commit([outgoing("next", key="M")], now=NOW)
        assert max(d.id for d in await (await Book.of(database)).find(Selection())) == 5
        tally = (await outbox.deliveries.tallies())[SINK]
        assert (tally.pending, tally.dead, tally.delivered) == (3, 0, 1)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE deliveries SET sink = CAST(x'ff' AS TEXT) WHERE id = 1",
        "UPDATE deliveries SET due = 'soon' WHERE id = 1",
        "UPDATE deliveries SET key = CAST(x'ff' AS TEXT) WHERE id = 1",
        "UPDATE items SET type = CAST(x'ff' AS TEXT) WHERE id = 1",
        "UPDATE items SET created = 'soon' WHERE id = 1",
        "UPDATE deliveries SET item = 'one' WHERE id = 1",
    ],
)
async def test_row_that_cannot_be_read_is_one_dead_row(
    statement: str, state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    document = body_of(imds_event("A"), imds_event("B"))
    await observed(state_path, document)
    harm(state_path, statement)
    caplog.set_level(logging.ERROR)

    taken = await next_life(state_path, document, document)

    assert len(taken) == 2  # B, and A again
    async with open_database(state_path, ME.vm_id) as database:
        (dead,) = await (await Book.of(database)).find(Selection(states=("dead",)))
        assert dead.id == 1
        assert dead.last_error == "it could not be read in a damaged state file"
    assert len(list(state_path.parent.glob("state.db.corrupt-*"))) == 1


# -- time ------------------------------------------------------------------------------


def fill(path: Path, count: int) -> None:
    harm(
        path,
        f"""WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n
            WHERE i < {count:d})
            INSERT INTO sightings (key, at) SELECT 'K' || i, 1.0 FROM n""",  # noqa: S608 - a number
    )


async def test_look_that_takes_too_long_is_broken_off_and_says_so(
    state_path: Path,
) -> None:
    await left(state_path)
    fill(state_path, 20_000)

    with closing(connect(state_path)) as db:
        assert check(db, seconds=0.0, clock=FakeClock()) is False
        assert check(db, seconds=60.0, clock=FakeClock()) is True
        assert db.execute("SELECT count(*) FROM sightings").fetchone() == (20_000,)


async def test_rescue_that_takes_too_long_has_copied_what_waits(
    state_path: Path, tmp_path: Path
) -> None:
    await left(state_path)
    fill(state_path, 20_000)
    fresh = tmp_path / "fresh.db"

    found = rescue(state_path, fresh, seconds=0.0, clock=FakeClock())

    assert not found.is_whole
    async with patient_outbox(fresh, router()) as outbox:
        ((delivery,), _) = await outbox.deliveries.due(SINK, now=NOW + 10**9, limit=9)
        assert delivery.cloud_event_id == "waits"


@pytest.mark.parametrize("state", get_args(DeliveryState))
async def test_intact_delivery_in_any_state_is_no_damage(
    state: DeliveryState, state_path: Path, tmp_path: Path
) -> None:
    """A delivery is copied as long as it waits, or as a dead letter."""
    await left(state_path)
    async with patient_outbox(state_path, router()) as outbox:
        runs = Runs(outbox, SINK)
        (delivery,) = await runs.pending(NOW)
        if state == "discarded":
            await Book(outbox).discard(Selection(), now=NOW)
        elif state != "pending":
            await runs.settle(delivery, state, [], now=NOW)
    fresh = tmp_path / "fresh.db"

    found = rescue(state_path, fresh, seconds=60.0, clock=FakeClock())

    assert found.unreadable == 0
    async with patient_outbox(fresh, router()) as outbox:
        states = [d.state for d in await Book(outbox).find(Selection())]
        assert states == ([state] if state in {"pending", "dead"} else [])
        await outbox.observations.load_again()
        assert outbox.observations.again == frozenset()


async def test_delivery_in_no_state_of_ours_is_damaged(
    state_path: Path, tmp_path: Path
) -> None:
    await left(state_path)
    harm(state_path, "UPDATE deliveries SET state = 'delavered'")
    fresh = tmp_path / "fresh.db"

    found = rescue(state_path, fresh, seconds=60.0, clock=FakeClock())

    assert found.unreadable == 1
    async with patient_outbox(fresh, router()) as outbox:
        (dead,) = await Book(outbox).find(Selection(states=("dead",)))
        assert dead.cloud_event_id == "waits"
        await outbox.observations.load_again()
        assert outbox.observations.again == {"K"}


async def test_delivery_whose_row_is_gone_is_known_by_its_index(
    state_path: Path, tmp_path: Path
) -> None:
    """The page that held it is lost; an index still says that it waited."""
    documents = body_of(*(imds_event(f"E{n}") for n in range(300)))
    await observed(state_path, documents)
    page = leaf_of_deliveries(state_path)
    body = bytearray(state_path.read_bytes())
    body[(page - 1) * 4096 : page * 4096] = b"\xaa" * 4096
    state_path.write_bytes(body)
    fresh = tmp_path / "fresh.db"

    found = rescue(state_path, fresh, seconds=60.0, clock=FakeClock())

    assert found.is_whole
    assert found.unreadable > 10
    async with patient_outbox(fresh, router()) as outbox:
        tally = (await outbox.deliveries.tallies())[SINK]
        assert tally.pending + tally.dead == 300
        assert tally.dead > 10
        await outbox.observations.load_again()
        assert len(outbox.observations.again) == 300  # nobody can say which were lost


def leaf_of_deliveries(path: Path) -> int:
    """Return the number of a page in the middle of the table."""
    with closing(connect(path)) as db:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'deliveries'"
        (root,) = db.execute(query).fetchone()
    page = path.read_bytes()[(root - 1) * 4096 : root * 4096]
    assert page[0] == 5, "an inner page of a table"
    cell = int.from_bytes(page[14:16], "big")  # its second cell: the next one's number
    return int.from_bytes(page[cell : cell + 4], "big")


# -- what people see -------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"{"])
def test_damaged_body_is_shown_as_such(body: bytes) -> None:
    seen = Observation(1, body, ())

    assert value_of(body) is None
    assert as_record(seen) == {"event": None, "deliveries": []}
    (row,) = event_rows(seen)
    assert [column[0].text for column in row] == [
        *("-", "damaged", "-", "-", "-", "no sink"),
    ]


async def test_identity_that_cannot_be_read_is_asked_for_anew(
    state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_database(state_path, ME.vm_id) as database:
        for name in ("identity", "source"):
            database.put({("meta", (name,)): (b"\xff",)})

        origin = await settle(database, ME, "")

        assert origin.identity == ME
        assert "stored identity of this VM is damaged" in caplog.messages
        assert await remembered(database) == ME


async def test_outcome_and_count_that_cannot_be_read_are_left_out(
    state_path: Path,
) -> None:
    async with patient_outbox(state_path, router()) as outbox:
        for number, data in enumerate((b"\xff", b'{"outcome": "relayed"}')):
            decision = Decision(
                message=f"{number}",
                key="K",
                event_id="k",
                sequence=1,
                state="relayed",
                data=data,
            )
            await outbox.approvals.save(decision, now=NOW)

        assert await outbox.approvals.recent_outcomes(9) == [b'{"outcome": "relayed"}']


# -- what is kept beside deliveries ------------------------------------------------


@pytest.mark.parametrize("bit", range(8))
async def test_file_whose_owner_is_damaged_is_no_other_vms(
    bit: int, state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was moved aside, and what waited in it was delivered to nobody."""
    await left(state_path)
    owner = bytearray(str(ME.vm_id).encode())
    owner[-1] ^= 1 << bit
    with closing(connect(state_path)) as db:
        name = (bytes(owner),)
        db.execute("UPDATE meta SET value = ? WHERE key = 'vm_id'", name)

    for _ in range(2):
        async with open_database(state_path, ME.vm_id) as database:
            outbox = await Outbox.of(database, router())
            found, _ = await outbox.deliveries.due(SINK, now=NOW, limit=9)
            assert [d.cloud_event_id for d in found] == ["waits"]
            assert await owner_of(database) == ME.vm_id
    assert list(state_path.parent.glob("*-20*")) == []
    lines = [r for r in caplog.records if r.message == DAMAGED]
    assert [vars(record)["what"] for record in lines] == ["vm_id"]


@pytest.mark.parametrize("name", [CHECKPOINT, "identity", "source"])
async def test_damaged_value_is_not_read_back(
    name: str, state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A digit of it is another one: it can be read, and says what never was."""
    async with patient_outbox(state_path, router()) as outbox:
        await outbox.observations.save({name: b'{"number": 7}'})
        assert await outbox.observations.load(name) == b'{"number": 7}'
    with closing(connect(state_path)) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = ?", (b'{"number": 5}', name))

    async with patient_outbox(state_path, router()) as outbox:
        assert await outbox.observations.load(name) == b""
        assert DAMAGED in caplog.messages
        await outbox.observations.save({name: b"anew"})
        assert await outbox.observations.load(name) == b"anew"


FORGED = {
    "posted": "UPDATE approvals SET posted = 1 - posted",
    "state": "UPDATE approvals SET state = 'relaxed'",
    "outcome": "UPDATE approvals SET state = 'denied'",
    "words": "UPDATE approvals SET data = replace(data, 'relayed', 'related')",
    "no text": "UPDATE approvals SET state = CAST(x'73ff' AS TEXT)",
    "sequence": "UPDATE approvals SET sequence = 5",
    "rule": "UPDATE approvals SET rule = 'mine'",
}


@pytest.mark.parametrize("state", ["intent", "relayed"])
@pytest.mark.parametrize("statement", FORGED.values(), ids=FORGED)
async def test_damaged_decision_is_none(
    statement: str, state: str, state_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It must neither say that a POST was begun, nor be published once more."""
    whole = Decision(
        message="m",
        key="K",
        event_id="k",
        sequence=4,
        state=state,
        data=b'{"outcome": "relayed"}',
    )
    async with patient_outbox(state_path, router()) as outbox:
        await outbox.approvals.save(whole, now=NOW)
        assert await outbox.approvals.of_message("m") == {"K": whole}
    harm(state_path, statement)

    async with patient_outbox(state_path, router()) as outbox:
        assert await outbox.approvals.of_message("m") == {}
        assert await outbox.approvals.open_initiatives() == []
        assert await outbox.approvals.recent_outcomes(9) == []
        assert DAMAGED in caplog.messages
        await outbox.approvals.save(whole, now=NOW)
        assert await outbox.approvals.of_message("m") == {"K": whole}
