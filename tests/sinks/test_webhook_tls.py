"""Certificates of one's own, against a real server that asks for one."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from bridge.foundation.errors import RefusedDeliveryError, TransientDeliveryError
from bridge.sinks.base import Resources
from tests.support.configurations import webhook
from tests.support.sink_fixtures import Inbox, cloud_event, config_faults, opened_sink


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


def write_pair(authority: trustme.CA, folder: Path) -> tuple[Path, Path]:
    """Put a certificate and its key into files."""
    leaf = authority.issue_cert("vm.example")
    certificate, key = folder / "client.pem", folder / "client.key"
    certificate.write_bytes(leaf.cert_chain_pems[0].bytes())
    key.write_bytes(leaf.private_key_pem.bytes())
    return certificate, key


@pytest.fixture
async def server(authority: trustme.CA) -> AsyncIterator[Inbox]:
    """A server that knows the authority of its clients, and serves nobody else."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    async with Inbox(headers={"Connection": "close"}).serving(context) as running:
        yield running


def with_files(url: str, **options: object) -> dict[str, object]:
    texts = {k: str(v) if isinstance(v, Path) else v for k, v in options.items()}
    return {**webhook(url), **texts}


async def test_client_and_server_know_each_other(
    resources: Resources,
    server: Inbox,
    authority: trustme.CA,
    ca_file: Path,
) -> None:
    certificate, key = write_pair(authority, ca_file.parent)
    options = with_files(
        server.url,
        ca_file="${FOLDER}/ca.pem",
        client_certificate=certificate,
        client_key=key,
    )
    async with opened_sink(resources, options, FOLDER=str(ca_file.parent)) as sink:
        await sink.deliver(cloud_event())

    assert server.received[0].body == cloud_event().to_json()


async def test_key_may_be_in_the_file_of_the_certificate(
    resources: Resources,
    server: Inbox,
    authority: trustme.CA,
    ca_file: Path,
) -> None:
    both = ca_file.parent / "both.pem"
    authority.issue_cert("vm").private_key_and_cert_chain_pem.write_to_path(both)
    options = with_files(server.url, ca_file=ca_file, client_certificate=both)
    async with opened_sink(resources, options) as sink:
        await sink.deliver(cloud_event())

    assert len(server.received) == 1


async def test_client_without_a_certificate_is_not_served(
    resources: Resources, server: Inbox, ca_file: Path
) -> None:
    options = with_files(server.url, ca_file=ca_file)
    async with opened_sink(resources, options) as sink:
        with pytest.raises(TransientDeliveryError, match="cannot be reached"):
            await sink.deliver(cloud_event())

    assert server.received == []


async def test_server_that_nobody_vouches_for_is_told_nothing(
    resources: Resources, server: Inbox, tmp_path: Path
) -> None:
    """The system's authorities are not those of the test; nor is a stranger's."""
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(stranger)
    for options in ({}, {"ca_file": stranger}):
        async with opened_sink(resources, with_files(server.url, **options)) as sink:
            with pytest.raises(TransientDeliveryError, match="its certificate: "):
                await sink.deliver(cloud_event())

    assert server.received == []


async def test_rotated_files_are_read_again(
    resources: Resources,
    server: Inbox,
    authority: trustme.CA,
    ca_file: Path,
) -> None:
    certificate, key = write_pair(trustme.CA(), ca_file.parent)  # not known there
    options = with_files(
        server.url, ca_file=ca_file, client_certificate=certificate, client_key=key
    )
    async with opened_sink(resources, options) as sink:
        with pytest.raises(TransientDeliveryError):
            await sink.deliver(cloud_event())
        write_pair(authority, ca_file.parent)
        await sink.deliver(cloud_event())

    assert len(server.received) == 1


async def test_rotation_that_is_half_done_leaves_the_old_one_in_use(
    resources: Resources,
    server: Inbox,
    authority: trustme.CA,
    ca_file: Path,
) -> None:
    certificate, key = write_pair(authority, ca_file.parent)
    options = with_files(
        server.url, ca_file=ca_file, client_certificate=certificate, client_key=key
    )
    async with opened_sink(resources, options) as sink:
        await sink.deliver(cloud_event())
        old_key = key.read_bytes()
        write_pair(authority, ca_file.parent)
        key.write_bytes(old_key)
        await sink.deliver(cloud_event())
        key.unlink()
        await sink.deliver(cloud_event())

    assert len(server.received) == 3


async def test_files_that_are_gone_before_the_first_use_refuse_the_sink(
    resources: Resources, server: Inbox, ca_file: Path
) -> None:
    options = with_files(server.url, ca_file=ca_file)
    async with opened_sink(resources, options) as sink:
        ca_file.unlink()
        with pytest.raises(RefusedDeliveryError, match="TLS cannot be used"):
            await sink.deliver(cloud_event())


def test_files_are_tried_at_the_check(authority: trustme.CA, ca_file: Path) -> None:
    url, folder = "https://x.example", ca_file.parent
    certificate, key = write_pair(authority, folder)
    other = authority.issue_cert("other").private_key_pem
    (folder / "other.key").write_bytes(other.bytes())
    no_pem = folder / "no.pem"
    no_pem.write_text("5ec12e7")

    def faults(**options: object) -> list[str]:
        return config_faults(with_files(url, **options))

    assert faults(client_certificate=certificate, client_key=key) == []
    assert faults(client_key=key) == ["client_key: needs client_certificate"]
    assert faults(ca_file=folder / "none") == [
        "ca_file: no certificates in PEM can be read (No such file or directory)"
    ]
    assert faults(ca_file="${NONE}/ca.pem") == [
        "ca_file: the environment variable NONE is not set"
    ]
    assert faults(ca_file=5) == ["ca_file: must be the path of a file"]
    (fault,) = faults(ca_file=no_pem)
    assert fault.startswith("ca_file: no certificates in PEM can be read (")
    pair = {"client_certificate": certificate, "client_key": folder / "other.key"}
    assert faults(**pair) == [
        (
            "client_certificate: no certificate and key in PEM can be read "
            "(KEY_VALUES_MISMATCH)"
        )
    ]
    assert config_faults(with_files("http://x.example", ca_file=ca_file)) == [
        "ca_file: has no effect: url is not https"
    ]


def test_key_with_a_password_is_a_fault_and_nobody_is_asked_for_it(
    authority: trustme.CA, tmp_path: Path
) -> None:
    certificate, key = write_pair(authority, tmp_path)
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(os.urandom(16)),
        )
    )
    options = with_files(
        "https://x.example", client_certificate=certificate, client_key=key
    )

    (fault,) = config_faults(options)

    assert fault.startswith("client_certificate: no certificate and key in PEM")


async def test_connection_that_never_stands_is_given_up_early(
    resources: Resources,
) -> None:
    async def say_nothing(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.read(1)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    options = with_files(url, connect_timeout=0.1, timeout=60)
    async with server, opened_sink(resources, options) as sink:
        with pytest.raises(TransientDeliveryError, match="connected to in time"):
            await sink.deliver(cloud_event())
