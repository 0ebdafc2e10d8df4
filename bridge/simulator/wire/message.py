"""Request and reply messages, whose body is one value.

Source: AMQP 1.0, part 3: 3.2 message format.
"""

from collections.abc import Iterable, Mapping

from bridge.simulator.wire.decode import decode_value
from bridge.simulator.wire.encode import encode_value
from bridge.simulator.wire.values import DecodeError, Described, ULong

PROPERTIES, APPLICATION_PROPERTIES, DATA, VALUE = 0x73, 0x74, 0x75, 0x77

_ID, _REPLY_TO, _CORRELATION_ID = 0, 4, 5


class Message:
    """A message with properties and one value.

    Args:
        body: the value.
        properties: the application properties.

    Attributes:
        id: the message id, with its AMQP type.
        reply_to: the address for the reply.
        correlation_id: the id of the request that this message answers.
        properties: the application properties.
        body: the value, or the bytes of the data section.
    """

    def __init__(
        self, body: object = None, properties: Mapping[str, object] | None = None
    ) -> None:
        self.id: object = None
        self.reply_to: str | None = None
        self.correlation_id: object = None
        self.properties: Mapping[str, object] = properties or {}
        self.body = body

    @classmethod
    def decode(cls, encoded: bytes) -> "Message":
        """Read a message.

        Raises:
            DecodeError: the bytes are not a message.
        """
        sections = dict(_sections(encoded))
        message = cls(sections.get(VALUE, sections.get(DATA)))
        fields = sections.get(PROPERTIES)
        if isinstance(fields, list):
            message.id = _at(fields, _ID)
            reply_to = _at(fields, _REPLY_TO)
            message.reply_to = reply_to if isinstance(reply_to, str) else None
            message.correlation_id = _at(fields, _CORRELATION_ID)
        named = sections.get(APPLICATION_PROPERTIES)
        if isinstance(named, dict):
            message.properties = {str(name): value for name, value in named.items()}
        return message

    def encode(self) -> bytes:
        """Return the bytes of the message."""
        fields = [self.id, None, None, None, self.reply_to, self.correlation_id]
        return b"".join(
            encode_value(Described(ULong(code), value))
            for code, value in (
                (PROPERTIES, fields),
                (APPLICATION_PROPERTIES, self.properties),
                (VALUE, self.body),
            )
        )


def _sections(encoded: bytes) -> Iterable[tuple[int, object]]:
    at = 0
    while at < len(encoded):
        section, end = decode_value(encoded, at)
        if not isinstance(section, Described) or not isinstance(
            section.descriptor, ULong
        ):
            raise DecodeError(f"there is no section of a message at byte {at}")
        yield int(section.descriptor), section.value
        at = end


def _at(fields: list[object], place: int) -> object:
    return fields[place] if place < len(fields) else None
