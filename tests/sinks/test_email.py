"""The email sink against a relay that keeps to RFC 5321, and a real Postfix."""

import asyncio
import logging
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trustme

from bridge.foundation.errors import (
    DeliveryError,
    MissingExtraError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
    install_command,
)
from bridge.net.addresses import dialed
from bridge.sinks.base import Resources
from bridge.sinks.email.sink import EmailSinkConfig
from tests.support.mail import Relay
from tests.support.ports import free_port
from tests.support.sink_fixtures import (
    SECRET,
    cloud_event,
    config_faults,
    opened_sink,
    sink_config,
)

T, R, P = TransientDeliveryError, RefusedDeliveryError, PermanentDeliveryError
AUTHORITY = trustme.CA()


@pytest.fixture(scope="module")
def ca_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    AUTHORITY.cert_pem.write_to_path(str(path))
    return str(path)


def server_tls(name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert(name).configure_cert(context)
    return context


def table(relay: Relay, **more: object) -> dict[str, object]:
    own = {
        "type": "email",
        "host": "127.0.0.1",
        "port": relay.port,
        "security": "none",
        "sender": "sebridge@contoso.com",
        "recipients": ["ops@contoso.com", "night@contoso.com"],
        "timeout": "10s",
    }
    return {**own, **more}


async def deliver(resources: Resources, options: Mapping[str, object]) -> None:
    async with opened_sink(resources, options) as sink:
        await sink.deliver(cloud_event())


# -- the ways in -------------------------------------------------------------------


@pytest.mark.parametrize("security", ["starttls", "tls"])
async def test_mail_goes_over_tls_after_a_login(
    security: str, resources: Resources, ca_file: str
) -> None:
    relay = Relay(password=SECRET, needs_tls=security == "starttls")
    login = {"username": "sebridge", "password": SECRET}
    async with relay.serving(server_tls(), at_once=security == "tls"):
        options = table(relay, security=security, ca_file=ca_file, **login)
        async with opened_sink(resources, options) as sink:
            await sink.deliver(cloud_event())
        found = await sink_config(options).reach(resources)

    (envelope,) = relay.envelopes
    assert envelope.mail_from == "sebridge@contoso.com"
    assert envelope.rcpt_tos == ["ops@contoso.com", "night@contoso.com"]
    assert relay.mails[0]["Subject"] == "Reboot: web-0, web-1 [602D9444]"
    assert set(relay.names) == {"contoso.com"}
    takes = "the login is right and takes mail for 2 recipients"
    assert found.endswith(f"answers over TLS, {takes}")


async def test_relay_on_this_machine_may_do_without_tls(resources: Resources) -> None:
    relay = Relay()
    async with relay.serving():
        await deliver(resources, table(relay))
        found = await sink_config(table(relay)).reach(resources)

    assert len(relay.mails) == 1
    assert found.endswith(f":{relay.port} answers and takes mail for 2 recipients")


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ({"MAIL": "550 5.7.1 not you"}, r"answered 550 5\.7\.1"),
        ({"RCPT": "550 5.7.1 no relay"}, r"refused each recipient and answered 550"),
        ({"RCPT": "450 4.2.0 greylisted"}, r"refused each .* answered 450 4\.2\.0"),
    ],
)
async def test_check_finds_a_relay_that_takes_no_mail_for_them(
    resources: Resources, replies: Mapping[str, str], words: str
) -> None:
    relay = Relay(replies=dict(replies))
    async with relay.serving():
        with pytest.raises(DeliveryError, match=words):
            await sink_config(table(relay)).reach(resources)

    assert relay.mails == []


async def test_check_finds_one_recipient_that_is_refused(resources: Resources) -> None:
    relay = Relay(replies={"RCPT night@contoso.com": "550 5.1.1 nobody"})
    async with relay.serving():
        with pytest.raises(DeliveryError, match="refused 1 of 2 recipients and answer"):
            await sink_config(table(relay)).reach(resources)


async def test_attempts_of_one_event_have_one_message_id(resources: Resources) -> None:
    relay = Relay()
    async with relay.serving():
        await deliver(resources, table(relay))
        await deliver(resources, table(relay))

    first, again = relay.envelopes
    assert first.content == again.content


