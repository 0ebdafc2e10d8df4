"""``sebridge approve``: the approver's side, with the real SDK against the broker."""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from click.testing import CliRunner, Result
from jsonschema import FormatChecker, validate
from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from bridge.app.approve_reply import Answers
from bridge.approvals.message import parse
from bridge.approvals.reply import ReplyEnvelope, ReplySender
from bridge.cli.approve import request_of
from bridge.cli.approve_view import Options
from bridge.cli.main import main
from bridge.configuration import json_schema
from bridge.events.cloudevent import CloudEvent
from bridge.foundation.clock import SystemClock
from bridge.foundation.values import Secret
from bridge.servicebus.decode import read
from bridge.servicebus.namespace import NamespaceConfig
from bridge.signing.dsse import SignedEvent, Verdict, judge
from bridge.simulator.servicebus.broker import Broker
from tests.signing.test_dsse import KEY
from tests.signing.test_keys import pem
from tests.support.builders import imds_event, outgoing, patient_outbox, router
from tests.support.disks import hide
from tests.support.nested import HERE, holding, lists, objects
from tests.support.sink_fixtures import EVENT_ID, cloud_event, drained
from tests.support.terminal import on_terminal

NOWHERE = (
    "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=k;SharedAccessKey=a2V5;"
    "UseDevelopmentEmulator=true"
)
REPORTER = {
    "vmName": "web-0",
    "vmId": "vm-1",
    "resourceId": "/subscriptions/s/resourceGroups/Blue/providers/x",
    "vmScaleSetName": None,
}
SEEN = cloud_event(reporter=REPORTER)
ME = "ann"
NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def ordinary_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the log settings of the test process, which the command changes."""
    monkeypatch.setenv("LOGNAME", ME)
    root, azure = logging.getLogger(), logging.getLogger("azure")
    kept = (root.handlers[:], root.level, azure.level)
    yield
    root.handlers[:], root.level, azure.level = kept


def configured(folder: Path, bus: str = NOWHERE, **approvals: Any) -> Path:
    """Write the forwarder's file; the approver lacks the secrets of its sinks."""
    keys: dict[str, Any] = {"queue": "vm-approvals", "reply_to": ["replies"]}
    if "topic" in approvals:
        del keys["queue"]
    lines = [f"{key} = {json.dumps(v)}" for key, v in {**keys, **approvals}.items()]
    path = folder / "bridge.toml"
    path.write_text(
        '[http]\ntoken = "env:NOT_SET_HERE"\n'
        '[[sinks]]\nname = "ops"\ntype = "slack"\nwebhook_url = "env:NOT_SET_HERE"\n'
        f"[approvals]\nconnection_string = {json.dumps(bus)}\n" + "\n".join(lines)
    )
    return path


def received(folder: Path, event: CloudEvent = SEEN) -> str:
    path = folder / "event.json"
    path.write_bytes(event.to_json())
    return str(path)


def approve(config: Path, *arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(
        main,
        ["approve", "-c", str(config), *arguments],
        input=stdin,
        catch_exceptions=False,
    )


async def approved(config: Path, *arguments: str) -> Result:
    return await asyncio.to_thread(approve, config, *arguments)


def body_of(message: ServiceBusReceivedMessage) -> bytes:
    return b"".join(message.body)


# -- the sent message --------------------------------------------------------------


async def test_bridge_accepts_the_approval(broker: Broker, tmp_path: Path) -> None:
    config = configured(tmp_path, broker.connection_string)

    result = await approved(config, EVENT_ID, "--reason", "at night", "--json")

    (message,) = await drained(broker, "vm-approvals")
    event = json.loads(body_of(message))
    validate(event, json_schema.approval(), format_checker=FormatChecker())
    taken = parse(
        body_of(message), read(message).application_properties, prefix="sebridge"
    )
    assert taken.event_ids == (EVENT_ID,)
    assert (taken.approved_by, taken.reason) == (ME, "at night")
    assert taken.approved_event is None
    assert event["source"].startswith("urn:sebridge:approve:")
    assert event["id"] == message.message_id
    assert (message.content_type, message.session_id, message.reply_to) == (
        "application/cloudevents+json",
        None,
        None,
    )
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "messageId": message.message_id,
        "eventId": EVENT_ID,
        "entity": "vm-approvals",
        "session": None,
        "outcome": None,
        "outcomes": [],
    }


