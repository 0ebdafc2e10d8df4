"""Rules of shared access: good and bad keys, and the rights of their tokens.

The tokens are made by azure-servicebus itself, so that both sides agree on the form.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp.error import TokenAuthFailure
from azure.servicebus._pyamqp.utils import generate_sas_token
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from msgspec.structs import replace

from bridge.simulator.servicebus.access import (
    ROOT,
    Access,
    AccessRule,
    Right,
    audience_path,
)
from bridge.simulator.servicebus.backlog import Counts
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.config import ConfigError, parse_entities
from bridge.simulator.servicebus.entities import Namespace
from bridge.simulator.servicebus.settings import (
    Entities,
    QueueSettings,
    SubscriptionSettings,
    TopicSettings,
)
from bridge.simulator.servicebus.values import Condition, RefusedError
from tests.simulator.servicebus_fixtures import START, FakeClock, WallClock


def rule(name: str, *rights: Right, keys: tuple[str, ...] = ("k1", "k2")) -> AccessRule:
    return AccessRule(name=name, keys=keys, rights=frozenset(rights))


RULES = Entities(
    queues=(
        QueueSettings(name="orders", access=(rule("orders-send", Right.SEND),)),
        QueueSettings(name="other"),
    ),
    topics=(
        TopicSettings(
            name="news",
            subscriptions=(SubscriptionSettings(name="all"),),
            access=(rule("news-listen", Right.LISTEN),),
        ),
    ),
    access=(
        rule("sender", Right.SEND),
        rule("listener", Right.LISTEN),
        rule("manager", Right.MANAGE),
    ),
)


def token(
    name: str = "sender",
    *,
    key: str = "k1",
    audience: str = "sb://localhost/orders",
    ends: float = START + 60,
) -> str:
    make: Any = generate_sas_token  # it has no types
    return str(make(audience, name, key, int(ends)))


def access(clock: FakeClock | None = None) -> Access:
    return access_to(RULES, clock)


def access_to(entities: Entities, clock: FakeClock | None = None) -> Access:
    clock = clock or FakeClock()
    return Access(Namespace(entities, clock).access, clock)


# -- tokens ------------------------------------------------------------------------


def refusal(given: object, audience: str = "orders") -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        access().admit(given, audience)
    assert caught.value.condition is Condition.UNAUTHORIZED
    assert "k1" not in caught.value.description
    return caught.value


@pytest.mark.parametrize(
    ("name", "audience", "path"),
    [
        ("sender", "sb://localhost", "orders"),
        ("sender", "sb://localhost:5671/orders", "orders"),
        ("sender", "http://localhost/Orders/", "ORDERS"),
        ("sender", "sb://localhost/orders/$management", "orders"),
        ("orders-send", "sb://localhost/orders", "orders"),
        ("news-listen", "sb://localhost/news", "news/Subscriptions/all"),
        (
            "news-listen",
            "sb://localhost/news/Subscriptions/all",
            "news/subscriptions/all",
        ),
    ],
)
def test_good_token_is_admitted(name: str, audience: str, path: str) -> None:
    grant = access().admit(token(name, audience=audience), path)

    assert grant.rule.name == name
    assert grant.covers(path)


@pytest.mark.parametrize("key", ["k1", "k2"])
def test_both_keys_of_a_rule_are_good(key: str) -> None:
    assert access().admit(token(key=key), "orders").rule.name == "sender"


@pytest.mark.parametrize(
    "given",
    [
        token(key="k3"),
        token("nobody"),
        token("orders-send", audience="sb://localhost"),
        token("orders-send", audience="sb://localhost/other"),
        token().replace("sig=", "sig=x"),
        token("Sender"),
        token().replace("sig=", "sig=\udcff"),
        token().replace("sr=", "sr=\udcff"),
    ],
)
def test_token_that_no_key_has_signed_is_refused(given: str) -> None:
    assert refusal(given, "").description.startswith("InvalidSignature")


def test_name_of_a_field_may_be_quoted() -> None:
    given = token().replace("sr=", "s%72=")

    assert access().admit(given, "orders").rule.name == "sender"


def test_token_whose_end_was_moved_is_refused() -> None:
    end = f"{START + 60:.0f}"
    moved = token().replace(f"se={end}", f"se={START + 9999:.0f}")

    assert refusal(moved).description.startswith("InvalidSignature")


@pytest.mark.parametrize("ends", [START, START - 1])
def test_expired_token_is_refused(ends: float) -> None:
    assert refusal(token(ends=ends)).description.startswith("ExpiredToken")


@pytest.mark.parametrize("path", ["other", "", "ordersx"])
def test_token_for_something_else_is_refused(path: str) -> None:
    assert refusal(token(), path).description.startswith("InvalidAudience")


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (None, "Entra ID"),
        ("eyJhbGciOi.x.y", "Entra ID"),
        (b"\xff", "Entra ID"),
        ("SharedAccessSignature ", "lacks sr, sig, se, skn"),
        ("SharedAccessSignature sr=a&sig=b&se=c&skn=", "lacks skn"),
        (token().partition("&skn=")[0], "lacks skn"),
        (token(ends=int("1" * 400)), "se is not a number of seconds"),
    ],
)
def test_what_is_no_token_is_refused_with_the_reason(given: object, part: str) -> None:
    error = refusal(given)

    assert error.description.startswith("MalformedToken")
    assert part in error.description


def test_end_that_is_no_number_is_refused() -> None:
    given = token(ends=1).replace("se=1", "se=x")

    assert refusal(given).condition is Condition.UNAUTHORIZED


@pytest.mark.parametrize(
    ("audience", "path"),
    [
        ("sb://host:5671/Queue/", "queue"),
        ("host/queue", "queue"),
        ("sb://host", ""),
        ("host", ""),
        ("amqps://host/t/Subscriptions/s/$management", "t/subscriptions/s"),
    ],
)
def test_host_and_port_of_an_audience_do_not_matter(audience: str, path: str) -> None:
    assert audience_path(audience) == path


# -- rights ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rights"),
    [
        ("sender", {Right.SEND}),
        ("listener", {Right.LISTEN}),
        ("manager", set(Right)),
    ],
)
def test_claims_have_the_rights_of_their_rule(name: str, rights: set[Right]) -> None:
    claims = access().claims()
    claims.put(token(name), "orders")

    for right in Right:
        if right in rights:
            claims.check("Orders", right)
        else:
            with pytest.raises(RefusedError, match=f"'{right}' claim"):
                claims.check("orders", right)
    with pytest.raises(RefusedError, match="claim"):
        claims.check("other", next(iter(rights)))


def test_claim_ends_with_its_token_and_is_renewed_by_another() -> None:
    clock = FakeClock()
    claims = access(clock).claims()
    claims.put(token(), "orders")
    clock.advance(60)
    with pytest.raises(RefusedError, match="ExpiredToken"):
        claims.check("orders", Right.SEND)

    claims.put(token(ends=START + 120), "orders")
    claims.check("orders", Right.SEND)


def test_token_that_ended_does_not_hide_another_that_is_good() -> None:
    """The sender of a topic has closed; a receiver below it goes on."""
    clock = FakeClock()
    claims = access(clock).claims()
    claims.put(token("manager", audience="sb://localhost/news"), "news")
    clock.advance(60)
    below = "news/Subscriptions/all"
    later = token("listener", audience=f"sb://localhost/{below}", ends=START + 120)
    claims.put(later, below)

    claims.check(below, Right.LISTEN)


def test_claims_of_another_connection_do_not_help() -> None:
    found = access()
    found.claims().put(token(), "orders")

    with pytest.raises(RefusedError, match="'Send' claim"):
        found.claims().check("orders", Right.SEND)


def test_without_rules_everything_is_allowed() -> None:
    claims = access_to(Entities(queues=(QueueSettings(name="q"),))).claims()
    claims.put("anything", "q")

    claims.check("q", Right.MANAGE)


def test_root_rule_is_there_as_soon_as_there_is_another() -> None:
    given = token(ROOT.name, key=ROOT.keys[0])
    claims = access().claims()
    claims.put(given, "orders")
    claims.check("orders", Right.MANAGE)

    own = rule(ROOT.name, Right.MANAGE, keys=("own",))
    found = access_to(replace(RULES, access=(own,)))
    assert found.root is own
    with pytest.raises(RefusedError, match="InvalidSignature"):
        found.admit(given, "orders")


# -- as the SDK meets them ---------------------------------------------------------


@pytest.fixture
async def guarded(wall_clock: WallClock, brisk_sdk: None) -> AsyncIterator[Broker]:
    async with Broker(RULES, clock=wall_clock) as running:
        yield running


def client(broker: Broker, name: str, key: str = "k1") -> ServiceBusClient:
    parts = dict(
        part.partition("=")[::2] for part in broker.connection_string.split(";") if part
    )
    parts |= {"SharedAccessKeyName": name, "SharedAccessKey": key}
    text = ";".join(f"{name}={value}" for name, value in parts.items())
    return ServiceBusClient.from_connection_string(text, retry_total=0)


async def test_printed_connection_string_may_do_everything(guarded: Broker) -> None:
    async with (
        ServiceBusClient.from_connection_string(guarded.connection_string) as own,
        own.get_queue_sender("orders") as sender,
        own.get_queue_receiver("orders") as receiver,
    ):
        await sender.send_messages(ServiceBusMessage("x"))
        (message,) = await receiver.receive_messages(1, max_wait_time=30)
        await receiver.complete_message(message)


async def test_send_rule_may_send_and_not_receive(guarded: Broker) -> None:
    async with client(guarded, "sender") as own:
        with pytest.raises(ServiceBusError, match="'Listen' claim"):
            await own.get_queue_receiver("orders").receive_messages(1, max_wait_time=1)
        async with own.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("x"))

    assert guarded.snapshot()["orders"] == Counts(active=1)


async def test_listen_rule_may_receive_and_not_send(guarded: Broker) -> None:
    async with client(guarded, "listener") as own:
        with pytest.raises(ServiceBusAuthorizationError, match="'Send' claim"):
            await own.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
        async with own.get_queue_receiver("orders") as receiver:
            assert await receiver.receive_messages(1, max_wait_time=1) == []
            assert await receiver.peek_messages() == []


async def test_rule_of_one_entity_is_good_for_it_alone(guarded: Broker) -> None:
    async with client(guarded, "orders-send") as own:
        async with own.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("x"))
        await _is_refused(own, "other", 401, "InvalidSignature")


@pytest.mark.parametrize(
    ("name", "key"), [("sender", "bad"), ("nobody", "k1"), ("orders-send", "k3")]
)
async def test_bad_key_is_refused(guarded: Broker, name: str, key: str) -> None:
    async with client(guarded, name, key) as own:
        await _is_refused(own, "orders", 401, "InvalidSignature")


async def test_entity_that_is_not_there_is_told_to_who_may_know(
    guarded: Broker,
) -> None:
    """To who has a key for the whole namespace; a bad key does not find out."""
    async with client(guarded, "sender") as own:
        await _is_refused(own, "nowhere", 404, "'nowhere' could not be found")
    async with client(guarded, "orders-send") as own:
        await _is_refused(own, "nowhere", 401, "InvalidSignature")


async def _is_refused(own: ServiceBusClient, queue: str, status: int, why: str) -> None:
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        await own.get_queue_sender(queue).send_messages(ServiceBusMessage("x"))
    inner = caught.value.inner_exception
    assert isinstance(inner, TokenAuthFailure)
    assert inner.status_code == status
    assert why in inner.status_description.decode()


async def test_link_of_proton_without_a_token_is_refused(guarded: Broker) -> None:
    from tests.support.raw_amqp import send_raw, utils  # noqa: PLC0415 - it skips

    with pytest.raises(utils.LinkDetached, match="'Send' claim") as caught:
        await send_raw(guarded, "orders", [b""])

    assert caught.value.condition == Condition.UNAUTHORIZED


async def test_request_of_proton_needs_the_right_of_its_operation(
    guarded: Broker,
) -> None:
    """A sender may schedule, but not peek: both are requests to $management."""
    from tests.support.raw_amqp import request  # noqa: PLC0415 - it skips

    async with client(guarded, "sender") as own:
        async with own.get_queue_sender("orders") as sender:
            later = datetime.now(UTC) + timedelta(hours=1)
            await sender.schedule_messages(ServiceBusMessage("x"), later)
        assert guarded.snapshot()["orders"] == Counts(scheduled=1)
    reply = await request(
        guarded,
        "orders/$management",
        {"operation": "com.microsoft:peek-message"},
        {"from-sequence-number": 0, "message-count": 1},
    )
    found: Any = reply.properties
    assert found["statusCode"] == 401
    assert "'Listen' claim" in found["statusDescription"]


# -- in the entity file ------------------------------------------------------------

FILE = """{"UserConfig": {"Namespaces": [{
  "Name": "ns",
  "AuthorizationRules": %s,
  "Queues": [{"Name": "q", "AuthorizationRules": [
    {"Name": "q-send", "PrimaryKey": "p", "SecondaryKey": "s", "Rights": ["Send"]}]}],
  "Topics": [{"Name": "t", "AuthorizationRules": [
    {"Name": "t-all", "PrimaryKey": "p", "Rights": ["Send", "Listen"]}]}]
}]}}"""


def test_entity_file_names_rules() -> None:
    root = '[{"Name": "root", "PrimaryKey": "p", "Rights": ["Manage"]}]'
    found = parse_entities(FILE % root)

    assert found.access == (rule("root", Right.MANAGE, keys=("p",)),)
    assert found.queues[0].access == (rule("q-send", Right.SEND, keys=("p", "s")),)
    (topic,) = found.topics
    assert topic.access == (rule("t-all", Right.SEND, Right.LISTEN, keys=("p",)),)
    assert set(Namespace(found, FakeClock()).access) == {"", "q", "t"}


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        ("{}", "AuthorizationRules: should be a list"),
        (
            '[{"PrimaryKey": "k", "Rights": ["Send"]}]',
            "AuthorizationRules[0].Name: is missing",
        ),
        (
            '[{"Name": "n", "Rights": ["Send"]}]',
            "AuthorizationRules[0].PrimaryKey: is missing",
        ),
        (
            '[{"Name": "n", "PrimaryKey": "secret"}]',
            (
                "AuthorizationRules[0].Rights: should be a list of some of: "
                "Listen, Send, Manage"
            ),
        ),
        (
            '[{"Name": "n", "PrimaryKey": "secret", "Rights": ["send"]}]',
            (
                "AuthorizationRules[0].Rights: should be a list of some of: "
                "Listen, Send, Manage"
            ),
        ),
        (
            '[{"Name": "n", "PrimaryKey": "secret", "Rights": ["Send"], "X": 1}]',
            "AuthorizationRules[0].X: unknown field",
        ),
        (
            (
                '[{"Name": "n", "PrimaryKey": "secret", "Rights": ["Send"]}, '
                '{"Name": "n", "PrimaryKey": "secret", "Rights": ["Listen"]}]'
            ),
            "AuthorizationRules has the name 'n' more than once",
        ),
    ],
)
def test_faulty_rule_is_named_with_its_place(rules: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_entities(FILE % rules)

    assert caught.value.faults == (fault,)


def test_subscription_has_no_rules_of_its_own() -> None:
    own = '{"Name": "s", "AuthorizationRules": [1]}'
    text = (FILE % "[]").replace(
        '"Name": "t",', f'"Name": "t", "Subscriptions": [{own}],'
    )
    with pytest.raises(ConfigError) as caught:
        parse_entities(text)

    assert "Topics[0].Subscriptions[0].AuthorizationRules: a topic has rules" in str(
        caught.value
    )


def test_key_is_not_shown() -> None:
    assert "k1" not in repr(RULES)