# -- what replies mean -------------------------------------------------------------


@pytest.mark.parametrize(
    ("replies", "kind", "reason"),
    [
        ({"MAIL": "450 4.7.1 later"}, T, Reason.SERVER),
        ({"MAIL": "550 5.7.1 not you"}, P, Reason.REJECTED),
        ({"RCPT": "450 4.2.0 greylisted"}, T, Reason.SERVER),
        ({"RCPT": "550 5.1.1 nobody"}, P, Reason.REJECTED),
        (
            {
                "RCPT ops@contoso.com": "550 5.1.1 nobody",
                "RCPT night@contoso.com": "451 4.3.0 later",
            },
            T,
            Reason.SERVER,
        ),
        ({"DATA": "452 4.3.1 disk full"}, T, Reason.SERVER),
        ({"DATA": "552 5.3.4 too large"}, P, Reason.TOO_LARGE),
        ({"DATA": "554 5.6.0 no"}, P, Reason.REJECTED),
        ({"DATA": "421 shutting down"}, T, Reason.SERVER),
    ],
)
async def test_replies_are_sorted(
    replies: dict[str, str],
    kind: type[DeliveryError],
    reason: Reason,
    resources: Resources,
) -> None:
    relay = Relay(replies=replies)
    with pytest.raises(DeliveryError) as caught:
        async with relay.serving():
            await deliver(resources, table(relay))

    assert (type(caught.value), caught.value.reason) == (kind, reason)
    assert relay.mails == []
    assert "greylisted" not in str(caught.value), "words of others are not repeated"


async def test_one_recipient_is_refused_and_the_others_get_the_mail(
    resources: Resources, caplog: pytest.LogCaptureFixture
) -> None:
    relay = Relay(replies={"RCPT night@contoso.com": "550 5.1.1 nobody"})
    with caplog.at_level(logging.WARNING):
        async with relay.serving():
            await deliver(resources, table(relay))

    (line,) = [one for one in caplog.records if one.name.startswith("bridge.sinks")]
    assert relay.envelopes[0].rcpt_tos == ["ops@contoso.com"]
    assert line.message == "mail not taken for a recipient"
    assert (line.__dict__["recipient"], line.__dict__["fault"]) == (
        "night@contoso.com",
        "550 5.1.1",
    )


@pytest.mark.parametrize(
    ("replies", "kind", "reason"),
    [
        ({}, R, Reason.UNAUTHORIZED),
        ({"AUTH": "454 4.7.0 later"}, T, Reason.SERVER),
    ],
)
async def test_wrong_login_parks_the_sink_and_shows_no_password(
    replies: dict[str, str],
    kind: type[DeliveryError],
    reason: Reason,
    resources: Resources,
) -> None:
    relay = Relay(password="another", replies=replies)
    login = {"username": "sebridge", "password": SECRET}
    with pytest.raises(DeliveryError) as caught:
        async with relay.serving():
            await deliver(resources, table(relay, **login))

    assert (type(caught.value), caught.value.reason) == (kind, reason)
    assert SECRET not in str(caught.value)


async def test_relay_without_tls_or_login_gets_nothing(
    resources: Resources, ca_file: str
) -> None:
    relay = Relay()
    async with relay.serving():
        options = table(relay, security="starttls", ca_file=ca_file)
        with pytest.raises(RefusedDeliveryError, match="offers no STARTTLS"):
            await deliver(resources, options)

    assert relay.mails == []


async def test_relay_that_knows_no_login_is_told(resources: Resources) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 relay.example\r\n")
        while line := await reader.readline():
            writer.write(
                b"250 relay.example\r\n" if line[:4] == b"EHLO" else b"502 no\r\n"
            )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay = Relay(port=server.sockets[0].getsockname()[1])
    login = {"username": "sebridge", "password": SECRET}
    async with server:
        with pytest.raises(RefusedDeliveryError, match="no way to log in"):
            await deliver(resources, table(relay, **login))


async def test_certificate_of_another_is_not_trusted(
    resources: Resources, ca_file: str
) -> None:
    relay = Relay()
    async with relay.serving(server_tls("other.example")):
        options = table(relay, security="starttls", ca_file=ca_file)
        with pytest.raises(TransientDeliveryError, match="certificate"):
            await deliver(resources, options)

    assert relay.mails == []


