"""The error conditions of AMQP and Service Bus that this broker sends.

Shapes:  Condition names one; RefusedError carries it to the link or reply that answers
         the client.
Source:  the conditions that azure-servicebus 7.15 maps to its exceptions.
"""

from enum import StrEnum

from bridge.simulator.wire.errors import AmqpError


class Condition(StrEnum):
    """An AMQP error condition, spelled as on the wire."""

    ARGUMENT_ERROR = "com.microsoft:argument-error"
    CONNECTION_FORCED = "amqp:connection:forced"
    DECODE_ERROR = "amqp:decode-error"
    DETACH_FORCED = "amqp:link:detach-forced"
    ENTITY_ALREADY_EXISTS = "com.microsoft:entity-already-exists"
    ENTITY_DISABLED = "com.microsoft:entity-disabled"
    MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
    MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    NOT_FOUND = "amqp:not-found"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    ROLLED_BACK = "amqp:transaction:rollback"
    SERVER_BUSY = "com.microsoft:server-busy"
    SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
    SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
    SESSION_NOT_FOUND = "com.microsoft:session-not-found"
    TIMEOUT = "com.microsoft:timeout"
    UNKNOWN_TRANSACTION = "amqp:transaction:unknown-id"
    UNAUTHORIZED = "amqp:unauthorized-access"


class RefusedError(Exception):
    """A request that the broker refuses.

    Attributes:
        condition: the AMQP error condition, sent to the client.
        description: one sentence for people.
    """

    def __init__(self, condition: Condition, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


def amqp_error(error: RefusedError) -> AmqpError:
    """Return a refusal as the error that AMQP sends."""
    return AmqpError(str(error.condition), error.description)