async def test_received_event_gives_event_id_and_session(
    broker: Broker, tmp_path: Path
) -> None:
    config = configured(
        tmp_path,
        broker.connection_string,
        queue="vm-approvals-sessions",
        sessions=["{vm_id}"],
    )

    result = await approved(
        config, "--from-event", received(tmp_path), "--approved-by", "bob"
    )

    (message,) = await drained(broker, "vm-approvals-sessions", session="vm-1")
    taken = parse(body_of(message), {}, prefix="sebridge")
    assert taken.event_ids == (EVENT_ID,)
    assert taken.approved_event == IN_IMDS
    assert taken.approved_by == "bob"
    assert result.stdout == (
        f"{EVENT_ID}: approval sent to vm-approvals-sessions, session vm-1\n"
    )


async def test_event_that_has_started_is_approved_with_a_warning(
    broker: Broker, tmp_path: Path
) -> None:
    config = configured(tmp_path, broker.connection_string)
    event = {"EventId": EVENT_ID, "EventStatus": "Started"}
    path = received(tmp_path, cloud_event("scheduledevent.started", event=event))

    result = await approved(config, "--from-event", path)

    assert result.exit_code == 0
    assert (
        result.stderr == "warning: --from-event: the event in it has already started\n"
    )


def test_event_id_need_not_be_given(tmp_path: Path) -> None:
    result = approve(configured(tmp_path), "--help")

    assert "[OPTIONS] [EVENT_ID]\n" in result.stdout


async def test_topic_and_another_type_prefix(broker: Broker, tmp_path: Path) -> None:
    config = configured(
        tmp_path,
        broker.connection_string,
        topic="scheduled-events",
        subscription="consumer",
    )
    with config.open("a") as file:
        file.write('\n[events]\ntype_prefix = "acme"\n')

    result = await approved(config, EVENT_ID)

    (message,) = await drained(broker)
    assert result.exit_code == 0
    assert parse(body_of(message), {}, prefix="acme").event_ids == (EVENT_ID,)


async def test_every_approval_has_another_message_id(
    broker: Broker, tmp_path: Path
) -> None:
    """With duplicate detection, an equal MessageId would be dropped silently."""
    config = configured(
        tmp_path,
        broker.connection_string,
        topic="scheduled-events",
        subscription="consumer",
    )

    for _ in range(2):
        await approved(config, EVENT_ID)

    assert len(await drained(broker, count=2)) == 2


# -- wrong usage: exit 2, and nothing is sent -----------------------------------------


