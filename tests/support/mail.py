"""A relay for mail on loopback: aiosmtpd, which keeps to RFC 5321."""

import asyncio
import ssl
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session


@dataclass(slots=True)
class Relay:
    """What a relay received, and what it answers.

    Attributes:
        replies: a command, or a command and an address, to the reply that is given
            in place of the usual one.
        password: what a login needs; "" = nobody has to log in.
        hangs: whether the data of a mail is never answered.
    """

    replies: dict[str, str] = field(default_factory=dict)
    password: str = ""
    hangs: bool = False
    needs_tls: bool = False
    envelopes: list[Envelope] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def mails(self) -> list[EmailMessage]:
        return [parsed(envelope.content) for envelope in self.envelopes]

    async def handle_EHLO(  # noqa: N802 - aiosmtpd's
        self, _: SMTP, session: Session, __: Envelope, name: str, replies: list[str]
    ) -> list[str]:
        session.host_name = name
        self.names.append(name)
        return replies

    async def handle_MAIL(  # noqa: N802 - aiosmtpd's
        self, _: SMTP, __: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return self.replies.get("MAIL", "250 OK")

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's
        self, _: SMTP, __: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        reply = self.replies.get(f"RCPT {address}", self.replies.get("RCPT", "250 OK"))
        if reply.startswith("250"):
            envelope.rcpt_tos.append(address)
        return reply

    async def handle_DATA(self, _: SMTP, __: Session, envelope: Envelope) -> str:  # noqa: N802 - aiosmtpd's
        if self.hangs:
            await asyncio.Event().wait()
        reply = self.replies.get("DATA", "250 OK")
        if reply.startswith("250"):
            self.envelopes.append(envelope)
        return reply

    def authenticate(
        self, _: SMTP, __: Session, ___: Envelope, ____: str, data: Any
    ) -> AuthResult:
        if "AUTH" in self.replies:
            reply = self.replies["AUTH"]
            return AuthResult(success=False, handled=False, message=reply)
        is_right = isinstance(data, LoginPassword) and data == LoginPassword(
            b"sebridge", self.password.encode()
        )
        return AuthResult(success=is_right, handled=False)

    @asynccontextmanager
    async def serving(
        self, tls: ssl.SSLContext | None = None, *, at_once: bool = False
    ) -> AsyncIterator["Relay"]:
        """Serve; ``tls`` is offered by STARTTLS, or used ``at_once``."""
        served: list[SMTP] = []

        def serve() -> SMTP:
            with warnings.catch_warnings():  # a login without TLS, which is tried, too
                warnings.simplefilter("ignore", UserWarning)
                served.append(self._protocol(None if at_once else tls))
            return served[-1]

        server = await asyncio.get_running_loop().create_server(
            serve, "127.0.0.1", 0, ssl=tls if at_once else None
        )
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for protocol in served:
                if isinstance(protocol.transport, asyncio.Transport):
                    protocol.transport.abort()
            await asyncio.sleep(0)

    def _protocol(self, tls: ssl.SSLContext | None) -> SMTP:
        return SMTP(
            self,
            hostname="relay.example",
            tls_context=tls,
            require_starttls=self.needs_tls,
            authenticator=self.authenticate,
            auth_required=bool(self.password),
            auth_require_tls=False,
            loop=asyncio.get_running_loop(),
        )


def parsed(mail: bytes | str | None) -> EmailMessage:
    """Read a mail as a mail program does; a fault in it is an error."""
    assert isinstance(mail, bytes)
    found = message_from_bytes(mail, policy=policy.SMTP)
    assert isinstance(found, EmailMessage)
    assert [part.defects for part in found.walk() if part.defects] == []
    return found
