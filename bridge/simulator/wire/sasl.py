"""How a client signs in, before AMQP begins.

    header → mechanisms offered → init → outcome ok      → AMQP
                                       → outcome refused → closed

Service Bus checks tokens later, at ``$cbs``: here anonymous, external and mssbcbs mean
"not yet", and only plain brings a name and a password.

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
_PLAIN_PARTS = 3  # whom to act for, name, password


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client signs in with.

    Attributes:
        mechanism: e.g. ANONYMOUS.
        name: of PLAIN, else empty.
        password: likewise; never shown.
    """

    mechanism: str
    name: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.mechanism!r}, {self.name!r})"


def accept_all(_credentials: Credentials) -> bool:
    """Let everybody in: the tokens are checked later."""
    return True


class SaslServer:
    """The server's side of signing in.

    Args:
        mechanisms: what is offered.
        is_known: whether who signs in so is let in.

    Attributes:
        credentials: of the client, when it was let in.
        is_over: whether there is nothing more to say.
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
        """Take the client's choice; return the outcome.

        Raises:
            WireError: it is something else.
        """
        if received.kind != SASL_FRAME:
            raise WireError(FRAMING_ERROR, "a frame of AMQP came before signing in")
        init, end = read(received.body)
        if not isinstance(init, SaslInit) or end != len(received.body):
            raise WireError(
                FRAMING_ERROR, f"a client chooses a mechanism; {type(init).__name__}"
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


def _frame(said: SaslMechanisms | SaslOutcome) -> bytes:
    return frame(0, write(said), SASL_FRAME)