OVER = cloud_event("scheduledevent.cancelled")
TEST = cloud_event(test=True)
CUT = cloud_event(truncated=["previous", "Resources"])
NO_EVENT = cloud_event("bridge.started", event=None)
DEEP = [
    holding(orjson.loads(event.to_json()), nest(depth))
    for event in (
        cloud_event(unknown=HERE),
        cloud_event(transition=HERE),
        cloud_event(truncated=[HERE]),
        cloud_event(event=imds_event() | {"EventStatus": HERE}),
    )
    for depth, nest in ((100, lists), (500, objects), (990, lists), (1015, lists))
]
WRONG: list[tuple[dict[str, Any], list[str], bytes, str]] = [
    ({}, [], b"", "EVENT_ID or --from-event must be given"),
    ({}, ["E"], b"", "that of --from-event"),
    ({}, [" ", "--force"], b"", "the bridge would not take it"),
    ({}, ["hello"], b"", "EVENT_ID 'hello' is no EventId such as "),
    ({}, [EVENT_ID[:-1]], b"", "is no EventId such as "),
    ({}, [f"{EVENT_ID}\n"], b"", "is no EventId such as "),
    ({}, [""], b"", "is no EventId such as "),
    ({}, [EVENT_ID, "--session", ""], b"", "--session must have 1 to 128"),
    ({}, [EVENT_ID, "--session", "x" * 129], b"", "--session must have 1 to 128"),
    ({}, [EVENT_ID, "--timeout", "1s"], b"", "--timeout needs --wait"),
    ({}, [EVENT_ID, "--wait", "--timeout", "soon"], b"", "must be a number of seconds"),
    ({}, [], b"{", "is no JSON"),
    ({}, [], b"[]", "is no structured CloudEvent"),
    ({}, [], b'{"StartRequests": []}', "is no structured CloudEvent"),
    ({}, [], NO_EVENT.to_json(), "has no scheduled event"),
    ({}, [], OVER.to_json(), "says that the event is over (cancelled)"),
    ({}, [], TEST.to_json(), "is a test event"),
    ({}, [], CUT.to_json(), "does not hold the whole event"),
    *(({}, [], body, "is nested more than 80 levels deep") for body in DEEP),
    ({}, [], b"[" * 100_000, "is no JSON"),
    ({"sessions": ["{vm_id}"]}, [EVENT_ID], b"", "--session or --from-event"),
    ({"sessions": ["{vm_id}", "group-7"]}, [EVENT_ID], b"", '"{vm_id}", "group-7"'),
    (
        {"sessions": ["{group}"]},
        [],
        SEEN.to_json(),
        "{group} in '{group}' is not known",
    ),
    ({"queue": "q-{group}"}, [EVENT_ID], b"", "approvals.queue: {group}"),
    (
        {"reply_to": ["r*", "[r]eplies"]},
        [EVENT_ID, "--wait"],
        b"",
        "approvals.reply_to",
    ),
    ({"reply_to": ["vm-approvals"]}, [EVENT_ID, "--wait"], b"", "approvals.reply_to"),
    ({"reply_to": []}, [EVENT_ID, "--wait"], b"", "approvals.reply_to"),
]


ELSEWHERE = NOWHERE.replace("127.0.0.1", "127.0.0.2")


@pytest.mark.parametrize(
    ("sink", "chosen"),
    [
        (f"connection_string = '{NOWHERE}'\nqueue = 'Replies-1'", "replies-2"),
        (f"connection_string = '{NOWHERE}'\ntopic = 'replies-1'", "replies-2"),
        # The namespace is in a secret that the approver lacks: it may be the same one.
        ("connection_string = 'env:NOT_SET_HERE'\nqueue = 'replies-1'", "replies-2"),
        (f"connection_string = '{ELSEWHERE}'\nqueue = 'replies-1'", "replies-1"),
        ("namespace = 'a.example.net'\nqueue = 'replies-1'\nodd = 1", "replies-1"),
        (f"connection_string = '{NOWHERE}'\nqueue = 'other'", "replies-1"),
        ("connection_string = 'env:NOT_SET_HERE'", "replies-1"),
    ],
)
def test_command_waits_at_the_entity_that_the_bridge_replies_to(
    sink: str, chosen: str, tmp_path: Path
) -> None:
    """Bridge and command use the same rules: no reply goes to a sink's entity."""
    config = configured(tmp_path, reply_to=["replies-1", "replies-2"])
    with config.open("a") as file:
        file.write(f"\n[[sinks]]\nname = 'bus'\ntype = 'servicebus'\n{sink}\n")
        file.write("[[sinks]]\ntype = 'no-such'\n[[sinks]]\nname = 'x'\n")

    request = request_of(config, {}, Options(event_id=EVENT_ID, wait=True), None)

    assert request.reply_to == chosen


