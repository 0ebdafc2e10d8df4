"""Send one mail to a mail relay: connect, TLS, login, one SMTP transaction.

Source: RFC 5321 (SMTP; section 4.2.1 reply codes), 3207 (STARTTLS), 4954 (AUTH), 8314
        (TLS from the first byte), 3463 (status codes)
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from bridge.foundation.errors import (
    DeliveryError,
    MissingExtraError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.net.addresses import dialed
from bridge.net.tls import certificate_fault

if TYPE_CHECKING:
    import aiosmtplib

Security = Literal["starttls", "tls", "none"]

_STATUS = re.compile(r"[245]\.\d{1,3}\.\d{1,3}\b")
_TOO_LARGE = 552


class Relay(Struct, frozen=True, kw_only=True):
    """A mail server that takes mail from this bridge.

    Attributes:
        name: the name of this side, for EHLO.
        login: reads name and password for each connection; None = no login.
        make_context: makes the TLS context of a connection.
        timeout: seconds for the whole attempt.
    """

    host: str
    port: int
    security: Security
    name: str
    login: Callable[[], tuple[str, str] | None]
    make_context: Callable[[], ssl.SSLContext]
    timeout: float

    @property
    def target(self) -> str:
        """The name of the relay in errors."""
        return f"{self.host}:{self.port}"

    async def reach(self, *, sender: str, recipients: Sequence[str]) -> str:
        """Connect, log in and name who shall get mail; send none; return what is found.

        Raises:
            DeliveryError: the relay cannot be reached, or refuses TLS, the login, the
                sender or a recipient.
        """
        async with self._session() as smtp:
            await smtp.mail(sender)
            refused = [one for who in recipients if (one := await _refusal(smtp, who))]
            await smtp.rset()
        many = len(recipients)
        if refused:
            each = f"{len(refused)} of {many} recipients"
            whom = "each recipient" if len(refused) == many else each
            raise _all_refused(self.target, refused, whom)
        with_tls = "" if self.security == "none" else " over TLS"
        logged_in = ", the login is right" if self.login() else ""
        whom = "recipient" if many == 1 else "recipients"
        takes = f"takes mail for {many} {whom}"
        return f"{self.target} answers{with_tls}{logged_in} and {takes}"

    async def send(
        self, mail: bytes, *, sender: str, recipients: Sequence[str]
    ) -> dict[str, str]:
        """Send a mail in one transaction.

        Returns:
            The refused recipients and the replies, if the relay accepted others.

        Raises:
            TransientDeliveryError: a reply 4xx, or the network failed.
            RefusedDeliveryError: no TLS, or the login is wrong.
            PermanentDeliveryError: another reply 5xx.
        """
        async with self._session() as smtp:
            errors, _ = await smtp.sendmail(sender, list(recipients), mail)
        return {who: _said(code, text) for who, (code, text) in errors.items()}

    @asynccontextmanager
    async def _session(self) -> AsyncIterator["aiosmtplib.SMTP"]:
        try:
            async with asyncio.timeout(self.timeout):
                with _errors(self.target):
                    smtp = await self._connected()
                    try:
                        yield smtp
                        await _quit(smtp)
                    finally:
                        smtp.close()
        except TimeoutError:
            text = f"{self.target} did not answer in time"
            raise TransientDeliveryError(text, Reason.TIMEOUT) from None

    async def _connected(self) -> "aiosmtplib.SMTP":
        library = loaded()
        connection = await dialed(self.host, self.port)
        smtp: aiosmtplib.SMTP = library.SMTP(
            hostname=self.host,
            port=None,
            sock=connection,
            local_hostname=self.name,
            timeout=None,  # ``_session`` limits the time of the whole attempt
            use_tls=self.security == "tls",
            start_tls=False,
            tls_context=None if self.security == "none" else self.make_context(),
        )
        try:
            await smtp.connect()
            if self.security == "starttls":
                await self._start_tls(smtp)
            if (login := self.login()) is not None:
                await self._log_in(smtp, *login)
        except BaseException:
            smtp.close()
            connection.close()
            raise
        return smtp

    async def _start_tls(self, smtp: "aiosmtplib.SMTP") -> None:
        await smtp.ehlo()
        if not smtp.supports_extension("starttls"):
            text = f"{self.target} offers no STARTTLS"
            raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
        await smtp.starttls(tls_context=self.make_context())

    async def _log_in(self, smtp: "aiosmtplib.SMTP", name: str, password: str) -> None:
        library = loaded()
        await smtp.ehlo()
        if not smtp.supports_extension("auth"):
            text = f"{self.target} offers no way to log in"
            raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
        try:
            await smtp.login(name, password)
        except library.SMTPAuthenticationError as error:
            text = (
                f"{self.target} refused the login: {_said(error.code, error.message)}"
            )
            if 400 <= error.code < 500:
                raise TransientDeliveryError(text, Reason.SERVER) from None
            raise RefusedDeliveryError(text, Reason.UNAUTHORIZED) from None


def loaded() -> ModuleType:
    """Return the library aiosmtplib; import it at its first use.

    Raises:
        MissingExtraError: aiosmtplib is not installed.
    """
    try:
        import aiosmtplib  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("the email sink", "email") from error
    return aiosmtplib


async def _quit(smtp: "aiosmtplib.SMTP") -> None:
    """Send QUIT, and ignore errors: the relay has accepted the mail before."""
    with suppress(loaded().SMTPException, OSError):
        await smtp.quit()


@contextmanager
def _errors(target: str) -> Iterator[None]:
    """Turn errors of the library and of the network into delivery errors."""
    library = loaded()
    try:
        yield
    except library.SMTPRecipientsRefused as error:
        raise _all_refused(target, error.recipients) from None
    except library.SMTPResponseException as error:
        raise _refused(target, error.code, error.message) from None
    except (library.SMTPException, OSError) as error:
        text = f"{target} cannot be reached ({_why(error)})"
        raise TransientDeliveryError(text, Reason.CONNECTION) from None


def _all_refused(
    target: str,
    errors: "Sequence[aiosmtplib.SMTPRecipientRefused]",
    whom: str = "each recipient",
) -> DeliveryError:
    """Return the error if recipients were refused; one 4xx makes it transient."""
    codes = sorted((error.code, error.message) for error in errors)
    code, message = codes[0]
    return _refused(f"{target} refused {whom} and", code, message)


async def _refusal(
    smtp: "aiosmtplib.SMTP", recipient: str
) -> "aiosmtplib.SMTPRecipientRefused | None":
    """Return why a recipient is refused; None = it is not."""
    library: Any = loaded()
    try:
        await smtp.rcpt(recipient)
    except library.SMTPRecipientRefused as error:
        refusal: aiosmtplib.SMTPRecipientRefused = error
        return refusal
    return None


def _refused(target: str, code: int, message: str) -> DeliveryError:
    text = f"{target} answered {_said(code, message)}"
    if 500 <= code < 600:
        reason = Reason.TOO_LARGE if code == _TOO_LARGE else Reason.REJECTED
        return PermanentDeliveryError(text, reason)
    return TransientDeliveryError(text, Reason.SERVER)


def _said(code: int, message: str) -> str:
    """Return the codes of a reply; its text may quote a name, a mail or a password."""
    status = _STATUS.match(message)
    return f"{code} {status[0]}" if status else str(code)


def _why(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if (fault := certificate_fault(error)) is not None:
        return f"its certificate: {fault}"
    return getattr(cause, "strerror", None) or type(cause).__name__
