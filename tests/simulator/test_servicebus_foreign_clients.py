"""What clients of other languages say, and how the broker has to answer them."""

from collections.abc import Mapping
from datetime import timedelta

import pytest
from msgspec.structs import replace

from bridge.simulator.servicebus.access import AccessRule, Right
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.endpoints import Wire
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.values import encode_section
from bridge.simulator.wire.framing import SASL_HEADER
from bridge.simulator.wire.message import Message as Request
from bridge.simulator.wire.outcomes import Accepted, Modified, Rejected, State
from bridge.simulator.wire.performatives import (
    Attach,
    Begin,
    Detach,
    Disposition,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from bridge.simulator.wire.values import (
    AmqpError,
    Array,
    Described,
    Int32,
    Symbol,
    UInt,
    ULong,
)
from tests.simulator.amqp_socket import (
    Speaker,
    connection,
    fields_of,
    flow,
    sections,
    session,
)
from tests.simulator.servicebus_fixtures import SDK_ENTITIES
from tests.simulator.wire.amqp_client import message, receives, sends

SESSION_FILTER = Symbol("com.microsoft:session-filter")
SESSION_FILTER_CODE = 0x000000137000000C
WINDOWS = [2048, 2**31 - 1, 2**31, 2**32 - 1]


def target(address: str) -> Described:
    return Described(ULong(0x29), [address])


def source(address: str, filters: object = None) -> Described:
    return Described(ULong(0x28), [address, *[None] * 6, filters])


# -- windows: each session of .NET announces 2**32 - 1 -------------------------------


@pytest.mark.parametrize("window", WINDOWS)
async def test_receiver_gets_messages_whatever_window_it_announces(
    broker: Broker, window: int
) -> None:
    for number in range(3):
        broker.put("plain", str(number).encode())
    async with session(broker.port, window=window) as client:
        await client.attach(receives(source=source("plain")))
        client.say(flow(0, 2, incoming_window=window))
        found = [await client.hear(Transfer) for _ in range(2)]
        # Two transfers are still in flight: the client has not read them yet.
        client.say(flow(0, 3, incoming_window=window))
        found.append(await client.hear(Transfer))

    assert [each.delivery_id for each in found] == [0, 1, 2]


async def test_window_is_a_number_of_transfers_less_those_in_flight(
    broker: Broker,
) -> None:
    """Two were sent and not counted by the client yet: two of three are used up."""
    for number in range(5):
        broker.put("plain", str(number).encode())
    async with session(broker.port, window=2) as client:
        await client.attach(receives(source=source("plain")))
        client.say(flow(0, 5, incoming_window=2))
        first = [await client.hear(Transfer) for _ in range(2)]
        client.say(flow(None, incoming_window=3), flow(None, incoming_window=1))
        third = await client.hear(Transfer)
        client.say(flow(None, next_incoming_id=3, incoming_window=2))
        rest = [await client.hear(Transfer) for _ in range(2)]

    found = [each.delivery_id for each in (*first, third, *rest)]
    assert found == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("credit", WINDOWS)
async def test_credit_of_a_link_is_a_number_too(credit: int) -> None:
    """Only here: Proton counts credit with a sign."""
    async with Broker(SDK_ENTITIES) as broker, session(broker.port) as client:
        broker.put("plain", b"x")
        await client.attach(receives(source=source("plain")))

        assert (await client.receive(0, credit)).delivery_id == 0


# -- filters: as the client sent them, or none ---------------------------------------


DESCRIBED = Described(ULong(SESSION_FILTER_CODE), "s1")


@pytest.mark.parametrize(
    ("wanted", "answer_to_it"),
    [
        (DESCRIBED, DESCRIBED),
        (Described(ULong(SESSION_FILTER_CODE), None), DESCRIBED),
        (Described(SESSION_FILTER, "s1"), DESCRIBED),
        ("s1", "s1"),
        (None, "s1"),
    ],
)
async def test_accepted_session_is_reported_in_the_form_of_the_request(
    broker: Broker, wanted: object, answer_to_it: object
) -> None:
    """Go drops its connection at "invalid described type header a1"; others do not
    take the session that they asked for if it comes described."""
    broker.actions.put("sessions", b"x", session_id="s1")
    async with session(broker.port) as client:
        attach = receives(source=source("sessions", {SESSION_FILTER: wanted}))
        answer = await client.attach(attach)

    assert fields_of(answer.source)[7] == {SESSION_FILTER: answer_to_it}


@pytest.mark.parametrize("value", ["plain text", Described(Symbol("other"), "x")])
async def test_unknown_filter_is_not_reported_as_being_in_force(
    broker: Broker, value: object
) -> None:
    async with session(broker.port) as client:
        filters = {Symbol("example:colour"): value}
        answer = await client.attach(receives(source=source("plain", filters)))

    assert fields_of(answer.source)[7] is None


async def test_session_filter_of_an_unknown_type_is_not_implemented(
    broker: Broker,
) -> None:
    unknown = Described(Symbol("example:session-filter"), "s1")

    error = await refusal(broker, source("sessions", {SESSION_FILTER: unknown}))

    assert error.condition == "amqp:not-implemented"
    assert "'example:session-filter'" in str(error.description)


@pytest.mark.parametrize(
    "filters",
    [
        {Symbol("jms-selector"): "colour = 'red'"},
        {Symbol("jms-selector"): Described(ULong(0x468C00000004), "colour = 'red'")},
        {Symbol("mine"): Described(Symbol("apache.org:selector-filter:string"), "1")},
    ],
)
async def test_selector_is_refused_as_it_would_not_be_obeyed(
    broker: Broker, filters: object
) -> None:
    error = await refusal(broker, source("plain", filters))

    assert error.condition == "amqp:not-implemented"
    assert "use a rule of a subscription" in str(error.description)


async def test_browser_is_refused_as_it_would_delete_messages(broker: Broker) -> None:
    """What a QueueBrowser of JMS asks for; peeking is another request."""
    browser = Described(
        ULong(0x28), ["plain", *[None] * 5, Symbol("copy"), None, None, None, None]
    )

    error = await refusal(broker, browser)

    assert error.condition == "amqp:not-implemented"
    assert "'copy' is not supported" in str(error.description)


async def refusal(broker: Broker, wanted: Described) -> AmqpError:
    """Return why the broker refuses a receiver."""
    async with session(broker.port) as client:
        await client.attach(receives(source=wanted))
        error = (await client.hear(Detach)).error
    assert error is not None
    return error


# -- the connection ------------------------------------------------------------------


ACCESS = AccessRule(
    name="send", keys=("key 1", "key 2"), rights=frozenset({Right.SEND})
)


async def sign_in(port: int, response: bytes) -> tuple[tuple[str, ...], int]:
    """Return the mechanisms that are offered, and the outcome of PLAIN."""
    async with connection(port) as client:
        assert await client.begin(SASL_HEADER) == SASL_HEADER
        offered = (await client.hear(SaslMechanisms)).mechanisms
        client.sign_in("PLAIN", response)
        return offered, (await client.hear(SaslOutcome)).code


async def test_broker_without_rules_takes_any_name_and_key() -> None:
    """As Qpid JMS, Vert.x, rhea and AMQPNetLite sign in. Only here: not with Proton."""
    async with Broker(SDK_ENTITIES) as broker:
        offered, code = await sign_in(broker.port, b"\0anybody\0anything")

    assert offered == ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
    assert code == 0


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (b"\0send\0key 2", 0),
        (b"\0RootManageSharedAccessKey\0SAS_KEY_VALUE", 0),
        (b"\0send\0key 3", 1),
        (b"\0SEND\0key 1", 1),
        (b"\0\0", 1),
        (b"send", 1),
    ],
)
async def test_plain_is_a_rule_and_its_key(response: bytes, code: int) -> None:
    async with Broker(replace(SDK_ENTITIES, access=(ACCESS,))) as broker:
        _, found = await sign_in(broker.port, response)

    assert found == code


