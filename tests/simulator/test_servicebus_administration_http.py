"""The administration API over plain HTTP: what no client of an SDK would send."""

from collections.abc import AsyncIterator
from pathlib import Path
from xml.etree import ElementTree as ET

import aiohttp
import pytest
from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from bridge.simulator.servicebus.access import AccessRule, Right
from bridge.simulator.servicebus.administration.server import (
    Administration,
    AdministrationPorts,
)
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.rules.rule import CorrelationFilter, Rule
from bridge.simulator.servicebus.settings import Entities, QueueSettings
from bridge.simulator.tls_certificate import make_certificate
from bridge.simulator.wire.values import Timestamp

ATOM = "{http://www.w3.org/2005/Atom}"
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


@pytest.fixture
async def door(broker: Broker) -> AsyncIterator[Administration]:
    async with Administration(broker) as running:
        yield running


@pytest.fixture
async def http(door: Administration) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(door.url) as session:
        yield session


def entry(name: str, inner: str = "") -> str:
    return (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{name} xmlns="{CONNECT}">{inner}</{name}></content></entry>'
    )


def authorization(name: str, right: str) -> str:
    rights = f"<Rights><AccessRights>{right}</AccessRights></Rights>"
    rule = f"<AuthorizationRule>{name}{rights}</AuthorizationRule>"
    return f"<AuthorizationRules>{rule}</AuthorizationRules>"


async def put(
    http: aiohttp.ClientSession, path: str, body: str | bytes
) -> tuple[int, str]:
    async with http.put(path, data=body) as reply:
        return reply.status, await reply.text()


async def test_health_is_that_of_the_emulator(http: aiohttp.ClientSession) -> None:
    async with http.get("/health") as reply:
        assert (reply.status, (await reply.json())["status"]) == (200, "healthy")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "The body is not XML: "),
        ("<entry>", "The body is not XML: "),
        (b"\xff\xfe", "The body is not XML: "),
        ("<a/>", "The body is not an Atom entry with a QueueDescription."),
        ("<QueueDescription/>", "The body is not an Atom entry with a Queue"),
        (
            '<!DOCTYPE x [<!ENTITY y "z">]>' + entry("QueueDescription"),
            "The body has a document type, which is not allowed.",
        ),
        (
            entry("QueueDescription", "<Colour>red</Colour>"),
            "A queue has no &apos;Colour&apos;; allowed: LockDuration, ",
        ),
        (
            entry("QueueDescription", "<RequiresSession>yes</RequiresSession>"),
            "RequiresSession is true or false, not &apos;yes&apos;.",
        ),
        (
            entry("QueueDescription", authorization("<KeyName>k</KeyName>", "Eat")),
            "AccessRights are Listen, Send, Manage, not &apos;Eat&apos;.",
        ),
        (
            entry("QueueDescription", authorization("", "Send")),
            "An AuthorizationRule needs a KeyName.",
        ),
        (
            entry("QueueDescription", "<MaxDeliveryCount>2.5</MaxDeliveryCount>"),
            "MaxDeliveryCount is a whole number from 1 to 2000, not",
        ),
        (
            entry("QueueDescription", "<LockDuration>P1Y</LockDuration>"),
            "LockDuration is a duration from PT1S to PT5M, not",
        ),
        (
            entry(
                "QueueDescription",
                "<DefaultMessageTimeToLive>P99999999999D</DefaultMessageTimeToLive>",
            ),
            "DefaultMessageTimeToLive is a duration from PT1S, such as PT1H, or P1067",
        ),
    ],
)
async def test_body_that_cannot_be_read_is_refused(
    http: aiohttp.ClientSession, body: str | bytes, words: str
) -> None:
    status, text = await put(http, "/q", body)

    assert status == 400
    assert text.startswith("<Error><Code>400</Code><Detail>SubCode=40000. Bad Request.")
    assert words in text.replace("'", "&apos;")
    async with http.get("/q") as reply:
        assert "<entry" not in await reply.text()


RULE = "/news/subscriptions/all/rules/r"


def action(pairs: str) -> str:
    return (
        f"<Action {TYPED}='SqlRuleAction'><SqlExpression>SET a = @b</SqlExpression>"
        f"<Parameters>{pairs}</Parameters></Action>"
    )


def pair(kind: str, text: str) -> str:
    value = f"<Value {TYPED}='d:{kind}'>{text}</Value>"
    return f"<KeyValueOfstringanyType><Key>@b</Key>{value}</KeyValueOfstringanyType>"


