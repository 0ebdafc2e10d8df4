"""Sign-in with SASL, before AMQP begins.

    header → mechanisms offered → init → outcome ok      → AMQP
                                       → outcome refused → closed

Service Bus checks tokens later, at ``$cbs``. So ANONYMOUS, EXTERNAL and MSSBCBS carry
no credentials here; only PLAIN carries a name and a password.

Source: AMQP 1.0, part 5: 5.3 SASL; RFC 4616, PLAIN.
"""

from collections.abc import Callable
from dataclasses import dataclass

from bridge.simulator.wire.errors import FRAMING_ERROR, WireError
from bridge.simulator.wire.framing import SASL_FRAME, SASL_HEADER, Frame, frame
from bridge.simulator.wire.performatives import (
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    read,
    write,
)

ANONYMOUS, EXTERNAL, MSSBCBS, PLAIN = "ANONYMOUS", "EXTERNAL", "MSSBCBS", "PLAIN"

_OK, _REFUSED = 0, 1
_PLAIN_PARTS = 3  # authorization identity, name, password


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials that a client signs in with.

    Attributes:
        mechanism: e.g. ANONYMOUS.
        name: the name given with PLAIN; empty with the other mechanisms.
        password: the password given with PLAIN; never shown.
    """

    mechanism: str
    name: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism!r}, {self.name!r})"


def accept_all(_credentials: Credentials) -> bool:
    """Accept every client: tokens are checked later, at ``$cbs``."""
    return True


class SaslServer:
    """The server's side of the sign-in.

    Args:
        mechanisms: the mechanisms that are offered.
        is_known: returns whether a client with these credentials is accepted.

    Attributes:
        credentials: the client's credentials; None: the client is not accepted yet.
        is_over: whether the client has chosen a mechanism; the sign-in then ends.
    """

    def __init__(
        self, mechanisms: tuple[str, ...], is_known: Callable[[Credentials], bool]
    ) -> None:
        self._mechanisms = mechanisms
        self._is_known = is_known
        self.credentials: Credentials | None = None
        self.is_over = False

    def begin(self) -> bytes:
        """Return the bytes that offer the mechanisms."""
        return SASL_HEADER + _frame(SaslMechanisms(mechanisms=self._mechanisms))

    def receive(self, received: Frame) -> bytes:
        """Take the client's choice of a mechanism; return the outcome.

        Raises:
            WireError: the frame is not a SASL init.
        """
        if received.kind != SASL_FRAME:
            raise WireError(
                FRAMING_ERROR, "an AMQP frame came before the end of the sign-in"
            )
        init, end = read(received.body)
        if not isinstance(init, SaslInit) or end != len(received.body):
            raise WireError(
                FRAMING_ERROR, f"a client sends SaslInit, not {type(init).__name__}"
            )
        self.is_over = True
        credentials = self._credentials(init)
        if credentials is None or not self._is_known(credentials):
            return _frame(SaslOutcome(code=_REFUSED))
        self.credentials = credentials
        return _frame(SaslOutcome(code=_OK))

    def _credentials(self, init: SaslInit) -> Credentials | None:
        if init.mechanism not in self._mechanisms:
            return None
        if init.mechanism != PLAIN:
            return Credentials(str(init.mechanism))
        try:
            parts = (init.initial_response or b"").decode().split("\0")
        except UnicodeDecodeError:
            return None
        if len(parts) != _PLAIN_PARTS or not parts[1]:
            return None
        return Credentials(PLAIN, parts[1], parts[2])


def _frame(performative: SaslMechanisms | SaslOutcome) -> bytes:
    return frame(0, write(performative), SASL_FRAME)
