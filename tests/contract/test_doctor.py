"""``check --connect``: everything that is configured is tried, and nothing changed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from bridge import config as configuration
from bridge import doctor
from bridge.approvals.queue import ApprovalSource, open_queue
from bridge.clock import SystemClock
from bridge.config import Config
from bridge.doctor import Finding
from bridge.errors import ApprovalQueueError
from bridge.namespace import NamespaceConfig
from bridge.options import Secret
from bridge.simulator.imds import ImdsSimulator
from bridge.simulator.imds_state import ImdsSettings
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.errors import Condition
from tests.contract.sink_fixtures import Inbox
from tests.fakes import FakeClock

VM = "vm-7"


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


async def examined(config: Config) -> list[Finding]:
    async with asyncio.timeout(20):
        return await doctor.examine(config, FakeClock())


def good(findings: list[Finding]) -> list[str]:
    assert all(finding.is_good for finding in findings), findings
    return [finding.text for finding in findings]


def bad(findings: list[Finding]) -> list[str]:
    return [finding.text for finding in findings if not finding.is_good]


# -- IMDS ------------------------------------------------------------------------


async def test_imds_says_who_this_is_and_what_is_scheduled(imds: ImdsSimulator) -> None:
    assert good(await examined(config_of(imds.url))) == [
        f"imds: instance metadata: this VM is {VM}",
        "imds: scheduledevents: answers; events now: 0",
    ]


async def test_both_parts_of_imds_are_told_apart(inbox: Inbox) -> None:
    inbox.status = 404

    assert bad(await examined(config_of(inbox.url))) == [
        "imds: instance metadata: IMDS answered 404 to GET",
        "imds: scheduledevents: IMDS answered 404 to GET",
    ]


async def test_answer_that_is_no_document_is_told(inbox: Inbox) -> None:
    _, events = await examined(config_of(inbox.url))

    assert not events.is_good
    assert events.text.startswith("imds: scheduledevents: the document ")


async def test_machine_without_metadata_that_is_configured_wholly_is_fine(
    inbox: Inbox,
) -> None:
    inbox.status = 404
    me = {"vm_name": VM, "vm_id": "1", "resource_id": "/subscriptions/s"}

    found, _ = await examined(config_of(inbox.url, identity=me))

    assert found.is_good
    assert found.text == (
        f"imds: instance metadata: IMDS answered 404 to GET; [identity] says {VM}"
    )


async def test_slow_first_answer_is_not_waited_for_forever(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_PATIENCE", 0.1)
    inbox.is_silent = True

    who, events = await examined(config_of(inbox.url))

    assert who.text == "imds: instance metadata: no answer within 0.1 s"
    assert events.text.startswith("imds: scheduledevents: no answer within 0.1 s")
    assert "the first call may take two minutes" in events.text


# -- sinks -----------------------------------------------------------------------


async def test_sinks_are_tried_although_one_hangs(
    imds: ImdsSimulator, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_PATIENCE", 0.5)
    inbox.is_silent = True
    sinks = [
        {"name": "a", "type": "webhook", "url": inbox.url},
        {"name": "b", "type": "webhook", "url": "http://127.0.0.1:1"},
        {"name": "c", "type": "webhook", "url": imds.url},
    ]

    found = await examined(config_of(imds.url, sinks=sinks))

    assert [one.is_good for one in found[2:]] == [False, False, True]
    assert found[2].text == "sinks.a: no answer within 0.5 s"
    assert found[3].text.startswith("sinks.b: ")


# -- approvals -------------------------------------------------------------------


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

    assert found[2:] == [f"approvals: {one} may be received from" for one in sources]


async def test_nothing_is_taken_and_no_session_stays_locked(
    imds: ImdsSimulator, broker: Broker
) -> None:
    keys = {"queue": "vm-approvals-sessions", "sessions": ["mine"]}
    before = broker.snapshot()

    good(await examined(config_of(imds.url, approvals=approvals_of(broker, **keys))))

    assert broker.snapshot() == before
    where = NamespaceConfig(connection_string=Secret(broker.connection_string, {}))
    source = ApprovalSource(queue="vm-approvals-sessions", session="mine")
    async with open_queue(where, source, SystemClock()) as queue, asyncio.timeout(5):
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

    assert found[2] == (
        "approvals: vm-approvals-sessions session mine is there, and held by a "
        "bridge that runs"
    )


CREATE = "create or enable {}: the bridge has no right to"


@pytest.mark.parametrize(
    ("condition", "words", "help_"),
    [
        (Condition.NOT_FOUND, "does not exist", CREATE),
        (
            Condition.UNAUTHORIZED,
            "denies the right",
            'it takes the role "Azure Service Bus Data {role}" on {}',
        ),
        (Condition.ENTITY_DISABLED, "is disabled", CREATE),
    ],
)
async def test_what_is_missing_is_told_with_the_entity_and_what_helps(
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
        ({"queue": "vm-approvals-sessions"}, "it may want sessions: name them in app"),
        (
            {"queue": "vm-approvals", "sessions": ["a"]},
            "it may have no sessions: leave app",
        ),
    ],
)
async def test_sessions_on_the_wrong_entity_are_told(
    keys: dict[str, object], hint: str, imds: ImdsSimulator, broker: Broker
) -> None:
    approvals = approvals_of(broker, **keys)

    (fault,) = bad(await examined(config_of(imds.url, approvals=approvals)))

    assert fault.startswith(f"approvals: Service Bus {keys['queue']}")
    assert hint in fault


async def test_placeholder_without_a_value_is_told(inbox: Inbox) -> None:
    inbox.status = 404
    approvals = {
        "namespace": "contoso.servicebus.windows.net",
        "queue": "q",
        "sessions": ["{vm_id}"],
    }

    found = bad(await examined(config_of(inbox.url, approvals=approvals)))

    assert found[2] == "approvals: {vm_id} in '{vm_id}' is not known here"


async def test_silent_broker_is_not_waited_for_forever(
    imds: ImdsSimulator, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_PATIENCE", 0.5)
    broker.faults.freeze()
    approvals = approvals_of(broker, queue="vm-approvals")

    (fault,) = bad(await examined(config_of(imds.url, approvals=approvals)))
    broker.faults.thaw()

    assert fault.startswith("approvals: no answer within 0.5 s")