@pytest.mark.parametrize(("keys", "arguments", "stdin", "words"), WRONG)
def test_wrong_usage_ends_with_2(
    keys: dict[str, Any],
    arguments: Sequence[str],
    stdin: bytes,
    words: str,
    tmp_path: Path,
) -> None:
    if words.startswith("{group}"):
        stdin = cloud_event().to_json()  # its reporter has no group
    elif words == "that of --from-event":
        stdin = SEEN.to_json()
    given = ["--from-event", "-"] if stdin else []

    result = approve(configured(tmp_path, **keys), *arguments, *given, stdin=stdin)

    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_configuration_without_approvals_ends_with_2(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    path.write_text('[events]\ntype_prefix = "acme"\n')

    result = approve(path, EVENT_ID)

    assert result.exit_code == 2
    assert "approvals: is missing" in result.stderr


def test_faults_of_an_approvers_sections_are_reported(tmp_path: Path) -> None:
    config = configured(tmp_path, sesions=["x"])
    with config.open("a") as file:
        file.write('\n[approval]\n[events]\ntype_prefix = "a b"\n')

    result = approve(config, EVENT_ID)

    assert result.exit_code == 2
    assert [line.split(": ")[2] for line in result.stderr.splitlines()] == [
        "approvals.sesions",
        "approval",
        "events.type_prefix",
    ]


# -- the EventId -------------------------------------------------------------------

KNOWN = (
    "602D9444-D2CD-49C7-8624-8643E7171297",
    "602D9500-0000-0000-0000-000000000000",
    "c7061bac-AFDC-4513-B24B-AA5F13A16123",
    "EVENT-1",
    "EVENT-10",
)


@pytest.fixture
async def acquainted(broker: Broker, tmp_path: Path) -> Path:
    """Return a configuration whose state file has events, and one unknown EventId."""
    config = configured(tmp_path, broker.connection_string)
    state = tmp_path / "state.db"
    with config.open("a") as file:
        file.write(f"\n[state]\npath = '{state.as_posix()}'\n")

    seen = [*KNOWN, "hello-again", KNOWN[0].lower()]
    events = [with_fields(outgoing(one, key=one), key=one.upper()) for one in seen]
    stray = replace(events[-2].event, type="sebridge.startrequest.denied.v1")
    events[-2] = with_fields(events[-2], event=stray)
    async with patient_outbox(state, router()) as outbox:
        await outbox.commit(events, now=NOW)
    return config


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("602d94", KNOWN[0].lower()),  # in its newest spelling
        ("C7061BAC", KNOWN[2]),
        ("EVENT-10", "EVENT-10"),
        ("event-1", "EVENT-1"),
        (KNOWN[0].lower(), KNOWN[0].lower()),
        ("00000000-0000-0000-0000-000000000001",) * 2,  # not known here
    ],
)
async def test_beginning_of_an_observed_event_id_is_enough(
    given: str, meant: str, acquainted: Path
) -> None:
    result = await approved(acquainted, given)

    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{meant}: approval sent to vm-approvals\n"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("602D9", f"beginning of several EventIds: {KNOWN[0].lower()}, {KNOWN[1]}"),
        ("EVENT", "'EVENT' is the beginning of several EventIds: EVENT-1, EVENT-10"),
        ("C70", "is no EventId such as "),  # too short
        ("602D9499", "is no EventId such as "),
        ("hell", "is no EventId such as "),  # named only by an approval, never observed
        ("602D944%", "is no EventId such as "),
    ],
)
async def test_beginning_of_no_or_several_event_ids_is_wrong_usage(
    given: str, words: str, acquainted: Path
) -> None:
    result = await approved(acquainted, given)

    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