async def test_plain_gives_the_rights_of_its_rule() -> None:
    async with (
        Broker(replace(SDK_ENTITIES, access=(ACCESS,))) as broker,
        connection(broker.port) as client,
    ):
        await client.begin(SASL_HEADER)
        client.sign_in("PLAIN", b"\0send\0key 1")
        await client.hear(SaslOutcome)
        await client.open()
        sending = await client.attach(sends(0, target=target("plain")))
        receiving = await client.attach(receives(1, source=source("plain")))
        error = (await client.hear(Detach)).error

    assert fields_of(sending.target)[0] == "plain"
    assert receiving.source is None
    assert error is not None
    assert "'Listen' claim(s) are required" in str(error.description)


async def test_connection_has_one_pair_of_links_to_cbs(broker: Broker) -> None:
    """Go resets its connection at this error, and relies on it."""
    async with session(broker.port) as client:
        for handle in (0, 2):
            for attach in (
                sends(handle, target=target("$cbs")),
                receives(handle + 1, source=source("$cbs")),
            ):
                await client.attach(attach)
        refused = [(await client.hear(Detach)).error for _ in range(2)]
        client.say(Detach(handle=0, closed=True))
        await client.hear(Detach)
        again = await client.attach(sends(4, target=target("$cbs")))

    assert [error and error.condition for error in refused] == ["amqp:not-allowed"] * 2
    assert fields_of(again.target)[0] == "$cbs"


