"""A client for tests, as far as a server's events need one: frames, written by hand."""

from collections.abc import Iterator
from typing import TypeVar

from bridge.simulator.wire.connection import Connection, Terms
from bridge.simulator.wire.events import Event
from bridge.simulator.wire.framing import (
    AMQP_HEADER,
    SASL_FRAME,
    SASL_HEADER,
    frame,
)
from bridge.simulator.wire.performatives import (
    Attach,
    Begin,
    Open,
    Performative,
    SaslInit,
    Transfer,
    read,
    write,
)
from bridge.simulator.wire.values import Described, ULong

Said = TypeVar("Said")

OPEN = Open(container_id="client")
BEGIN = Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)


def frames(*said: Performative, channel: int = 0, payload: bytes = b"") -> bytes:
    """Return the frames that say this; the payload is the last one's."""
    bodies = [write(one) for one in said]
    bodies[-1] += payload
    return b"".join(frame(channel, body) for body in bodies)


def signing_in(mechanism: str = "ANONYMOUS", response: bytes | None = None) -> bytes:
    """Return the bytes of a client that signs in."""
    init = SaslInit(mechanism=mechanism, initial_response=response)
    return SASL_HEADER + frame(0, write(init), SASL_FRAME)


def sends(handle: int = 0, **fields: object) -> Attach:
    """Return the attach of a link on which the client sends to ``queue``."""
    given: dict[str, object] = {
        "name": f"link-{handle}",
        "handle": handle,
        "is_receiver": False,
        "source": Described(ULong(0x28), ["me"]),
        "target": Described(ULong(0x29), ["queue"]),
        "initial_delivery_count": 0,
        **fields,
    }
    return Attach(**given)  # type: ignore[arg-type]  # a test names its fields


def receives(handle: int = 0, **fields: object) -> Attach:
    """Return the attach of a link on which the client receives from ``queue``."""
    source = Described(ULong(0x28), ["queue"])
    target = Described(ULong(0x29), ["me"])
    given: dict[str, object] = {"source": source, "target": target, **fields}
    return sends(handle, is_receiver=True, initial_delivery_count=None, **given)


def message(number: int | None, *, handle: int = 0, **fields: object) -> Transfer:
    """Return a transfer of the client."""
    given: dict[str, object] = {"delivery_tag": b"t", "message_format": 0, **fields}
    return Transfer(handle=handle, delivery_id=number, **given)  # type: ignore[arg-type]  # likewise


class Client:
    """Talks to a connection, and reads what it answers.

    Args:
        terms: of the server.

    Attributes:
        headers: the protocol headers that it sent.
        payloads: of the transfers that ``answers`` returned.
    """

    def __init__(self, terms: Terms | None = None) -> None:
        self.connection = Connection(terms or Terms(container_id="server"))
        self.headers: list[bytes] = []
        self.payloads: list[bytes] = []

    def send(self, octets: bytes) -> list[Event]:
        """Send bytes; return what the server makes of them."""
        self.connection.receive(octets)
        found = []
        while (event := self.connection.next_event()) is not None:
            found.append(event)
        return found

    def say(
        self, *said: Performative, channel: int = 0, payload: bytes = b""
    ) -> list[Event]:
        """Send frames; return what the server makes of them."""
        return self.send(frames(*said, channel=channel, payload=payload))

    def open(self, *said: Performative) -> list[Event]:
        """Open the connection and a session, and say more; forget the answers."""
        events = self.send(AMQP_HEADER + frames(OPEN, BEGIN, *said))
        self.answers()
        return events[2:]

    def answers(self) -> list[Performative]:
        """Return what the server has said since the last call."""
        return list(self._read(self.connection.take_output()))

    def answer(self, kind: type[Said]) -> Said:
        """Return the one answer there is, which is of a kind."""
        (found,) = self.answers()
        assert isinstance(found, kind)
        return found

    def _read(self, octets: bytes) -> Iterator[Performative]:
        while octets:
            if octets.startswith(b"AMQP"):
                self.headers.append(octets[:8])
                octets = octets[8:]
                continue
            size = int.from_bytes(octets[:4])
            body, octets = octets[8:size], octets[size:]
            if body:
                said, end = read(body)
                if isinstance(said, Transfer):
                    self.payloads.append(body[end:])
                yield said