TYPED = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance" i:type'


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        ("<Filter/>", "A Filter is a SqlFilter, CorrelationFilter, TrueFilter or Fals"),
        (f"<Filter {TYPED}='SqlFilter'/>", "A SqlFilter needs a SqlExpression."),
        (
            f"<Filter {TYPED}='CorrelationFilter'/>",
            "A CorrelationFilter names at least one property.",
        ),
        (
            f"<Filter {TYPED}='CorrelationFilter'><Subject>x</Subject></Filter>",
            "A CorrelationFilter has no 'Subject'; allowed: ContentType, ",
        ),
        ("<Action/>", "An Action is a SqlRuleAction or EmptyRuleAction, not ''."),
        (
            f"<Action {TYPED}='SqlRuleAction'/>",
            "A SqlRuleAction needs a SqlExpression.",
        ),
        (action(pair("int", "five")), "The value of '@b' is not of type int: 'five'."),
        (
            action(pair("int", str(2**63))),
            f"The value of '@b' is not of type int: '{2**63}'.",
        ),
        (
            action(pair("dateTime", "0001-01-01T00:00:00+14:00")),
            "The value of '@b' is not of type dateTime: '0001-01-01T00:00:00+14:00'.",
        ),
        (
            action(pair("char", "x")),
            "The type of '@b' is 'char'; allowed: boolean, dateTime, double, duration",
        ),
        (action("<KeyValueOfstringanyType/>"), "Each of Parameters has a Key and a Va"),
    ],
)
async def test_rule_that_cannot_be_read_is_refused(
    http: aiohttp.ClientSession, inner: str, words: str
) -> None:
    status, text = await put(http, RULE, entry("RuleDescription", inner))

    assert (status, words in text) == (400, True), text


async def test_latest_time_of_net_is_reported_again(
    http: aiohttp.ClientSession,
) -> None:
    latest = action(pair("dateTime", "9999-12-31T23:59:59.9999999Z"))
    status, text = await put(http, RULE, entry("RuleDescription", latest))

    assert (status, ">9999-12-31T23:59:59.999Z<" in text) == (201, True), text


async def test_time_in_a_rule_of_amqp_is_reported_as_a_time(
    http: aiohttp.ClientSession, broker: Broker
) -> None:
    """As a number of 64 bits, the client of JavaScript could list no rule."""
    at = {"at": Timestamp(1_700_000_000_000)}
    subscription = broker.changes.namespace.find_queue("news/Subscriptions/all")
    admits = CorrelationFilter(application_properties=at)
    subscription.rules.add(Rule(name="r", filter=admits))

    async with http.get(RULE) as reply:
        assert (
            'dateTime" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">2023-11-14T22'
            in (await reply.text())
        )


PAIR = (
    "<KeyValueOfstringanyType><Key>n</Key>"
    '<Value i:type="d:{}" xmlns:d="http://www.w3.org/2001/XMLSchema" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{}</Value>'
    "</KeyValueOfstringanyType>"
)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int", "5"),
        ("long", "5"),
        ("int", str(-(2**31))),
        ("long", str(2**31)),
        ("dateTime", "2026-11-27T10:00:00"),
        ("dateTime", "2026-11-27T10:00:00.000Z"),
    ],
)
async def test_value_of_a_rule_keeps_its_type(
    http: aiohttp.ClientSession, kind: str, text: str
) -> None:
    """A time without a zone stays one: clients would shift it otherwise."""
    admits = (
        '<Filter i:type="CorrelationFilter" '
        'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        f"<Properties>{PAIR.format(kind, text)}</Properties></Filter>"
    )
    status, _ = await put(http, RULE, entry("RuleDescription", admits))
    assert status == 201

    async with http.get(RULE) as reply:
        found = await reply.text()

    assert f'i:type="d6p1:{kind}"' in found
    assert f">{text}</Value>" in found


async def test_int_of_a_rule_has_32_bits(http: aiohttp.ClientSession) -> None:
    admits = (
        '<Filter i:type="CorrelationFilter" '
        'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        f"<Properties>{PAIR.format('int', 2**31)}</Properties></Filter>"
    )

    status, found = await put(http, RULE, entry("RuleDescription", admits))

    assert status == 400
    assert "is not of type int" in found


@pytest.mark.parametrize(
    "path", ["news/subscriptions/nobody", "news/subscriptions/all/rules/nothing"]
)
async def test_absent_subscription_or_rule_is_404(
    http: aiohttp.ClientSession, path: str
) -> None:
    """The client of Java cannot read an empty list in its place."""
    async with http.get(f"/{path}") as reply:
        assert reply.status == 404
    async with http.get("/nowhere") as reply:  # as the cloud answers for a queue
        assert (reply.status, "<feed" in await reply.text()) == (200, True)


async def test_rule_without_a_filter_admits_everything(
    http: aiohttp.ClientSession,
) -> None:
    status, text = await put(http, RULE, entry("RuleDescription"))

    assert status == 201
    assert 'i:type="TrueFilter"' in text