async def test_connection_has_thousands_of_links(broker: Broker) -> None:
    """Go opens two sessions for each link, and other clients one."""
    async with session(broker.port) as client:
        begin = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
        for channel in range(1, 2201):
            client.say(begin, channel=channel)
        for _ in range(2200):
            await client.hear(Begin)
        attach = sends(0, target=target("plain"))
        client.say(attach, channel=2200)

        assert (await client.hear(Attach)).name == attach.name


# -- errors that SDKs recognise by their words ---------------------------------------


@pytest.mark.parametrize("path", ["nowhere", "news/Subscriptions/nobody"])
async def test_absent_entity_is_refused_in_the_words_of_the_cloud(
    broker: Broker, path: str
) -> None:
    """Java retries for 28 s unless it finds these words, with a capital T."""
    async with session(broker.port) as client:
        await client.attach(receives(source=source(path)))
        error = (await client.hear(Detach)).error

    assert error is not None
    assert error.condition == "amqp:not-found"
    assert error.description is not None
    assert error.description.startswith(f"The messaging entity '{path}' could not be ")


# -- messages -------------------------------------------------------------------------


def encoded(properties: object, *more: bytes) -> bytes:
    return b"".join(
        [encode_section(0x74, properties), *more, encode_section(0x75, b"x")]
    )


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"a": "x" * 32_769}, "the property 'a' has more than 32768 bytes"),
        ({str(n): "x" * 30_000 for n in range(3)}, "65536 are allowed"),
    ],
)
async def test_properties_that_are_too_large_are_refused(
    broker: Broker, properties: dict[str, str], words: str
) -> None:
    async with session(broker.port) as client:
        await client.attach(sends(target=target("plain")))
        client.say(message(0), payload=encoded(properties))
        state = (await client.hear(Disposition)).state

    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "amqp:link:message-size-exceeded"
    assert words in str(state.error.description)


@pytest.mark.parametrize(
    "properties", [{"a": "x" * 32_000}, {str(n): "x" * 30_000 for n in range(2)}]
)
async def test_properties_that_fit_are_taken(
    broker: Broker, properties: dict[str, str]
) -> None:
    async with session(broker.port) as client:
        await client.attach(sends(target=target("plain")))
        client.say(message(0), payload=encoded(properties))

        assert isinstance((await client.hear(Disposition)).state, Accepted)


@pytest.mark.parametrize(("sent", "given"), [(None, 60), (30, 30), (90, 60)])
async def test_time_to_live_is_capped_by_the_entity(
    wire: Wire, sent: int | None, given: int
) -> None:
    minute = timedelta(minutes=1)
    capped = QueueSettings(name="capped", default_time_to_live=minute)
    topic = TopicSettings(
        name="t",
        default_time_to_live=minute,
        subscriptions=(SubscriptionSettings(name="s"),),
    )
    header = [None, None, None if sent is None else UInt(sent * 1000)]
    entities = Entities(queues=(capped,), topics=(topic,))
    async with (
        Broker(entities, wire=wire) as broker,
        session(broker.port) as client,
    ):
        for handle, to in enumerate(("capped", "t")):
            await client.attach(sends(handle, target=target(to)))
            payload = encode_section(0x70, header) + encoded({})
            client.say(message(handle, handle=handle), payload=payload)
            await client.hear(Disposition)
        for handle, to in enumerate(("capped", "t/Subscriptions/s"), 2):
            await client.attach(receives(handle, source=source(to)))
            await client.receive(handle)
            found = sections(client.payload)[0x70]
            assert isinstance(found, list)
            assert found[2] == given * 1000


