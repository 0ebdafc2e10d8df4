"""TLS to Service Bus: whom it trusts, and what is said of a certificate it does not.

Over real AMQP, with the certificate of a CA that no machine knows, such as that of a
proxy that inspects TLS.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import certifi
import pytest
import trustme

from bridge.configuration import load as configuration
from bridge.diagnostics import doctor
from bridge.foundation.clock import SystemClock
from bridge.foundation.errors import (
    ApprovalQueueError,
    ConfigError,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.values import FilePath, Secret
from bridge.net.tls import TlsFiles as OurTlsFiles
from bridge.net.tls import context_with_roots
from bridge.servicebus.decode import ReceivedMessage
from bridge.servicebus.namespace import ApprovalSource, NamespaceConfig, TransportKind
from bridge.servicebus.receiver import ApprovalQueue
from bridge.servicebus.sender import Message, Sender
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.servicebus.broker import Broker
from bridge.simulator.servicebus.doors import Doors
from bridge.simulator.tls import TlsFiles
from tests.simulator.servicebus_fixtures import SDK_ENTITIES

WAYS: tuple[TransportKind, ...] = ("amqp", "amqp-websocket")
UNTRUSTED = "is not trusted: unable to get local issuer certificate"
NOT_HERE = "/nowhere"


@pytest.fixture
def host() -> str:
    """An address for one test: with TLS the SDK uses the ports of the cloud."""
    return ".".join(["127", *(str(byte % 254 + 1) for byte in os.urandom(3))])


@pytest.fixture
def authority(tmp_path: Path) -> str:
    return str(tmp_path / "ca.pem")


def certified(name: str, authority: str) -> TlsFiles:
    """Make a CA, write its certificate to ``authority``, and certify a name."""
    ca, folder = trustme.CA(), Path(authority).parent
    ca.cert_pem.write_to_path(authority)
    own = ca.issue_cert(name)
    own.cert_chain_pems[0].write_to_path(folder / "certificate")
    own.private_key_pem.write_to_path(folder / "key")
    return TlsFiles(certificate=folder / "certificate", key=folder / "key")


@asynccontextmanager
async def serving(host: str, tls: TlsFiles) -> AsyncIterator[Broker]:
    doors = Doors(websocket_port=443, tls=tls, tls_port=5671)
    async with Broker(SDK_ENTITIES, host=host, doors=doors) as running:
        yield running


@pytest.fixture
async def broker(host: str, authority: str, brisk_sdk: None) -> AsyncIterator[Broker]:
    async with serving(host, certified(host, authority)) as running:
        yield running


def namespace(
    broker: Broker, way: TransportKind, ca_file: str | None = None
) -> NamespaceConfig:
    return NamespaceConfig(
        connection_string=Secret(broker.addresses["tlsConnectionString"], {}),
        transport=way,
        ca_file=None if ca_file is None else FilePath(ca_file, {}),
    )


async def through(where: NamespaceConfig) -> ReceivedMessage:
    """Send a message and receive it."""
    sender = Sender(where, "plain")
    queue = ApprovalQueue(where, ApprovalSource(queue="plain"), SystemClock())
    try:
        await sender.reach()
        await queue.reach()
        async with asyncio.timeout(60):
            await sender.send(
                Message(body=b"{}", content_type="application/json", message_id="m")
            )
            (received,) = await queue.receive(asyncio.Event())
    finally:
        await sender.close()
        await queue.close()
    return received


def trust(monkeypatch: pytest.MonkeyPatch, file: str, folder: str = NOT_HERE) -> None:
    """Let the system trust the CAs of a file, and of no other."""
    monkeypatch.setenv("SSL_CERT_FILE", file)
    monkeypatch.setenv("SSL_CERT_DIR", folder)


@pytest.mark.parametrize("way", WAYS)
async def test_company_ca_is_trusted_by_its_file(
    way: TransportKind, broker: Broker, authority: str
) -> None:
    where = namespace(broker, way, authority)

    assert (await through(where)).body == b"{}"


@pytest.mark.parametrize("way", WAYS)
async def test_company_ca_in_the_systems_store_is_trusted(
    way: TransportKind, broker: Broker, authority: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(monkeypatch, authority)

    assert (await through(namespace(broker, way))).body == b"{}"


@pytest.mark.parametrize("way", WAYS)
async def test_certificate_that_is_not_trusted_is_named(
    way: TransportKind, broker: Broker
) -> None:
    """It is no matter of firewalls, and the words are those of the status."""
    where = namespace(broker, way)
    sender = Sender(where, "plain")
    queue = ApprovalQueue(where, ApprovalSource(queue="plain"), SystemClock())

    with pytest.raises(TransientDeliveryError) as sending:
        await sender.reach()
    with pytest.raises(ApprovalQueueError):
        await queue.reach()
    await sender.close()
    await queue.close()

    host = f"the certificate of {where.host}"
    assert str(sending.value) == f"Service Bus entity plain: {host} {UNTRUSTED}"
    assert queue.last_error == f"Service Bus plain: {host} {UNTRUSTED}"


async def test_certificate_for_another_name_is_named(
    authority: str, host: str, brisk_sdk: None
) -> None:
    async with serving(host, certified("x.example.net", authority)) as broker:
        sender = Sender(namespace(broker, "amqp", authority), "plain")
        with pytest.raises(TransientDeliveryError, match="IP address mismatch"):
            await sender.reach()
        await sender.close()


async def test_doctor_asks_for_the_ca_and_not_for_firewalls(broker: Broker) -> None:
    keys = {"connection_string": broker.addresses["tlsConnectionString"]}
    async with ImdsSimulator() as imds:
        config = configuration.parse(
            {
                "imds": {"endpoint": imds.url},
                "sinks": [
                    {"name": "a", "type": "servicebus", "queue": "plain", **keys}
                ],
                "approvals": {"queue": "strict", "reply_to": ["unique"], **keys},
            },
            file="b.toml",
            environ={},
        )
        found = await doctor.examine(config, SystemClock())

    wrong = [one for one in found if one.result == "fault"]
    assert [one.text.partition(":")[0] for one in wrong] == [
        "sinks.a",
        "approvals",
        "approvals.reply_to",
    ]
    for one in wrong:
        assert UNTRUSTED in one.text
        assert "ca_file" in one.advice
        assert "firewalls" not in one.advice


def test_without_authorities_of_the_system_those_of_certifi_are_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as in an image that holds Python and nothing else."""
    bundle = Path(certifi.where()).read_text()
    trust(monkeypatch, NOT_HERE)
    alone = context_with_roots(OurTlsFiles()).cert_store_stats()["x509_ca"]

    own = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(own)
    trust(monkeypatch, str(own))
    with_own = context_with_roots(OurTlsFiles()).cert_store_stats()["x509_ca"]

    trust(monkeypatch, NOT_HERE, str(tmp_path))  # a folder with a file counts as CAs
    in_folder = context_with_roots(OurTlsFiles()).cert_store_stats()["x509_ca"]

    assert alone == bundle.count("BEGIN CERTIFICATE")
    assert (with_own, in_folder) == (1, 0)


def test_ca_file_that_cannot_be_read_is_a_fault_of_each_section() -> None:
    where = {"namespace": "x.example.net", "ca_file": NOT_HERE}
    with pytest.raises(ConfigError) as caught:
        configuration.parse(
            {
                "sinks": [{"name": "a", "type": "servicebus", "queue": "q", **where}],
                "approvals": {"queue": "p", **where},
            },
            file="b.toml",
            environ={},
        )

    text = "no certificates in PEM can be read (No such file or directory)"
    assert [
        fault for fault in str(caught.value).splitlines() if "ca_file" in fault
    ] == [
        f"b.toml: approvals.ca_file: {text}",
        f"b.toml: sinks.a.ca_file: {text}",
    ]


async def test_ca_file_that_is_gone_when_it_is_needed_is_named(
    broker: Broker, tmp_path: Path
) -> None:
    sender = Sender(namespace(broker, "amqp", NOT_HERE), "plain")

    with pytest.raises(RefusedDeliveryError, match="ca_file: no certificates in PEM"):
        await sender.reach()
    await sender.close()