async def test_beginning_cannot_be_completed_from_a_file_of_another_user(
    acquainted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can say that no observed EventId begins so."""
    hide(acquainted.with_name("state.db"), monkeypatch)
    result = await approved(acquainted, "C7061BAC")

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("sebridge: this user may not read the state file ")


async def test_force_sends_an_event_id_of_another_form(
    acquainted: Path,
) -> None:
    result = await approved(acquainted, "hello", "--force")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "hello: approval sent to vm-approvals\n"


# -- the session -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sessions", "received", "given", "session"),
    [
        ([], None, None, None),
        ([], None, "vm-9", "vm-9"),  # a subscription's filter may need it
        (["group-7"], None, None, "group-7"),
        (["{vm_id}"], None, "vm-9", "vm-9"),
        (["{vm_id}"], SEEN, None, "vm-1"),
        (["{vm_id}"], SEEN, "vm-9", "vm-9"),
        (["{vm_name}"], SEEN, None, "web-0"),
        (["{vm_id}", "group-7"], SEEN, None, "group-7"),
        (["{vm_id}", "{group}"], SEEN, None, "blue"),
    ],
)
def test_session_is_the_one_that_the_bridge_named(
    sessions: list[str],
    received: CloudEvent | None,
    given: str | None,
    session: str | None,
    tmp_path: Path,
) -> None:
    config = configured(tmp_path, sessions=sessions)
    source = BytesIO(received.to_json()) if received else None
    options = Options(event_id=EVENT_ID.lower(), session=given)

    request = request_of(config, {}, options, source)

    assert request.to.session == session


# -- the reply ---------------------------------------------------------------------


async def bridge(broker: Broker, outcome: str) -> None:
    """Answer one approval as a bridge would."""
    namespace = NamespaceConfig(connection_string=Secret(broker.connection_string, {}))
    (message,) = await drained(broker, "vm-approvals")
    approval = read(message)
    assert approval.reply_to is not None
    await reply(
        namespace,
        approval.reply_to,
        str(approval.message_id),
        outcome,
        session=approval.reply_to_session_id,
    )


async def reply(
    namespace: NamespaceConfig,
    entity: str,
    message_id: str,
    outcome: str = "relayed",
    session: str | None = None,
) -> None:
    data = {"outcome": outcome, "eventId": EVENT_ID, "reason": "so it is"}
    replies = ReplySender(namespace)
    envelope = ReplyEnvelope(
        entity=entity,
        body=json.dumps({"messageId": message_id, "outcomes": [data]}),
        message_id=f"reply-to-{message_id}",
        correlation_id=message_id,
        session_id=session,
    )
    await replies.send(envelope)
    await replies.close()


@pytest.mark.parametrize(
    ("outcome", "code", "replies"),
    [
        ("relayed", 0, "replies"),
        ("already-started", 0, "vm-approvals-sessions"),
        ("denied", 1, "vm-approvals-sessions"),
        ("event-ended", 1, "replies"),
    ],
)
async def test_exit_code_depends_on_the_outcome(
    outcome: str,
    code: int,
    replies: str,
    broker: Broker,
    tmp_path: Path,
) -> None:
    """The reply queue may have no sessions, or require them."""
    config = configured(tmp_path, broker.connection_string, reply_to=["x-*", replies])

    result, _ = await asyncio.gather(
        approved(config, EVENT_ID, "--wait", "--timeout", "20s"),
        bridge(broker, outcome),
    )

    assert result.exit_code == code
    assert result.stdout == f"{EVENT_ID}: {outcome}: so it is\n"
    assert result.stderr == ""
    assert broker.snapshot()[replies].active == 0


async def test_reply_is_part_of_the_json(broker: Broker, tmp_path: Path) -> None:
    config = configured(tmp_path, broker.connection_string)

    result, _ = await asyncio.gather(
        approved(config, EVENT_ID, "--wait", "--json"),
        bridge(broker, "relayed"),
    )

    found = json.loads(result.stdout)
    assert found["outcome"] == "relayed"
    assert [one["eventId"] for one in found["outcomes"]] == [EVENT_ID]


async def test_no_reply_in_time_ends_with_1(broker: Broker, tmp_path: Path) -> None:
    config = configured(tmp_path, broker.connection_string)

    result = await approved(config, EVENT_ID, "--wait", "--timeout", "100ms", "--json")

    assert result.exit_code == 1
    assert "no reply at replies within 0.1 s" in result.stderr
    assert json.loads(result.stdout)["outcome"] is None
    assert broker.snapshot()["vm-approvals"].active == 1


async def test_reply_without_an_outcome_ends_with_1(
    broker: Broker, tmp_path: Path
) -> None:
    config = configured(tmp_path, broker.connection_string)

    async def answer() -> None:
        (message,) = await drained(broker, "vm-approvals")
        client = ServiceBusClient.from_connection_string(broker.connection_string)
        async with client, client.get_queue_sender("replies") as sender:
            empty = ServiceBusMessage(b"{}", correlation_id=message.message_id)
            await sender.send_messages(empty)

    result, _ = await asyncio.gather(approved(config, EVENT_ID, "--wait"), answer())

    assert result.exit_code == 1
    assert "the reply at replies holds no outcome" in result.stderr


async def test_reply_that_no_bridge_wrote_has_no_outcome(
    broker: Broker, namespace: NamespaceConfig
) -> None:
    nested = {"outcomes": [{"outcome": HERE}]}
    depths = (100, 990, 1015, 100_000)
    bodies = [b"{", b"[]", b'{"outcomes": 1}']
    bodies += [holding(nested, lists(depth)) for depth in depths]
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    async with client, client.get_queue_sender("replies") as sender:
        for number, body in enumerate(bodies):
            await sender.send_messages(
                ServiceBusMessage(body, correlation_id=f"{number}")
            )

    async with Answers(namespace, "replies", SystemClock()) as answers:
        for number, _ in enumerate(bodies):
            assert await answers.outcomes(f"{number}", within=10) == []


async def test_replies_to_others_stay_in_the_queue(
    broker: Broker, namespace: NamespaceConfig
) -> None:
    for name in ("theirs", "mine", "late"):
        await reply(namespace, "replies", name)

    async with Answers(namespace, "replies", SystemClock()) as answers:
        found = await answers.outcomes("mine", within=10)

    assert found is not None
    left = await drained(broker, "replies", count=2)
    assert {message.correlation_id for message in left} == {"theirs", "late"}


async def test_reply_of_another_may_be_passed_by_any_number_of_times(
    broker: Broker, namespace: NamespaceConfig
) -> None:
    """A peek is no delivery; otherwise the tenth would dead-letter the other reply."""
    await reply(namespace, "replies", "theirs")
    for number in range(11):
        await reply(namespace, "replies", f"mine-{number}")
        async with Answers(namespace, "replies", SystemClock()) as answers:
            assert await answers.outcomes(f"mine-{number}", within=10)

    assert broker.snapshot()["replies"].active == 1
    (left,) = await drained(broker, "replies")
    assert (left.correlation_id, left.delivery_count) == ("theirs", 0)


async def test_reply_behind_one_that_was_delivered_twice_is_read_and_stays(
    broker: Broker, namespace: NamespaceConfig
) -> None:
    """If the broker counts releases, another lock would dead-letter the other reply."""
    await reply(namespace, "replies", "theirs")
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    async with client, client.get_queue_receiver("replies") as other:
        for _ in range(2):
            (held,) = await other.receive_messages(1, max_wait_time=60)
            await other.abandon_message(held)
    await reply(namespace, "replies", "mine")

    async with Answers(namespace, "replies", SystemClock()) as answers:
        assert await answers.outcomes("mine", within=10)

    assert broker.snapshot()["replies"].active == 2


async def test_reply_behind_many_others_is_read_and_stays(
    broker: Broker, namespace: NamespaceConfig
) -> None:
    """To receive the own reply, all replies before it would have to be locked."""
    others = [ServiceBusMessage(b"{}", correlation_id="theirs") for _ in range(101)]
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    async with client, client.get_queue_sender("replies") as sender:
        await sender.send_messages(others)
    await reply(namespace, "replies", "mine")

    async with Answers(namespace, "replies", SystemClock()) as answers:
        found = await answers.outcomes("mine", within=10)

    assert found is not None
    counts = broker.snapshot()["replies"]
    assert (counts.active, counts.locked) == (102, 0)


async def test_two_approvers_at_one_queue_get_their_own_replies(
    broker: Broker, namespace: NamespaceConfig
) -> None:
    async def wait(name: str) -> list[dict[str, object]] | None:
        async with Answers(namespace, "replies", SystemClock()) as answers:
            return await answers.outcomes(name, within=10)

    async def answer() -> None:
        for name in ("b", "a"):
            await reply(namespace, "replies", name, f"outcome of {name}")

    of_a, of_b, _ = await asyncio.gather(wait("a"), wait("b"), answer())

    assert [one["outcome"] for one in of_a or ()] == ["outcome of a"]
    assert [one["outcome"] for one in of_b or ()] == ["outcome of b"]


async def test_reply_locked_by_another_approver_is_read(
    broker: Broker, namespace: NamespaceConfig
) -> None:
    await reply(namespace, "replies", "mine")
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    async with client, client.get_queue_receiver("replies") as other:
        held = await other.receive_messages(1, max_wait_time=60)
        assert len(held) == 1
        async with Answers(namespace, "replies", SystemClock()) as answers:
            found = await answers.outcomes("mine", within=0)

    assert found is not None
    assert found[0]["outcome"] == "relayed"


async def test_lost_connection_is_opened_again(
    broker: Broker, namespace: NamespaceConfig
) -> None:
    async with Answers(namespace, "replies", SystemClock()) as answers:
        broker.faults.drop_connections()
        await reply(namespace, "replies", "mine")
        found = await answers.outcomes("mine", within=20)

    assert found is not None


async def test_lost_session_is_accepted_again(
    broker: Broker, namespace: NamespaceConfig
) -> None:
    """The session's lock is not renewed while no reply comes."""
    queue = "vm-approvals-sessions"
    async with Answers(namespace, queue, SystemClock()) as answers:
        assert await answers.outcomes("mine", within=0) is None
        broker.faults.expire_locks(queue)
        await reply(namespace, queue, "mine", session=answers.session)
        found = await answers.outcomes("mine", within=20)

    assert found is not None
    assert broker.snapshot()[queue].active == 0


# -- unreachable entities ------------------------------------------------------------


async def test_missing_entity_ends_with_1(broker: Broker, tmp_path: Path) -> None:
    config = configured(tmp_path, broker.connection_string, queue="no-such")

    result = await approved(config, EVENT_ID)

    assert result.exit_code == 1
    assert "no-such: does not exist" in result.stderr
    assert result.stdout == ""


async def test_without_the_right_to_read_replies_nothing_is_sent(
    broker: Broker, tmp_path: Path
) -> None:
    config = configured(tmp_path, broker.connection_string, reply_to=["no-such"])

    result = await approved(config, EVENT_ID, "--wait")

    assert result.exit_code == 1
    assert result.stderr.startswith("sebridge: the approval was not sent, for --wait")
    assert "no-such: does not exist" in result.stderr
    assert broker.snapshot()["vm-approvals"].active == 0


# -- signed approvals -----------------------------------------------------------------


async def test_signed_approval_names_the_event_and_ends_with_it(
    broker: Broker, tmp_path: Path
) -> None:
    key = tmp_path / "sign.pem"
    key.write_text(pem(KEY))
    config = configured(tmp_path, broker.connection_string)

    await approved(config, "--from-event", received(tmp_path), "--sign-key", str(key))

    (message,) = await drained(broker, "vm-approvals")
    event = SignedEvent.parse(body_of(message))
    assert judge(event, {KEY.key_id: KEY.public}).verdict is Verdict.HOLDS
    data = json.loads(event.data)
    assert data["audience"] == SEEN.source
    assert data["approvedEvent"] == SEEN.data["event"]
    assert data["expiresAt"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([EVENT_ID, "--sign-key", "sign.pem"], "needs --from-event"),
        (["--from-event", "event.json", "--sign-key", "none.pem"], "cannot be read"),
        (["--from-event", "event.json", "--sign-key", "event.json"], "P-256"),
    ],
)
def test_key_that_cannot_sign_is_wrong_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    received(tmp_path)

    result = approve(configured(tmp_path), *arguments)

    assert result.exit_code == 2
    assert words in result.output


