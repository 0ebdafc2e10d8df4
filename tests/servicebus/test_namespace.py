"""How a namespace is named, opened, and what its errors mean."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.identity import CredentialUnavailableError
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import TokenAuthFailure

from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.sections import Reader
from bridge.foundation.values import Address, Secret
from bridge.net.entra import CredentialKind, open_credential
from bridge.servicebus.errors import (
    delivery_errors,
    is_about_batch,
    is_lock_lost,
    leaves_link_whole,
)
from bridge.servicebus.namespace import (
    ConnectionString,
    NamespaceConfig,
    open_client,
    open_handle,
)

HOST = "contoso.servicebus.windows.net"
KEY = "SharedAccessKeyName=Send;SharedAccessKey=5ec12e7="
CLOUD = f"Endpoint=sb://Contoso.servicebus.windows.net/;{KEY}"


def faults(**options: object) -> list[str]:
    reader = Reader(file="f")
    reader.section(NamespaceConfig, options, "approvals")
    return [fault.removeprefix("f: approvals.") for fault in reader.faults]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "namespace: exactly one of namespace and connection_string must be given"),
        (
            {"namespace": HOST, "connection_string": CLOUD},
            "namespace: exactly one of namespace and connection_string must be given",
        ),
        (
            {"namespace": f"sb://{HOST}"},
            'namespace: must be a host name such as "contoso.servicebus.windows.net"',
        ),
        (
            {"namespace": "contoso"},
            'namespace: must be a host name such as "contoso.servicebus.windows.net"',
        ),
        (
            {"connection_string": "5ec12e7"},
            "connection_string: has no Endpoint=sb://… in it",
        ),
        (
            {"connection_string": f"Endpoint={HOST};{KEY}"},
            "connection_string: has no Endpoint=sb://… in it",
        ),
        (
            {"connection_string": f"Endpoint=sb://x:port;{KEY}"},
            "connection_string: has no Endpoint=sb://… in it",
        ),
        (
            {"connection_string": f"Endpoint=sb://{HOST};SharedAccessKey=5ec12e7"},
            (
                "connection_string: has neither SharedAccessKeyName and "
                "SharedAccessKey nor a SharedAccessSignature"
            ),
        ),
        (
            {"connection_string": CLOUD, "client_id": "c"},
            "client_id: is for a namespace with a credential",
        ),
        (
            {"namespace": HOST, "http_proxy": "http://p:3128"},
            'http_proxy: needs transport = "amqp-websocket"',
        ),
        (
            {
                "namespace": HOST,
                "transport": "amqp-websocket",
                "http_proxy": "p:3128",
            },
            'http_proxy: must be a URL such as "http://proxy.example:3128"',
        ),
        (
            {"namespace": HOST, "credential": "none"},
            (
                'credential: must be one of "managed-identity", "default", '
                '"workload-identity"'
            ),
        ),
    ],
)
def test_configuration_says_what_is_wrong(
    options: Mapping[str, object], fault: str
) -> None:
    assert faults(**options) == [fault]


@pytest.mark.parametrize("flag", ["True", "TRUE", "1", "yes"])
def test_emulator_flag_in_the_wrong_case_is_reported(flag: str) -> None:
    """The SDK compares with "true" letter by letter, and else dials the cloud's port
    with TLS: a hang that nobody understands."""
    text = f"Endpoint=sb://localhost;{KEY};UseDevelopmentEmulator={flag}"

    (fault,) = faults(connection_string=text)

    assert "UseDevelopmentEmulator=true" in fault
    assert "5ec12e7" not in fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CLOUD, (HOST, None, False)),
        (f"{CLOUD};EntityPath=q", (HOST, "q", False)),
        (f"Endpoint=sb://{HOST}:5671/;{KEY};", (HOST, None, False)),
        (f"Endpoint=sb://{HOST};SharedAccessSignature=s", (HOST, None, False)),
        (
            f"Endpoint=sb://LocalHost:5699;{KEY};UseDevelopmentEmulator=true;",
            ("localhost:5699", None, True),
        ),
        (
            f"endpoint=sb://{HOST};{KEY};UseDevelopmentEmulator=false",
            (HOST, None, False),
        ),
    ],
)
def test_connection_string_is_read(
    text: str, expected: tuple[str, str | None, bool]
) -> None:
    read = ConnectionString.parse(text)

    assert (read.host, read.entity, read.is_emulator) == expected


def test_host_is_the_same_however_the_namespace_is_given() -> None:
    """Or ReplyTo would be left out where approvals have a connection string."""
    by_name = NamespaceConfig(namespace="CONTOSO.servicebus.windows.net")
    by_string = NamespaceConfig(connection_string=Secret(CLOUD, {}))

    assert by_name.host == by_string.host == HOST
    assert (by_name.entity, by_string.entity) == (None, None)


async def test_client_never_retries_by_itself_and_forgets_the_entity() -> None:
    """One place retries; and a reply goes to another entity than the one named."""
    secret = Secret(f"{CLOUD};EntityPath=other", {})
    async with open_client(NamespaceConfig(connection_string=secret)) as client:
        sender = client.get_queue_sender("replies")

    assert client.fully_qualified_namespace == "Contoso.servicebus.windows.net"
    assert sender._config.retry_total == 0


async def test_secret_that_is_gone_refuses() -> None:
    config = NamespaceConfig(connection_string=Secret("env:GONE", {}))
    with pytest.raises(RefusedDeliveryError, match="GONE is not set"):
        async with open_client(config):
            pass


async def test_credential_that_the_machine_has_not_got_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    config = NamespaceConfig(namespace=HOST, credential="workload-identity")
    with pytest.raises(RefusedDeliveryError) as caught:
        async with open_client(config):
            pass

    assert caught.value.reason is Reason.UNAUTHORIZED


async def test_websocket_goes_through_the_configured_proxy() -> None:
    """With the scheme in front: aiohttp takes "proxy.example" for a scheme."""
    asked = asyncio.get_running_loop().create_future()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set_result(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = NamespaceConfig(
        connection_string=Secret(CLOUD, {}),
        transport="amqp-websocket",
        http_proxy=Address(f"http://me:5ec12e7@127.0.0.1:{port}", {}),
    )
    with pytest.raises(sdk.ServiceBusError):
        async with open_handle(config, lambda client: client.get_queue_sender("q")):
            pass
    server.close()

    async with asyncio.timeout(60):
        request = (await asked).decode().lower()
    assert request.startswith(f"connect {HOST}:443 ")
    assert "proxy-authorization: basic" in request


@asynccontextmanager
async def token_endpoint() -> AsyncIterator[tuple[str, list[web.BaseRequest]]]:
    """The identity endpoint of a VM, on loopback."""
    asked: list[web.BaseRequest] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request)
        return web.json_response(
            {
                "access_token": "t",
                "expires_in": "3600",
                "expires_on": "4000000000",
                "resource": "https://servicebus.azure.net",
                "token_type": "Bearer",
            }
        )

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}", asked
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("kind", ["managed-identity", "default"])
async def test_token_of_the_machine_is_never_asked_for_through_a_proxy(
    kind: CredentialKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """azure-identity takes HTTP_PROXY for 169.254.169.254 unless told otherwise."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
    async with token_endpoint() as (url, asked):
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", url)
        async with open_credential(kind, client_id="c-1", proxy=None) as credential:
            token = await credential.get_token("https://servicebus.azure.net//.default")

    assert token.token == "t"
    assert asked[0].headers["Metadata"] == "true"
    assert asked[0].query["client_id"] == "c-1"


