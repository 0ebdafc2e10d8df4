"""The errors of AMQP: conditions, and the exceptions for invalid bytes and values."""

from collections.abc import Mapping

from msgspec import Struct, field

DECODE_ERROR = "amqp:decode-error"
FRAMING_ERROR = "amqp:connection:framing-error"
ILLEGAL_STATE = "amqp:illegal-state"
INVALID_FIELD = "amqp:invalid-field"
NOT_ALLOWED = "amqp:not-allowed"
NOT_IMPLEMENTED = "amqp:not-implemented"
RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
HANDLE_IN_USE = "amqp:session:handle-in-use"
UNATTACHED_HANDLE = "amqp:session:unattached-handle"
MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"


class AmqpError(Struct, frozen=True):
    """An error as AMQP sends it.

    Attributes:
        condition: the error condition.
        description: a sentence for people.
        info: more facts. Encoders always send at least one entry, because some clients
            read the third field of an error without checking that it is there.
    """

    condition: str
    description: str | None = None
    info: Mapping[object, object] = field(default_factory=dict)


class WireError(Exception):
    """Bytes that break the protocol: the connection has to be closed.

    Attributes:
        condition: the AMQP error condition.
        description: what is wrong, and what is allowed.
    """

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


class DecodeError(WireError):
    """Bytes that are not an AMQP value."""

    def __init__(self, description: str) -> None:
        super().__init__(DECODE_ERROR, description)


class EncodeError(ValueError):
    """A value that AMQP cannot represent."""