async def test_relay_that_is_silent_is_given_up(resources: Resources) -> None:
    relay = Relay(hangs=True)
    with pytest.raises(TransientDeliveryError, match="in time") as caught:
        async with relay.serving():
            await deliver(resources, table(relay, timeout="300ms"))

    assert caught.value.reason is Reason.TIMEOUT


async def test_nobody_there_is_tried_again(resources: Resources) -> None:
    relay = Relay(port=free_port())
    with pytest.raises(TransientDeliveryError, match="cannot be reached") as caught:
        await deliver(resources, table(relay))

    assert caught.value.reason is Reason.CONNECTION


async def test_hang_up_is_tried_again(resources: Resources) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    relay = Relay(port=server.sockets[0].getsockname()[1])
    async with server:
        with pytest.raises(TransientDeliveryError):
            await deliver(resources, table(relay))


async def test_cancelled_attempt_leaves_no_connection(resources: Resources) -> None:
    relay = Relay(hangs=True)
    async with relay.serving(), opened_sink(resources, table(relay)) as sink:
        attempt = asyncio.create_task(sink.deliver(cloud_event()))
        while not relay.names:
            await asyncio.sleep(0)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt

    assert relay.mails == []


# -- where nothing is sent ---------------------------------------------------------


@pytest.mark.parametrize("host", ["169.254.169.254", "168.63.129.16"])
async def test_no_connection_goes_to_the_platform(host: str) -> None:
    with pytest.raises(RefusedDeliveryError, match="nothing may be sent to"):
        await dialed(host, 25)


async def test_second_address_is_tried_and_a_cancelled_one_is_closed(
    resources: Resources,
) -> None:
    """``localhost`` may be ::1 first, where nobody listens."""
    relay = Relay()
    async with relay.serving():
        await deliver(resources, table(relay, host="localhost"))

    assert len(relay.mails) == 1


async def test_cancelled_connection_is_closed() -> None:
    with socket.socket() as full, ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # more than wait to be accepted
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0)
            waiting.connect_ex(full.getsockname())
        attempt = asyncio.create_task(dialed(*full.getsockname()))
        for _ in range(100):
            await asyncio.sleep(0.001)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt


async def test_name_that_can_be_none_is_refused() -> None:
    with pytest.raises(RefusedDeliveryError, match="no valid host name"):
        await dialed("x" * 64 + ".example", 25)


# -- configuration -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "faults"),
    [
        ({}, []),
        ({"host": "a b"}, ["host: must be a host name or an IP address"]),
        (
            {"host": "168.63.129.16"},
            [
                (
                    "host: leads to a forbidden address: 168.63.129.16 is the wire "
                    "server of Azure"
                )
            ],
        ),
        (
            {"port": 70000},
            ["port: must be 1 to 65535, or 0: 587 starttls, 465 tls, 25 none"],
        ),
        ({"timeout": 0}, ["timeout: must be more than 0s"]),
        (
            {"subject_prefix": "a\nb"},
            ["subject_prefix: must be at most 60 characters on one line"],
        ),
        (
            {"sender": "me"},
            ['sender: must be an address such as "ops@contoso.com"'],
        ),
        ({"recipients": []}, ["recipients: must be 1 to 100 addresses"]),
        (
            {"recipients": ["a@b.example", "a@b.example>\r\nDATA"]},
            ['recipients[1]: must be an address such as "ops@contoso.com"'],
        ),
        ({"username": "u"}, ["password: is missing: username needs it"]),
        ({"password": "p"}, ["username: is missing: password needs it"]),
        (
            {"security": "none"},
            [
                (
                    'security: "none" does not encrypt: only for a relay on this '
                    "machine (localhost)"
                )
            ],
        ),
        (
            {"security": "none", "host": "localhost", "ca_file": "x"},
            ['ca_file: has no effect with security = "none"'],
        ),
        ({"client_key": "x"}, ["client_key: needs client_certificate"]),
    ],
)
def test_configuration_says_what_is_wrong(
    more: Mapping[str, object], faults: list[str]
) -> None:
    own = {
        "type": "email",
        "host": "smtp.contoso.com",
        "sender": "sebridge@contoso.com",
        "recipients": ["ops@contoso.com"],
    }

    assert config_faults({**own, **more}) == faults