async def test_entra_is_reached_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A closed network has no other way; only the machine's own endpoint is direct."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    given: dict[str, object] = {}

    def record(**options: object) -> object:
        given.update(options)
        return SimpleNamespace()

    monkeypatch.setattr("azure.identity.aio.DefaultAzureCredential", record)
    open_credential("default", client_id="", proxy=None)

    assert given == {
        "use_env_settings": False,
        "proxies": {"https": "http://proxy.example:3128"},
    }


def unavailable(cause: Exception | None) -> Exception:
    error = CredentialUnavailableError(message="no response from the IMDS endpoint")
    error.__cause__ = cause
    return error


def token_refused(status: int | None) -> Exception:
    """What the SDK makes of an answer of $cbs."""
    failure: Any = TokenAuthFailure  # which has no types
    return sdk.ServiceBusAuthenticationError(error=failure(status, b"no"))


def wrapped(error: Exception) -> Exception:
    """What the SDK makes of what it did not expect."""
    return sdk.ServiceBusError(message=f"Handler failed: {error}.", error=error)


@pytest.mark.parametrize(
    ("raised", "error", "reason"),
    [
        (
            sdk.ServiceBusAuthenticationError(),
            RefusedDeliveryError,
            Reason.UNAUTHORIZED,
        ),
        (token_refused(401), RefusedDeliveryError, Reason.UNAUTHORIZED),
        (token_refused(403), RefusedDeliveryError, Reason.UNAUTHORIZED),
        (token_refused(None), RefusedDeliveryError, Reason.UNAUTHORIZED),
        (token_refused(404), RefusedDeliveryError, Reason.NOT_FOUND),
        (token_refused(503), TransientDeliveryError, Reason.SERVER),
        (sdk.ServiceBusAuthorizationError(), RefusedDeliveryError, Reason.UNAUTHORIZED),
        (sdk.MessagingEntityNotFoundError(), RefusedDeliveryError, Reason.NOT_FOUND),
        (sdk.MessagingEntityDisabledError(), RefusedDeliveryError, Reason.NOT_FOUND),
        (
            wrapped(ClientAuthenticationError("no such identity")),
            RefusedDeliveryError,
            Reason.UNAUTHORIZED,
        ),
        (wrapped(unavailable(None)), RefusedDeliveryError, Reason.UNAUTHORIZED),
        (
            wrapped(unavailable(ServiceRequestError("refused"))),
            TransientDeliveryError,
            Reason.CONNECTION,
        ),
        (sdk.MessageSizeExceededError(), PermanentDeliveryError, Reason.TOO_LARGE),
        (sdk.ServiceBusConnectionError(), TransientDeliveryError, Reason.CONNECTION),
        (sdk.ServiceBusCommunicationError(), TransientDeliveryError, Reason.CONNECTION),
        (sdk.ServiceBusServerBusyError(), TransientDeliveryError, Reason.THROTTLED),
        (sdk.ServiceBusQuotaExceededError(), TransientDeliveryError, Reason.THROTTLED),
        (sdk.OperationTimeoutError(), TransientDeliveryError, Reason.TIMEOUT),
        (sdk.SessionLockLostError(), TransientDeliveryError, Reason.SERVER),
        (TimeoutError(), TransientDeliveryError, Reason.TIMEOUT),
        (socket.gaierror("no such host"), TransientDeliveryError, Reason.CONNECTION),
        (sdk.ServiceBusError("new"), TransientDeliveryError, Reason.UNFORESEEN),
        (
            wrapped(IndexError("list index out of range")),
            TransientDeliveryError,
            Reason.UNFORESEEN,
        ),
        (
            ValueError("The handler has already been shutdown."),
            TransientDeliveryError,
            Reason.UNFORESEEN,
        ),
        (AttributeError("'NoneType' …"), TransientDeliveryError, Reason.UNFORESEEN),
    ],
)
def test_errors_of_the_sdk_are_reported_in_our_own_words(
    raised: Exception, error: type[DeliveryError], reason: Reason
) -> None:
    with pytest.raises(error) as caught, delivery_errors("queue q", size=70_000):
        raise raised

    assert caught.value.reason is reason
    assert str(caught.value).startswith("queue q: ")
    assert caught.value.__cause__ is raised