# -- on the VM, and on a terminal --------------------------------------------------


IN_IMDS: Any = SEEN.data["event"]


@pytest.fixture
async def on_the_vm(broker: Broker, tmp_path: Path) -> Path:
    """Return a configuration with sessions whose state file has the event."""
    sessions = ["{vm_id}"]
    config = configured(
        tmp_path,
        broker.connection_string,
        queue="vm-approvals-sessions",
        sessions=sessions,
    )
    state = tmp_path / "state.db"
    with config.open("a") as file:
        file.write(f"\n[state]\npath = '{state.as_posix()}'\n")
    stored = with_fields(outgoing("1", key=EVENT_ID), event=SEEN)
    async with patient_outbox(state, router()) as outbox:
        await outbox.commit([stored], now=NOW)
    return config


async def test_session_is_found_on_the_machine_of_the_event(
    broker: Broker, on_the_vm: Path
) -> None:
    result = await approved(on_the_vm, EVENT_ID[:8])

    assert result.exit_code == 0, result.stderr
    (message,) = await drained(broker, "vm-approvals-sessions", session="vm-1")
    assert "approvedEvent" not in json.loads(body_of(message))["data"]


@pytest.mark.integration
async def test_event_that_is_stored_here_can_be_signed_without_a_file(
    broker: Broker, on_the_vm: Path, tmp_path: Path
) -> None:
    key = tmp_path / "sign.pem"
    key.write_text(pem(KEY))
    by_id = (EVENT_ID, "--session", "vm-1", "--sign-key", str(key))

    result = await approved(on_the_vm, *by_id)
    assert result.exit_code == 0, result.stderr
    on_terminals = ["approve", *by_id, "-c", str(on_the_vm)]
    ended, shown = await asyncio.to_thread(on_terminal, on_terminals, "y")
    assert ended == 0, shown

    for message in await drained(broker, "vm-approvals-sessions", session="vm-1"):
        event = SignedEvent.parse(body_of(message))
        assert judge(event, {KEY.key_id: KEY.public}).verdict is Verdict.HOLDS
        assert json.loads(event.data)["approvedEvent"] == IN_IMDS
        assert json.loads(event.data)["audience"] == SEEN.source