@pytest.mark.parametrize(
    ("queue", "place", "words", "count"),
    [("kept", "kept/$DeadLetterQueue", None, 1), ("moved", "grave", "moved", 0)],
)
async def test_dead_letter_tells_its_source_after_it_was_forwarded(
    wire: Wire, queue: str, place: str, words: str | None, count: int
) -> None:
    """In the dead-letter queue, the deliveries that failed count on."""
    moved = QueueSettings(name="moved", forward_dead_letters_to="grave")
    queues = (QueueSettings(name="kept"), QueueSettings(name="grave"), moved)
    async with (
        Broker(Entities(queues=queues), wire=wire) as broker,
        session(broker.port) as client,
    ):
        broker.put(queue, b"x")
        await client.attach(receives(0, source=source(queue)))
        client.say(flow(0, 2))
        for state in (Modified(failed=True), Rejected()):
            client.say(settled(await client.hear(Transfer), state))
        await client.attach(receives(1, source=source(place)))
        await client.receive(1)
        found = sections(client.payload)

    header, notes = found[0x70], found[0x72]
    assert isinstance(header, list)
    assert isinstance(notes, dict)
    assert header[4] == count
    assert notes.get("x-opt-deadletter-source") == words


def settled(sent: Transfer, state: State) -> Disposition:
    assert sent.delivery_id is not None
    return Disposition(
        is_receiver=True, first=sent.delivery_id, settled=True, state=state
    )


# -- requests of Go ------------------------------------------------------------------


async def ask(
    client: Speaker,
    operation: str,
    body: Mapping[str, object],
    *,
    number: int = 0,
    **properties: object,
) -> Request:
    """Send a request to sessions/$management; return the reply.

    Args:
        client: the client.
        operation: the name of the operation, without the vendor's prefix.
        body: the body of the request.
        number: the delivery-id; each request of a test has another.
        properties: more application properties.
    """
    for attach in (
        sends(10, target=target("sessions/$management")),
        receives(11, source=source("sessions/$management")),
    ):
        await client.attach(attach)
    named = {name.replace("_", "-"): value for name, value in properties.items()}
    named["operation"] = f"com.microsoft:{operation}"
    client.say(message(number, handle=10), payload=Request(body, named).encode())
    await client.receive(11)
    client.say(Detach(handle=10, closed=True), Detach(handle=11, closed=True))
    return Request.decode(client.payload)


async def in_session(client: Speaker) -> None:
    """Attach a receiver called mine to the session s1."""
    wanted = source("sessions", {SESSION_FILTER: DESCRIBED})
    await client.attach(receives(0, name="mine", source=wanted))


async def test_deferred_message_of_a_session_is_found_by_the_link_alone(
    broker: Broker,
) -> None:
    broker.actions.put("sessions", b"x", session_id="s1")
    async with session(broker.port) as client:
        await in_session(client)
        sent = await client.receive(0)
        client.say(settled(sent, Modified(undeliverable=True)))
        body = {
            "sequence-numbers": Array(0x81, (1,)),
            "receiver-settle-mode": UInt(1),
        }
        found = await ask(
            client, "receive-by-sequence-number", body, associated_link_name="mine"
        )

    assert found.properties["statusCode"] == 200
    assert isinstance(found.body, dict)
    assert len(found.body["messages"]) == 1


async def test_receiver_of_a_session_peeks_into_its_own_session(broker: Broker) -> None:
    for session_id in ("other", "s1", "other"):
        broker.actions.put("sessions", b"x", session_id=session_id)
    async with session(broker.port) as client:
        await in_session(client)
        body: dict[str, object] = {
            "from-sequence-number": 0,
            "message-count": Int32(9),
        }
        found = await ask(client, "peek-message", body, associated_link_name="mine")

    assert isinstance(found.body, dict)
    assert len(found.body["messages"]) == 1


async def test_empty_state_of_a_session_reads_back_as_null(broker: Broker) -> None:
    async with session(broker.port) as client:
        await in_session(client)
        who = {"session-id": "s1"}
        for number, state in enumerate((b"kept", b"")):
            body = {**who, "session-state": state}
            await ask(client, "set-session-state", body, number=number)
        found = await ask(client, "get-session-state", dict(who), number=2)

    assert found.body == {"session-state": None}


# -- forwarding, as MassTransit, Rebus and NServiceBus set it up ----------------------


async def test_subscription_forwards_to_the_queue_of_its_own_name(wire: Wire) -> None:
    orders = SubscriptionSettings(name="orders", forward_to="orders")
    entities = Entities(
        queues=(QueueSettings(name="orders"),),
        topics=(TopicSettings(name="shop", subscriptions=(orders,)),),
    )
    async with Broker(entities, wire=wire) as broker:
        broker.put("shop", b"2 apples")
        async with session(broker.port) as client:
            await client.attach(receives(source=source("orders")))
            await client.receive(0)
            assert b"2 apples" in client.payload
