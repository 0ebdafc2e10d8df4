"""Turns errors of Azure Service Bus and of azure-identity into delivery errors.

All such errors go through this file. Wrong credentials or a wrong address: the sink
refuses everything. A message that is too large: a dead letter. Any other error: try
again later. No text of the service is repeated: only our own
words, the name of the error and its condition.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.net.tls import certificate_fault

_REFUSED = {
    "ServiceBusAuthenticationError": (Reason.UNAUTHORIZED, "refuses the credentials"),
    "ServiceBusAuthorizationError": (Reason.UNAUTHORIZED, "denies the right to do so"),
    "ClientAuthenticationError": (Reason.UNAUTHORIZED, "no token was issued for it"),
    "MessagingEntityNotFoundError": (Reason.NOT_FOUND, "does not exist"),
    "MessagingEntityDisabledError": (Reason.NOT_FOUND, "is disabled"),
}
_NO_ANSWER = "TokenNotChecked"  # our own name: the SDK's is the same for every status
_TRANSIENT = {
    _NO_ANSWER: (Reason.SERVER, "cannot check the credentials now"),
    "OperationTimeoutError": (Reason.TIMEOUT, "did not answer in time"),
    "TimeoutError": (Reason.TIMEOUT, "did not answer in time"),
    "ServiceBusServerBusyError": (Reason.THROTTLED, "is busy"),
    "ServiceBusQuotaExceededError": (Reason.THROTTLED, "is full"),
    "ServiceBusConnectionError": (Reason.CONNECTION, "cannot be reached"),
    "ServiceBusCommunicationError": (Reason.CONNECTION, "cannot be reached"),
    "OSError": (Reason.CONNECTION, "cannot be reached"),
    "SessionCannotBeLockedError": (Reason.SERVER, "is held elsewhere"),
    "SessionLockLostError": (Reason.SERVER, "has lost its lock"),
    "MessageLockLostError": (Reason.SERVER, "has lost its lock"),
}
# EAI_NONAME and EAI_NODATA of Linux, macOS and Windows.
_NO_SUCH_NAME = re.compile(r"\[Errno (-2|-5|8|11001|11004)\]")
_GONE, _TROUBLE = 404, 500  # statuses with which a token is refused
_NOT_SO = {"amqp:not-allowed", "com.microsoft:argument-error"}
# When a connection dies, the SDK may raise errors such as "'NoneType' object has no
# attribute …" or "list index out of range". For a handler that it has closed itself, it
# raises a ValueError.
_SLIPS = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def failures() -> tuple[type[Exception], ...]:
    """Return the errors that an attempt may raise, for an ``except`` clause.

    This is a function, so that the SDK is imported only after an error.
    """
    from azure.core.exceptions import AzureError  # noqa: PLC0415  costs memory

    return (AzureError, DeliveryError, *_SLIPS)


@contextmanager
def delivery_errors(
    target: str, *, size: int | None = None, host: str = ""
) -> Iterator[None]:
    """Turn errors of the SDK into delivery errors.

    Args:
        target: the name of the entity for the text.
        size: the bytes that are sent, for the text of "too large".
        host: the host of the namespace, for the text of "cannot be reached".
    """
    try:
        yield
    except failures() as error:
        raise as_delivery_error(error, target, size=size, host=host) from error


def as_delivery_error(
    error: Exception, target: str, *, size: int | None = None, host: str = ""
) -> DeliveryError:
    """Return the delivery error for an error of the SDK; see ``delivery_errors``."""
    cause = _origin(error)
    if isinstance(cause, DeliveryError):  # a copy, since several callers may raise it
        return type(cause)(str(cause), cause.reason)
    if is_too_large(cause):
        much = "what was sent" if size is None else f"{size} bytes"
        return PermanentDeliveryError(f"{target}: {much}: too large", Reason.TOO_LARGE)
    if words := _no_connection(error, cause, host):
        return TransientDeliveryError(f"{target}: {words}", Reason.CONNECTION)
    for name in _names(cause):
        if name in _REFUSED:
            reason, words = _REFUSED[name]
            return RefusedDeliveryError(f"{target}: {words} {_named(cause)}", reason)
        if name in _TRANSIENT:
            reason, words = _TRANSIENT[name]
            if reason is Reason.CONNECTION:
                words = _unreachable(cause, words, host)
            return TransientDeliveryError(
                f"{target}: {words} {_named(cause)}",
                reason,
                is_shared=name == "ServiceBusServerBusyError",
            )
    text = f"{target}: failed {_named(cause)}"
    return TransientDeliveryError(text, Reason.UNFORESEEN)


def _no_connection(error: Exception, cause: Exception, host: str) -> str:
    """Return why there was no connection, if that is not a matter of the network."""
    if (fault := certificate_fault(error)) is not None:
        return f"the certificate of {host or 'its host'} is not trusted: {fault}"
    if _is_identity_silent(cause):
        return "the identity endpoint of this machine does not answer"
    return ""


def _unreachable(error: Exception, words: str, host: str) -> str:
    """Return the words for a host that cannot be reached, with its name.

    The SDK hides the error of the resolver, but its text has the number.
    """
    if _NO_SUCH_NAME.search(str(error)):
        return f"the name {host or 'of its host'} does not exist"
    return f"{words} at {host}" if host else words


def remedy(error: DeliveryError, role: str, entity: str) -> str:
    """Return what to do about a refusal, as the end of a sentence; "" = not known.

    Args:
        error: the refusal.
        role: ``Sender`` or ``Receiver``: the role that the identity needs.
        entity: the name of the entity in Azure.
    """
    if error.reason is Reason.UNAUTHORIZED:
        return (
            f'; the identity needs the role "Azure Service Bus Data {role}" on {entity}'
        )
    if error.reason is Reason.NOT_FOUND:
        return f"; create or enable {entity}: the bridge has no right to"
    return ""


def is_too_large(error: Exception) -> bool:
    """Return whether the message or batch is too large for the entity."""
    return "MessageSizeExceededError" in _names(error)


def is_about_batch(error: Exception) -> bool:
    """Return whether the entity refused the batch, but may accept single messages."""
    return is_too_large(error) or _condition(error) in _NOT_SO


def is_not_allowed(error: Exception) -> bool:
    """Return whether a receiver lacks a session, or has one that is not allowed."""
    return _condition(_origin(error)) == "amqp:not-allowed"


def is_lock_lost(error: Exception) -> bool:
    """Return whether the lock of one message was lost, and nothing else is wrong."""
    return "MessageLockLostError" in _names(error)


def is_held_elsewhere(error: Exception) -> bool:
    """Return whether another receiver has locked the session."""
    return "SessionCannotBeLockedError" in _names(error)


def leaves_link_whole(error: Exception) -> bool:
    """Return whether a message was refused, but the link is still usable."""
    names = {"ServiceBusServerBusyError", "ServiceBusQuotaExceededError"}
    return is_about_batch(error) or not names.isdisjoint(_names(error))


def _names(error: Exception) -> list[str]:
    """Return the names of an error and its base classes, the most exact one first."""
    cause = _origin(error)
    names = [kind.__name__ for kind in type(cause).__mro__]
    return [*_meant_by_token(cause), *names]


def _meant_by_token(error: Exception) -> list[str]:
    """Return the name of the error that a refused token means, by its status.

    The service looks for the entity before it checks permissions. With a key or role
    for the whole namespace, 404 means that the entity does not exist. 401 means that
    permission is missing, whether or not the entity exists.
    """
    status = _token_status(error)
    if status == _GONE:
        return ["MessagingEntityNotFoundError"]
    return [_NO_ANSWER] if status is not None and status >= _TROUBLE else []


def _token_status(error: Exception) -> int | None:
    """Return the status with which a token was refused; None if none was refused."""
    inner = getattr(error, "inner_exception", None)
    status = getattr(inner, "status_code", None)
    is_token = type(inner).__name__ == "TokenAuthFailure" and isinstance(status, int)
    return status if is_token else None


def _origin(error: Exception) -> Exception:
    """Return the error inside the SDK's "Handler failed", else the error itself."""
    inner = getattr(error, "inner_exception", None)
    is_wrapper = type(error).__name__ == "ServiceBusError" and not _condition(error)
    return inner if is_wrapper and isinstance(inner, Exception) else error


def _is_identity_silent(error: Exception) -> bool:
    """Return whether the identity endpoint did not answer, which is transient."""
    if type(error).__name__ != "CredentialUnavailableError":
        return False
    return type(error.__cause__).__name__ in {
        "ServiceRequestError",
        "ServiceRequestTimeoutError",
        "ServiceResponseError",
        "ServiceResponseTimeoutError",
    }


def _condition(error: Exception) -> str | None:
    condition = getattr(error, "_condition", None)  # not public, but useful in texts
    return condition if isinstance(condition, str) else None


def _named(error: Exception) -> str:
    status, name = _token_status(error), type(error).__name__
    detail = _condition(error) if status is None else f"status {status}"
    return f"({name}, {detail})" if detail else f"({name})"