def test_size_of_what_is_too_large_is_named() -> None:
    with (
        pytest.raises(PermanentDeliveryError, match="70000 bytes: too large"),
        delivery_errors("queue q", size=70_000),
    ):
        raise sdk.MessageSizeExceededError


def test_condition_is_named() -> None:
    error = sdk.ServiceBusAuthorizationError(condition=b"amqp:unauthorized-access")
    with (
        pytest.raises(RefusedDeliveryError, match="amqp:unauthorized-access"),
        delivery_errors("queue q"),
    ):
        raise error


def test_mapped_error_says_the_same_to_each_who_waits() -> None:
    mapped = RefusedDeliveryError("as it was", Reason.UNAUTHORIZED)
    with (
        pytest.raises(RefusedDeliveryError, match="as it was") as caught,
        delivery_errors("queue q"),
    ):
        raise mapped

    assert caught.value is not mapped
    assert caught.value.reason is Reason.UNAUTHORIZED


def test_what_is_about_the_message_leaves_the_link_whole() -> None:
    not_allowed = sdk.ServiceBusError("x", condition=b"amqp:not-allowed")

    assert is_about_batch(not_allowed)
    assert is_about_batch(sdk.MessageSizeExceededError())
    assert leaves_link_whole(sdk.ServiceBusServerBusyError())
    assert not is_about_batch(sdk.ServiceBusServerBusyError())
    assert not leaves_link_whole(sdk.ServiceBusConnectionError())
    assert is_lock_lost(wrapped(sdk.MessageLockLostError()))


@pytest.mark.integration
def test_sdk_is_not_loaded_by_who_does_not_use_it() -> None:
    """It would cost 40 MiB to whoever has but a webhook."""
    code = (
        "import sys, bridge.app.forwarder, bridge.servicebus.receiver; "
        "import bridge.approvals.reply; "
        "from bridge.sinks.registry import SINK_TYPES; list(SINK_TYPES.values()); "
        "names = ('azure', 'slack_sdk', 'jinja2'); "
        "print([m for m in sys.modules if m.startswith(names)])"
    )
    process = subprocess.run(  # noqa: S603  our own words
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert process.stdout.strip() == "[]"


@pytest.mark.integration
def test_sinks_that_are_not_configured_are_not_loaded(tmp_path: Path) -> None:
    """All of them together would cost more than a MiB."""
    path = tmp_path / "bridge.toml"
    path.write_text('[[sinks]]\nname = "x"\ntype = "webhook"\nurl = "http://x/"\n')
    code = (
        "import pathlib, sys, bridge.app.forwarder, bridge.configuration.load; "
        "bridge.configuration.load.load(pathlib.Path(sys.argv[1]), {}); "
        "found = (m.split('.') for m in sys.modules if m.startswith('bridge.sinks.'))"
        "; print(*sorted({parts[2] for parts in found})); "
        "print('bridge.approvals.listener' in sys.modules)"
    )
    process = subprocess.run(  # noqa: S603  our own words
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )

    sinks, approvals = process.stdout.splitlines()
    assert sinks.split() == ["base", "batch", "registry", "webhook"]
    assert approvals == "False"