async def test_preview_is_the_mail_and_shows_no_password(resources: Resources) -> None:
    login = {"username": "sebridge", "password": SECRET}
    options = table(Relay(), security="starttls", port=0, **login)
    config = sink_config(options)
    assert isinstance(config, EmailSinkConfig)
    preview = await config.preview(resources, cloud_event())

    assert preview.head == (
        "smtp 127.0.0.1:587 (starttls)",
        "MAIL FROM:<sebridge@contoso.com>",
        "RCPT TO:<ops@contoso.com>",
        "RCPT TO:<night@contoso.com>",
    )
    assert preview.body == config.mail(cloud_event())
    assert SECRET.encode() not in preview.body


async def test_missing_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, resources: Resources
) -> None:
    monkeypatch.setitem(sys.modules, "aiosmtplib", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_command("email"))):
        async with opened_sink(resources, table(Relay())):
            pass


# -- a real Postfix ----------------------------------------------------------------

POSTFIX = shutil.which("postfix", path=f"{os.environ['PATH']}:/usr/sbin")
MAIN = """
compatibility_level = 3.6
queue_directory = {folder}/queue
data_directory = {folder}/data
command_directory = /usr/sbin
daemon_directory = /usr/lib/postfix/sbin
mail_owner = postfix
setgid_group = postdrop
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
myhostname = relay.example
mydestination =
mynetworks = 127.0.0.0/8
relayhost = [127.0.0.1]:{behind}
smtp_tls_security_level = none
smtpd_tls_security_level = encrypt
smtpd_tls_cert_file = {folder}/cert.pem
smtpd_tls_key_file = {folder}/cert.pem
smtpd_relay_restrictions = permit_mynetworks, reject
smtpd_recipient_restrictions =
  check_recipient_access inline:{{nobody@contoso.com=REJECT}}, permit
smtpd_helo_required = yes
smtpd_helo_restrictions = reject_invalid_helo_hostname, reject_non_fqdn_helo_hostname
maillog_file = {folder}/log/mail.log
maillog_file_prefixes = {folder}/log
alias_maps =
local_recipient_maps =
"""
MASTER = """
127.0.0.1:{port} inet n - n - - smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
smtp unix - - n - - smtp
relay unix - - n - - smtp
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
"""


def postfix(folder: Path, *what: str) -> None:
    command = [str(POSTFIX), "-c", str(folder / "etc"), *what]
    done = subprocess.run(  # noqa: S603 - of this test
        command, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may look into, which those of pytest are not."""
    with TemporaryDirectory(prefix="sebridge-postfix-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(
    POSTFIX is None or os.name == "nt" or os.geteuid() != 0,
    reason="no Postfix is installed, or this is not root, who alone may start it",
)
async def test_real_postfix_relays_the_mail(
    open_folder: Path, resources: Resources, ca_file: str
) -> None:
    port, behind, relay = free_port(), Relay(), open_folder
    for name in ("etc", "queue", "data", "log"):
        (relay / name).mkdir(parents=True)
    shutil.chown(relay / "data", "postfix")
    AUTHORITY.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(relay / "cert.pem")
    )
    options = table(behind, security="starttls", ca_file=ca_file, port=port)
    nobody = {**options, "recipients": ["nobody@contoso.com"]}
    async with behind.serving():
        main = MAIN.format(folder=relay, behind=behind.port)
        (relay / "etc" / "main.cf").write_text(main)
        (relay / "etc" / "master.cf").write_text(MASTER.format(port=port))
        await asyncio.to_thread(postfix, relay, "start")
        try:
            await deliver(resources, options)
            with pytest.raises(PermanentDeliveryError, match=r"554 5\.7\.1"):
                await deliver(resources, nobody)
            async with asyncio.timeout(30):
                while not behind.mails:
                    await asyncio.sleep(0.1)
        finally:
            await asyncio.to_thread(postfix, relay, "stop")

    (mail,) = behind.mails
    assert mail["Message-ID"] == f"<{cloud_event().id}@contoso.com>"
    assert mail["Received"] is not None