async def test_dead_letters_are_no_entity_of_their_own(
    http: aiohttp.ClientSession,
) -> None:
    async with http.get("/plain/$DeadLetterQueue") as reply:
        assert "<entry" not in await reply.text()
    async with http.delete("/plain/$DeadLetterQueue") as reply:
        assert reply.status == 404


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/$Resources/tables", "There are no 'tables'; allowed: queues, topics."),
        ("/$Resources/queues?$skip=-1", "$skip is a whole number from 0, not '-1'."),
        ("/$Resources/queues?$top=x", "$top is a whole number from 0, not 'x'."),
    ],
)
async def test_list_that_does_not_exist_is_refused(
    http: aiohttp.ClientSession, path: str, words: str
) -> None:
    async with http.get(path) as reply:
        assert (reply.status, words in await reply.text()) == (400, True)


async def test_pages_lead_to_each_other(http: aiohttp.ClientSession) -> None:
    found = []
    path: str | None = "/$Resources/queues?$skip=0&$top=3&api-version=2021-05"
    while path is not None:
        async with http.get(path) as reply:
            feed = ET.fromstring(await reply.text())  # noqa: S314 - our own
        found.append(len(feed.findall(f"{ATOM}entry")))
        links = {link.get("rel"): link.get("href") for link in feed.iter(f"{ATOM}link")}
        following = links.get("next")
        path = None if following is None else following.partition(http_host(http))[2]

    assert found == [3, 3, 1]


def http_host(http: aiohttp.ClientSession) -> str:
    base = http._base_url
    assert base is not None
    return base.authority


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_other_methods_are_reported(
    http: aiohttp.ClientSession, method: str
) -> None:
    async with http.request(method, "/q") as reply:
        assert reply.status == 405
        assert "<Error><Code>405</Code>" in await reply.text()


async def test_page_of_another_site_changes_nothing(
    http: aiohttp.ClientSession,
) -> None:
    headers = {"Origin": "http://example.org"}
    async with http.delete("/plain", headers=headers) as reply:
        assert reply.status == 403
    async with http.get("/plain") as reply:
        assert "<entry" in await reply.text()


@pytest.mark.parametrize(("key", "is_let_in"), [("right", True), ("wrong", False)])
async def test_rules_of_access_hold_for_the_administration(
    tmp_path: Path, key: str, *, is_let_in: bool
) -> None:
    rule = AccessRule(name="boss", keys=("right",), rights=frozenset({Right.MANAGE}))
    entities = Entities(queues=(QueueSettings(name="q"),), access=(rule,))
    files = make_certificate(tmp_path)
    ports = AdministrationPorts(tls=files)
    async with (
        Broker(entities) as broker,
        Administration(broker, ports=ports) as door,
        ServiceBusAdministrationClient.from_connection_string(
            f"Endpoint=sb://{door.secure_url.partition('://')[2]};"
            f"SharedAccessKeyName=boss;SharedAccessKey={key}",
            connection_verify=str(files.authority),
            retry_total=0,
        ) as client,
        aiohttp.ClientSession(door.url) as http,
    ):
        async with http.get("/q") as reply:
            assert reply.status == 401
        async with http.get("/health") as reply:
            assert reply.status == 200
        if is_let_in:
            assert (await client.get_queue("q")).name == "q"
            assert [found.name async for found in client.list_queues()] == ["q"]
        else:
            with pytest.raises(ClientAuthenticationError):
                await client.get_queue("q")


async def test_right_to_manage_is_needed(tmp_path: Path) -> None:
    rule = AccessRule(name="clerk", keys=("k",), rights=frozenset({Right.SEND}))
    files = make_certificate(tmp_path)
    entities = Entities(queues=(QueueSettings(name="q"),), access=(rule,))
    async with (
        Broker(entities) as broker,
        Administration(broker, ports=AdministrationPorts(tls=files)) as door,
        ServiceBusAdministrationClient.from_connection_string(
            f"Endpoint=sb://{door.secure_url.partition('://')[2]};"
            "SharedAccessKeyName=clerk;SharedAccessKey=k",
            connection_verify=str(files.authority),
            retry_total=0,
        ) as client,
    ):
        with pytest.raises(ResourceNotFoundError):  # anybody may learn that
            await client.get_queue("nowhere")
        for action, words in (
            (client.get_queue("q"), "Manage,EntityRead claims required for this oper"),
            (client.create_queue("x"), "for specified action: Manage,EntityWrite."),
            (client.delete_queue("q"), "for specified action: Manage,EntityDelete."),
            (
                client.get_subscription("t", "nowhere"),
                "40100: Unauthorized : Unauthorized access for 'GetSubscription'",
            ),
            (client.create_subscription("t", "s"), "'CreateOrUpdateSubscription'"),
            (client.delete_rule("t", "s", "r"), "access for 'DeleteRule' operation"),
        ):
            with pytest.raises(ClientAuthenticationError) as refused:
                await action
            assert words in str(refused.value)
