"""Who cannot prove to be the receiver is told nothing."""

import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bridge.clock import SystemClock
from bridge.errors import TransientDeliveryError
from bridge.sinks.base import Resources
from tests.contract.sink_fixtures import cloud_event, opened_sink


def signed_by_itself(folder: Path) -> ssl.SSLContext:
    """Return what a server shows whom no authority knows."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = SystemClock().now()
    host = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .issuer_name(name)
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(host, critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "both.pem"
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@pytest.fixture
async def impostor(tmp_path: Path) -> AsyncIterator[tuple[str, list[str]]]:
    told: list[str] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        told.append(request.path)
        return web.Response(text="ok")

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    context = signed_by_itself(tmp_path)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}/", told
    await runner.cleanup()


@pytest.mark.parametrize(
    ("kind", "key"), [("webhook", "url"), ("slack", "webhook_url")]
)
async def test_receiver_without_a_certificate_that_is_trusted_is_told_nothing(
    kind: str, key: str, resources: Resources, impostor: tuple[str, list[str]]
) -> None:
    url, told = impostor
    async with opened_sink(resources, {"type": kind, key: url}) as sink:
        with pytest.raises(TransientDeliveryError):
            await sink.deliver(cloud_event())

    assert told == []
    async with resources.http.get(url, ssl=False) as answer:  # it would have listened
        assert answer.status == 200
