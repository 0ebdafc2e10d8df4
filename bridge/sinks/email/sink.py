"""Send CloudEvents as mail, through an SMTP relay.

The relay signs the mail (DKIM) and routes it. The sink logs in, and sends each mail to
all recipients in one transaction.
"""

import logging
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import ClassVar

from msgspec import Struct

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.values import Duration, Secret
from bridge.net.http_client import revealed
from bridge.net.tls import Tls
from bridge.sinks.base import Preview, Resources
from bridge.sinks.email.message import message
from bridge.sinks.email.relay import Relay, Security, loaded
from bridge.sinks.host import HostKeys

log = logging.getLogger(__name__)

_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_MOST_RECIPIENTS = 100  # what every server must take: RFC 5321, section 4.5.3.1.8
_ADDRESS = re.compile(
    r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@(?=.{1,253}$)"
    r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    r"(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_NO_ADDRESS = 'must be an address such as "ops@contoso.com"'
_HERE = frozenset({"localhost", "127.0.0.1", "::1"})


class EmailSinkConfig(HostKeys, frozen=True, kw_only=True):
    """``[[sinks]]`` with ``type = "email"``.

    Attributes:
        host: the name of the relay. Example: ``"smtp.contoso.com"``.
        port: the port of the relay; 0 is 587 for starttls, 465 for tls, 25 for none.
            Example: ``587``.
        security: "starttls" requires STARTTLS, "tls" is TLS from the first byte, "none"
            is for a relay on this machine.
        username: the name to log in with; "" is no login. Example: ``"sebridge"``.
        password: the password to log in with.
        sender: the address that mails are from. Example: ``"sebridge@contoso.com"``.
        recipients: the addresses that mails go to, 100 at most. Example:
            ``["ops@contoso.com"]``.
        subject_prefix: the beginning of each subject. Example: ``"[maintenance]"``.
    """

    default_lifecycle: ClassVar[bool] = False
    concurrency: ClassVar[int] = 2  # each attempt is a connection of its own

    sender: str
    recipients: tuple[str, ...]
    security: Security = "starttls"
    username: str = ""
    password: Secret | None = None
    subject_prefix: str = ""
    timeout: Duration = Duration(30)

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check host, addresses, login and certificates."""
        yield from self.host_faults(_PORTS)
        if not self.subject_prefix.isprintable() or len(self.subject_prefix) > 60:
            yield "subject_prefix", "must be at most 60 characters on one line"
        yield from self._address_faults()
        yield from self._login_faults()
        unused = 'has no effect with security = "none"'
        unused = unused if self.security == "none" else ""
        yield from self.tls_faults(unused, "security")

    def _address_faults(self) -> Iterator[tuple[str, str]]:
        if not _ADDRESS.fullmatch(self.sender):
            yield "sender", _NO_ADDRESS
        if not 1 <= len(self.recipients) <= _MOST_RECIPIENTS:
            yield "recipients", f"must be 1 to {_MOST_RECIPIENTS} addresses"
        for index, recipient in enumerate(self.recipients):
            if not _ADDRESS.fullmatch(recipient):
                yield f"recipients[{index}]", _NO_ADDRESS

    def _login_faults(self) -> Iterator[tuple[str, ...]]:
        if self.username and self.password is None:
            yield "password", "is missing: username needs it", "username"
        if self.password is not None and not self.username:
            yield "username", "is missing: password needs it", "password"
        if self.security == "none" and self.host not in _HERE:
            what = '"none" does not encrypt: only for a relay on this machine'
            yield "security", f"{what} (localhost)", "host"

    def load(self) -> None:
        """Import aiosmtplib.

        Raises:
            MissingExtraError: it is not installed.
        """
        loaded()

    @asynccontextmanager
    async def open(
        self,
        resources: Resources,  # noqa: ARG002 - the contract's
    ) -> AsyncIterator["EmailSink"]:
        """Create the sink; each attempt opens a connection of its own.

        Raises:
            MissingExtraError: aiosmtplib is not installed.
        """
        self.load()
        yield EmailSink(config=self, relay=self._relay())

    async def reach(self, resources: Resources) -> str:
        """Ask the relay for all but the mail itself; see ``SinkConfig.reach``."""
        async with self.open(resources) as sink:
            return await sink.relay.reach(
                sender=self.sender, recipients=self.recipients
            )

    async def preview(
        self,
        resources: Resources,  # noqa: ARG002 - the contract's
        event: CloudEvent,
    ) -> Preview:
        """Return the mail; see ``SinkConfig.preview``."""
        head = (
            f"smtp {self.host}:{self._port} ({self.security})",
            f"MAIL FROM:<{self.sender}>",
            *(f"RCPT TO:<{recipient}>" for recipient in self.recipients),
        )
        return Preview(head=head, body=self.mail(event))

    def mail(self, event: CloudEvent) -> bytes:
        """Return the mail for an event."""
        return message(
            event,
            sender=self.sender,
            recipients=self.recipients,
            prefix=self.subject_prefix,
        )

    @property
    def _port(self) -> int:
        return self.port or _PORTS[self.security]

    def _relay(self) -> Relay:
        tls = Tls(self.tls_files)
        return Relay(
            host=self.host,
            port=self._port,
            security=self.security,
            name=self.sender.rpartition("@")[2],
            login=self._login,
            make_context=lambda: tls.context() or ssl.create_default_context(),
            timeout=self.timeout,
        )

    def _login(self) -> tuple[str, str] | None:
        """Return name and password, read again; None = no login.

        Raises:
            RefusedDeliveryError: the password cannot be read.
        """
        if self.password is None:
            return None
        return self.username, revealed(self.password, "password")


class EmailSink(Struct, frozen=True, kw_only=True):
    """Sends each event as one mail."""

    config: EmailSinkConfig
    relay: Relay

    async def deliver(self, event: CloudEvent) -> None:
        """Send the mail; see ``Sink.deliver``.

        If the relay refuses only some recipients, the sink logs them and does not
        retry: another attempt would send the mail to the others twice.

        Raises:
            DeliveryError: as ``bridge.sinks.email.relay`` maps it.
        """
        config = self.config
        refused = await self.relay.send(
            config.mail(event), sender=config.sender, recipients=config.recipients
        )
        for recipient, why in refused.items():
            log.warning(
                "mail not taken for a recipient",
                extra={
                    "sink": config.name,
                    "recipient": recipient,
                    "fault": why,
                    "cloudEventId": event.id,
                },
            )
