"""``check --connect``: every configured connection is tested, and nothing changes."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta

import pytest
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusError,
    SessionCannotBeLockedError,
)

from bridge.configuration import load as configuration
from bridge.configuration.config import Config
from bridge.diagnostics import doctor
from bridge.diagnostics.finding import Finding
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import ApprovalQueueError, DeliveryError
from bridge.foundation.values import Secret
from bridge.servicebus.namespace import ApprovalSource, NamespaceConfig
from bridge.servicebus.receiver import open_queue
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.imds.state import ImdsSettings
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.values import Condition
from tests.support.configurations import webhook
from tests.support.fakes import START
from tests.support.sink_fixtures import Inbox

VM = "vm-7"
NOWHERE = (
    "Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey=s;"
    "UseDevelopmentEmulator=true"
)


@pytest.fixture
async def imds() -> AsyncIterator[ImdsSimulator]:
    async with ImdsSimulator(ImdsSettings(vm_name=VM)) as running:
        yield running


def config_of(imds: str, **tables: object) -> Config:
    return configuration.parse(
        {"imds": {"endpoint": imds}, **tables}, file="b.toml", environ={}
    )


def approvals_of(broker: Broker, **keys: object) -> dict[str, object]:
    return {"connection_string": broker.connection_string, **keys}


async def examined(config: Config, patience: float = 20.0) -> list[Finding]:
    async with asyncio.timeout(60):
        return await doctor.examine(config, SystemClock(), patience)


def good(findings: list[Finding]) -> list[str]:
    assert all(finding.result != "fault" for finding in findings), findings
    return [finding.text for finding in findings]


def bad(findings: list[Finding]) -> list[str]:
    return [finding.text for finding in findings if finding.result == "fault"]


# -- IMDS ------------------------------------------------------------------------


async def test_imds_says_who_this_is_and_what_is_scheduled(imds: ImdsSimulator) -> None:
    assert good(await examined(config_of(imds.url))) == [
        f"imds: instance metadata: this VM is {VM}",
        "imds: scheduledevents: answers; events now: 0",
        "clock: agrees with IMDS",
    ]


async def test_instance_and_document_are_tested_separately(inbox: Inbox) -> None:
    inbox.status = 404

    assert bad(await examined(config_of(inbox.url))) == [
        "imds: instance metadata: IMDS answered 404 to GET",
        "imds: scheduledevents: IMDS answered 404 to GET",
    ]


async def test_invalid_document_is_a_fault(inbox: Inbox) -> None:
    _, events, _ = await examined(config_of(inbox.url))

    assert events.result == "fault"
    assert events.text.startswith("imds: scheduledevents: the document ")


async def test_configured_identity_needs_no_metadata(
    inbox: Inbox,
) -> None:
    inbox.status = 404
    me = {"vm_name": VM, "vm_id": "1", "resource_id": "/subscriptions/s"}

    found, _ = await examined(config_of(inbox.url, identity=me))

    assert found.result != "fault"
    assert found.text == (
        f"imds: instance metadata: IMDS answered 404 to GET; [identity] says {VM}"
    )


async def test_slow_first_answer_is_not_waited_for_forever(inbox: Inbox) -> None:
    inbox.is_silent = True

    who, events = await examined(config_of(inbox.url), patience=0.1)

    assert who.text == "imds: instance metadata: no answer within 0.1 s"
    assert events.text.startswith("imds: scheduledevents: no answer within 0.1 s")
    assert "the first call may take two minutes" in events.advice


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (404, "is this an Azure VM"),
        (400, "does a proxy on this"),
        (403, "Azure's Metadata Security Protocol guards IMDS"),
        (302, "something else answers at imds.endpoint"),
    ],
)
async def test_silent_and_refusing_imds_get_different_advice(
    status: int, advice: str, inbox: Inbox
) -> None:
    inbox.status = status

    for one in await examined(config_of(inbox.url)):
        assert one.advice.startswith(advice)


async def test_ephemeral_os_disk_is_a_warning(inbox: Inbox) -> None:
    """Source: storageProfile of instance metadata."""
    inbox.answer = b"""{"name": "vm", "storageProfile":
        {"osDisk": {"diffDiskSettings": {"option": "Local"}}}}"""

    _, _, disk, _ = await examined(config_of(inbox.url))

    assert disk.result == "warning"
    assert "ephemeral" in disk.text


async def test_page_in_place_of_a_document_gets_its_own_advice(inbox: Inbox) -> None:
    inbox.answer = b"<html><title>Sign in</title></html>"

    for one in await examined(config_of(inbox.url)):
        assert (
            "something else answers at imds.endpoint" in one.advice
            or one.result != "fault"
        )


@pytest.mark.parametrize(
    ("compute", "is_warned"),
    [
        ({"vmScaleSetName": "web"}, True),
        ({"virtualMachineScaleSet": {"id": "/subscriptions/s/x/web"}}, True),
        ({"vmScaleSetName": "", "virtualMachineScaleSet": {"id": ""}}, False),
    ],
)
async def test_scale_set_with_a_probe_is_a_warning(
    compute: dict[str, object], inbox: Inbox, *, is_warned: bool
) -> None:
    """Its automatic repairs delete what the probe calls out."""
    inbox.answer = json.dumps({"name": "vm", **compute}).encode()

    found = await examined(config_of(inbox.url, traffic={"listen": "127.0.0.1:0"}))
    without = await examined(config_of(inbox.url))

    warnings = [one for one in found if one.text.startswith("traffic: ")]
    assert [one.result == "warning" for one in warnings] == [True] * is_warned
    assert all("the scale set web:" in one.text for one in warnings)
    assert not [one for one in without if one.text.startswith("traffic: ")]


# -- the clock -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "is_good", "is_warning", "words"),
    [
        (0, True, False, "agrees with"),
        (4.9, True, False, "agrees with"),
        (5, True, True, "5 s ahead of"),
        (59.9, True, True, "60 s ahead of"),
        (60, False, False, "60 s ahead of"),
        (-5, True, True, "5 s behind"),
        (-7200, False, False, "7200 s behind"),
    ],
)
def test_clock_is_compared_with_that_of_imds(
    seconds: float, words: str, *, is_good: bool, is_warning: bool
) -> None:
    """Date has whole seconds, and the answer took one second: both are tolerated."""
    asked = START + timedelta(seconds=seconds + (1 if seconds > 0 else -1))

    found = doctor.compared(START, asked, asked + timedelta(seconds=1))

    assert (found.result != "fault", found.result == "warning") == (is_good, is_warning)
    assert found.text == f"clock: {words} IMDS"
    assert bool(found.advice) is (words != "agrees with")


def test_clock_is_not_checked_without_a_date() -> None:
    assert doctor.compared(None, START, START).result == "ok"


# -- tokens ----------------------------------------------------------------------


TOKEN_SECONDS = 24 * 3600 + 60  # tokens of a managed identity are valid for a day


def token_of(claims: bytes) -> bytes:
    token = f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.s1gnature"
    until = int(SystemClock().now().timestamp()) + TOKEN_SECONDS
    rest = {"resource": "https://servicebus.azure.net", "token_type": "Bearer"}
    answer = {"access_token": token, "expires_on": str(until), **rest}
    return json.dumps(answer).encode()


@pytest.mark.parametrize(
    ("claims", "whose"),
    [
        (b'{"appid": "app-1", "oid": "oid-1"}', "application app-1, principal oid-1"),
        (b'{"azp": "app-2", "oid": "oid-2"}', "application app-2, principal oid-2"),
        (b"no JSON", "a token without a readable principal"),
    ],
)
async def test_token_is_requested_once_and_its_principal_is_shown(
    claims: bytes, whose: str, imds: ImdsSimulator, inbox: Inbox, machine: None
) -> None:
    inbox.answer = token_of(claims)
    sink = {"type": "servicebus", "namespace": "127.0.0.1", "queue": "q"}
    sinks = [{"name": name, **sink} for name in ("a", "b")]

    found = await examined(config_of(imds.url, sinks=sinks))

    (token,) = [one for one in found if one.text.startswith("token: ")]
    text, left = token.text.split("; valid for ")
    assert text == f"token: credential managed-identity: {whose}"
    assert left in {"1440 min", "1441 min"}
    assert "s1gnature" not in str(found)


async def test_failed_token_request_is_a_fault_with_advice(
    imds: ImdsSimulator, inbox: Inbox, machine: None
) -> None:
    inbox.status, inbox.answer = 400, b'{"error": "invalid_request"}'
    sink = {"name": "a", "type": "servicebus", "namespace": "127.0.0.1", "queue": "q"}

    found = await examined(config_of(imds.url, sinks=[sink]))

    (token,) = [one.text for one in found if one.text.startswith("token: ")]
    assert token.startswith("token: credential managed-identity: no token was issued")
    assert "az vm identity assign" in token


def with_entra(name: str, **auth: object) -> dict[str, object]:
    scope = "https://monitor.azure.com/.default"
    entra = {"type": "entra", "scope": scope, **auth}
    return webhook("http://127.0.0.1:1", name, auth=entra)


async def test_token_of_a_webhook_is_tried_for_its_own_scope(
    imds: ImdsSimulator, inbox: Inbox, machine: None
) -> None:
    inbox.answer = token_of(b'{"appid": "app-1", "oid": "oid-1"}')
    sinks = [
        with_entra("a"),
        with_entra("b"),
        with_entra("c", client_id="other"),
        {"name": "d", "type": "servicebus", "namespace": "127.0.0.1", "queue": "q"},
    ]

    found = await examined(config_of(imds.url, sinks=sinks))

    tokens = [one.text for one in found if one.text.startswith("token: ")]
    webhooks = "token: credential managed-identity for https://monitor.azure.com/.def"
    assert [text.startswith(webhooks) for text in tokens] == [True, True, False]
    assert all("application app-1, principal oid-1; valid for" in t for t in tokens)


async def test_failed_token_request_of_a_webhook_has_advice(
    imds: ImdsSimulator, inbox: Inbox, machine: None
) -> None:
    inbox.status, inbox.answer = 400, b'{"error": "invalid_request"}'

    found = await examined(config_of(imds.url, sinks=[with_entra("a")]))

    (token,) = [one for one in found if one.text.startswith("token: ")]
    assert token.result == "fault"
    assert "no token was issued" in token.text
    assert "az vm identity assign" in token.text


async def test_no_token_is_requested_if_none_is_used(
    imds: ImdsSimulator, inbox: Inbox
) -> None:
    plain = {"name": "a", "type": "webhook", "url": inbox.url}

    found = good(await examined(config_of(imds.url, sinks=[plain])))

    assert not [text for text in found if text.startswith("token: ")]


@pytest.fixture
def machine(inbox: Inbox, monkeypatch: pytest.MonkeyPatch, brisk_sdk: None) -> None:
    """Make the inbox the identity endpoint of this machine."""
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", inbox.url)
    inbox.headers["Content-Type"] = "application/json"


# -- sinks -----------------------------------------------------------------------


async def test_sinks_are_tried_although_one_hangs(
    imds: ImdsSimulator, inbox: Inbox
) -> None:
    inbox.is_silent = True
    sinks = [
        {"name": "a", "type": "webhook", "url": inbox.url},
        {"name": "b", "type": "webhook", "url": "http://127.0.0.1:1"},
        {"name": "c", "type": "webhook", "url": imds.url},
    ]

    found = await examined(config_of(imds.url, sinks=sinks), patience=2)

    assert [one.result != "fault" for one in found[3:]] == [False, False, True]
    assert found[3].text == "sinks.a: no answer within 2 s"
    assert found[4].text.startswith("sinks.b: ")
    assert all("firewalls" in one.advice for one in found[3:5])


@pytest.mark.parametrize("status", [200, 204, 405, 501])
async def test_endpoint_that_answers_options_is_good(
    status: int, imds: ImdsSimulator, inbox: Inbox
) -> None:
    """405 and 501 mean that the endpoint accepts other methods."""
    inbox.status = status
    hook = {"name": "hook", "type": "webhook", "url": inbox.url}

    found = await examined(config_of(imds.url, sinks=[hook]))

    assert found[3].result != "warning"
    words = f"{inbox.url} is there (it answers OPTIONS with {status})"
    assert good(found)[3] == f"sinks.hook: {words}"


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (302, "redirects are not followed: "),
        (400, "many services accept only POST"),
        (401, "does it take these credentials? "),
        (403, "does it take these credentials? "),
        (404, "is the path right? "),
        (410, "is the path right? "),
        (429, "many services accept only POST"),
        (500, "many services accept only POST"),
        (503, "many services accept only POST"),
    ],
)
@pytest.mark.parametrize("kind", ["webhook", "slack"])
async def test_endpoint_that_refuses_options_is_unproven(
    kind: str, status: int, advice: str, imds: ImdsSimulator, inbox: Inbox
) -> None:
    inbox.status = status
    key = "url" if kind == "webhook" else "webhook_url"
    hook = {"name": "hook", "type": kind, key: f"{inbox.url}/s3cret"}

    (found,) = (await examined(config_of(imds.url, sinks=[hook])))[3:]

    assert found.result != "fault"  # no fault was found
    assert found.result == "warning"
    assert found.text == (
        f"sinks.hook: {inbox.url} answers OPTIONS with {status}, which does not show "
        "whether it takes events"
    )
    assert found.advice.startswith(advice)
    assert found.advice.endswith("`sebridge send-test --sink hook` tests it")


async def test_secret_that_is_refused_is_advised_to_be_replaced(
    imds: ImdsSimulator, inbox: Inbox
) -> None:
    inbox.answer = b'{"ok": false, "error": "token_expired"}'
    bot = {"type": "slack", "token": "xoxb-1", "channel": "C012AB3CD"}
    ops = {"name": "ops", **bot, "api_url": f"{inbox.url}/api/"}

    (found,) = (await examined(config_of(imds.url, sinks=[ops])))[3:]

    assert found.result == "fault"
    assert found.text == f"sinks.ops: {inbox.url} answered token_expired"
    assert "expired" in found.advice
    assert "Replace it" in found.advice


async def test_handshake_permission_proves_the_endpoint(
    imds: ImdsSimulator, inbox: Inbox
) -> None:
    inbox.status, inbox.headers = 400, {"WebHook-Allowed-Origin": "*"}
    hook = {"name": "hook", "type": "webhook", "url": inbox.url}

    (found,) = (
        await examined(config_of(imds.url, sinks=[hook | {"handshake": "required"}]))
    )[3:]

    assert found.result == "ok"
    assert found.text.endswith(f"it allows {VM} to send")


async def test_missing_optional_permission_proves_nothing(
    imds: ImdsSimulator, inbox: Inbox
) -> None:
    inbox.status = 400
    hook = {"name": "hook", "type": "webhook", "url": inbox.url}

    (found,) = (
        await examined(config_of(imds.url, sinks=[hook | {"handshake": "attempt"}]))
    )[3:]

    assert found.result == "warning"


BUS = {"type": "servicebus", "connection_string": NOWHERE, "queue": "q"}


@pytest.mark.parametrize(
    ("sink", "is_bus"),
    [
        (BUS, True),
        ({"type": "webhook", "url": "http://127.0.0.1:1"}, False),
        ({"type": "slack", "webhook_url": "http://127.0.0.1:1/s"}, False),
        (
            {
                "type": "slack",
                "token": "xoxb-1",
                "channel": "ops",
                "api_url": "http://127.0.0.1:1/",
            },
            False,
        ),
        ({"type": "syslog", "host": "127.0.0.1", "port": 1}, False),
    ],
)
async def test_ports_of_service_bus_are_named_for_service_bus_alone(
    sink: dict[str, object], imds: ImdsSimulator, *, is_bus: bool
) -> None:
    config = config_of(imds.url, sinks=[{"name": "a", **sink}])

    (found,) = [one for one in await examined(config) if "sinks.a" in one.text]

    assert "firewalls" in found.advice
    assert ("5671" in found.advice) is is_bus


async def test_ports_of_service_bus_are_named_for_approvals_and_replies(
    imds: ImdsSimulator,
) -> None:
    keys = {"connection_string": NOWHERE, "queue": "q", "reply_to": ["replies"]}

    found = await examined(config_of(imds.url, approvals=keys))

    advice = [one.advice for one in found if one.text.startswith("approvals")]
    assert len(advice) == 2
    assert all("5671" in text for text in advice)


# -- approvals -------------------------------------------------------------------


def refused_with(cause: Exception) -> ApprovalQueueError:
    """Return the error that the queue raises for a cause."""
    error = ApprovalQueueError("Service Bus q: failed")
    error.__cause__ = cause
    return error


def wrapped(cause: Exception) -> ServiceBusError:
    """Wrap an error as the SDK does; see ``_handle_exception`` in its base handler."""
    return ServiceBusError(f"Handler failed: {cause}.", error=cause)


@pytest.mark.parametrize("wrap", [wrapped, lambda cause: cause])
def test_wrapped_refusal_is_recognised(
    wrap: Callable[[Exception], Exception],
) -> None:
    """The bridge examines the wrapped error, and so does the doctor."""
    source = ApprovalSource(queue="q", session="mine")

    held = doctor.excused(source, refused_with(wrap(SessionCannotBeLockedError())))

    assert held == "q session mine exists; a running bridge holds it"
    error = ServiceBusError("no", condition="amqp:not-allowed")
    with pytest.raises(DeliveryError, match="it may not support sessions"):
        doctor.excused(source, refused_with(wrap(error)))
    with pytest.raises(DeliveryError, match="create or enable q"):
        doctor.excused(source, refused_with(wrap(MessagingEntityNotFoundError())))


def test_text_of_an_error_is_not_its_condition() -> None:
    """The text of an error may contain anything, also the name of a condition."""
    source = ApprovalSource(queue="amqp:not-allowed")
    error = ApprovalQueueError("Service Bus amqp:not-allowed: cannot be reached")
    error.__cause__ = OSError("no")

    with pytest.raises(DeliveryError) as caught:
        doctor.excused(source, error)

    assert "sessions" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "sources"),
    [
        ({"queue": "vm-approvals"}, ["vm-approvals"]),
        (
            {"topic": "scheduled-events", "subscription": "consumer"},
            ["scheduled-events/consumer"],
        ),
        (
            {"queue": "vm-approvals-sessions", "sessions": ["{vm_name}", "group-7"]},
            [
                f"vm-approvals-sessions session {VM}",
                "vm-approvals-sessions session group-7",
            ],
        ),
    ],
)
async def test_every_place_that_approvals_come_from_is_tried(
    keys: dict[str, object], sources: list[str], imds: ImdsSimulator, broker: Broker
) -> None:
    approvals = approvals_of(broker, **keys)

    found = good(await examined(config_of(imds.url, approvals=approvals)))

    assert found[3:] == [f"approvals: {one} can be received from" for one in sources]


async def test_no_message_is_received_and_no_session_stays_locked(
    imds: ImdsSimulator, broker: Broker
) -> None:
    keys = {"queue": "vm-approvals-sessions", "sessions": ["mine"]}
    before = broker.snapshot()

    good(await examined(config_of(imds.url, approvals=approvals_of(broker, **keys))))

    assert broker.snapshot() == before
    where = NamespaceConfig(connection_string=Secret(broker.connection_string, {}))
    source = ApprovalSource(queue="vm-approvals-sessions", session="mine")
    async with open_queue(where, source, SystemClock()) as queue, asyncio.timeout(60):
        while not queue.attached:
            with suppress(ApprovalQueueError):
                await queue.reach()


async def test_session_that_a_running_bridge_holds_is_no_fault(
    imds: ImdsSimulator, broker: Broker
) -> None:
    keys = {"queue": "vm-approvals-sessions", "sessions": ["mine"]}
    where = NamespaceConfig(connection_string=Secret(broker.connection_string, {}))
    source = ApprovalSource(queue="vm-approvals-sessions", session="mine")

    async with open_queue(where, source, SystemClock()) as queue:
        await queue.reach()
        config = config_of(imds.url, approvals=approvals_of(broker, **keys))
        found = good(await examined(config))

    assert found[3] == (
        "approvals: vm-approvals-sessions session mine exists; a running bridge "
        "holds it"
    )


async def test_reply_entities_are_tested_except_patterns(
    imds: ImdsSimulator, broker: Broker
) -> None:
    reply_to = ["replies", "team-*", "nowhere"]
    approvals = approvals_of(broker, queue="vm-approvals", reply_to=reply_to)

    before = broker.snapshot()

    found = await examined(config_of(imds.url, approvals=approvals))

    there, missing = [one for one in found if "reply_to" in one.text]
    assert there.text == "approvals.reply_to: replies can be sent to"
    assert missing.text.startswith("approvals.reply_to: Service Bus entity nowhere: ")
    assert missing.text.endswith("create or enable nowhere: the bridge has no right to")
    assert broker.snapshot() == before


CREATE = "create or enable {}: the bridge has no right to"


@pytest.mark.parametrize(
    ("condition", "words", "help_"),
    [
        (Condition.NOT_FOUND, "does not exist", CREATE),
        (
            Condition.UNAUTHORIZED,
            "denies the right",
            'the identity needs the role "Azure Service Bus Data {role}" on {}',
        ),
        (Condition.ENTITY_DISABLED, "is disabled", CREATE),
    ],
)
async def test_missing_right_or_entity_is_named_with_advice(
    condition: Condition,
    words: str,
    help_: str,
    imds: ImdsSimulator,
    broker: Broker,
) -> None:
    for entity in ("vm-approvals", "scheduled-events"):
        broker.faults.refuse_attach(entity, condition)
    approvals = approvals_of(broker, queue="vm-approvals")
    sink = {
        "name": "bus",
        "type": "servicebus",
        "connection_string": broker.connection_string,
        "topic": "scheduled-events",
    }
    config = config_of(imds.url, sinks=[sink], approvals=approvals)

    to, where = bad(await examined(config))

    assert where.startswith(f"approvals: Service Bus vm-approvals: {words}")
    assert where.endswith(help_.format("vm-approvals", role="Receiver"))
    assert to.startswith("sinks.bus: ")
    assert f"scheduled-events: {words}" in to
    assert to.endswith(help_.format("scheduled-events", role="Sender"))


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ({"queue": "vm-approvals-sessions"}, "it may require sessions: set app"),
        (
            {"queue": "vm-approvals", "sessions": ["a"]},
            "it may not support sessions: remove app",
        ),
    ],
)
async def test_sessions_that_do_not_fit_the_entity_are_a_fault(
    keys: dict[str, object], hint: str, imds: ImdsSimulator, broker: Broker
) -> None:
    approvals = approvals_of(broker, **keys)

    (fault,) = bad(await examined(config_of(imds.url, approvals=approvals)))

    assert fault.startswith(f"approvals: Service Bus {keys['queue']}")
    assert hint in fault


async def test_placeholder_without_a_value_is_a_fault(inbox: Inbox) -> None:
    inbox.status = 404
    approvals = {"connection_string": NOWHERE, "queue": "q", "sessions": ["{vm_id}"]}

    found = await examined(config_of(inbox.url, approvals=approvals))

    (one,) = [one for one in found if one.text.startswith("approvals: ")]
    assert one.text == "approvals: {vm_id} in '{vm_id}' is not known here"
    assert "set it in [identity]" in one.advice


async def test_silent_broker_is_not_waited_for_forever(
    imds: ImdsSimulator, broker: Broker
) -> None:
    broker.faults.freeze()
    approvals = approvals_of(broker, queue="vm-approvals")

    config = config_of(imds.url, approvals=approvals)
    (fault,) = bad(await examined(config, patience=2))
    broker.faults.thaw()

    assert fault.startswith("approvals: no answer within 2 s")