async def test_line_of_events_is_an_event_as_received(
    broker: Broker, on_the_vm: Path
) -> None:
    found = await asyncio.to_thread(
        CliRunner(env={"NOT_SET_HERE": "x"}).invoke,
        main,
        ["events", "--json", "-c", str(on_the_vm)],
    )
    result = await asyncio.to_thread(
        approve, on_the_vm, "--from-event", "-", stdin=found.stdout_bytes
    )

    assert result.exit_code == 0, result.stderr
    (message,) = await drained(broker, "vm-approvals-sessions", session="vm-1")
    assert json.loads(body_of(message))["data"]["approvedEvent"] == IN_IMDS


async def test_dry_run_shows_the_event_and_sends_nothing(
    broker: Broker, on_the_vm: Path
) -> None:
    result = await approved(on_the_vm, EVENT_ID, "--dry-run")
    as_json = await approved(on_the_vm, EVENT_ID, "--dry-run", "--json")

    first, *_, last = result.stdout.splitlines()
    machines = IN_IMDS["Resources"]
    assert first == f"{IN_IMDS['EventType']} of {', '.join(machines)}"
    assert "Azure starts the event now, on all its machines." in result.stdout
    assert last == (
        "It would be sent to vm-approvals-sessions, session vm-1. Nothing was sent."
    )
    assert json.loads(as_json.stdout)["sent"] is False
    assert json.loads(as_json.stdout)["machines"] == machines
    assert await drained(broker, "vm-approvals-sessions", session="vm-1", count=0) == []


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is POSIX's")
@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
async def test_terminal_shows_the_event_and_asks(
    answer: str, code: int, broker: Broker, on_the_vm: Path
) -> None:
    command = ["approve", EVENT_ID, "-c", str(on_the_vm)]
    ended, shown = await asyncio.to_thread(on_terminal, command, answer)

    assert ended == code, shown
    assert f"{IN_IMDS['EventType']} of " in shown
    assert "Approve it? [y/N]" in shown
    if code:
        assert "nothing was approved" in shown
        return
    (message,) = await drained(broker, "vm-approvals-sessions", session="vm-1")
    assert json.loads(body_of(message))["data"]["approvedEvent"] == IN_IMDS
