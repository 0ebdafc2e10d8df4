"""What the errors of Azure Service Bus and of azure-identity mean for a delivery.

The one door through which they come in. DESIGN section 6 is its source: whatever
says that credentials or address are wrong refuses the sink as a whole, a message
that is too large is dead, and everything else may work later. No text of the
service is passed on: only our own words, the name of the error and its condition.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)

_REFUSED = {
    "ServiceBusAuthenticationError": (Reason.UNAUTHORIZED, "refuses the credentials"),
    "ServiceBusAuthorizationError": (Reason.UNAUTHORIZED, "denies the right to do so"),
    "ClientAuthenticationError": (Reason.UNAUTHORIZED, "no token is to be had for it"),
    "MessagingEntityNotFoundError": (Reason.NOT_FOUND, "does not exist"),
    "MessagingEntityDisabledError": (Reason.NOT_FOUND, "is disabled"),
}
_NO_ANSWER = "TokenNotChecked"  # our own name: the SDK has one for every status
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
_GONE, _TROUBLE = 404, 500  # of a token that was refused
_NOT_SO = {"amqp:not-allowed", "com.microsoft:argument-error"}
# The SDK lets slip what is no error of its own when a connection dies under it, such
# as "'NoneType' object has no attribute …" or "list index out of range"; it calls a
# handler that it closed itself a ValueError.
_SLIPS = (AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def failures() -> tuple[type[Exception], ...]:
    """Return what may come out of an attempt, for an ``except`` clause.

    A function, so that nothing is imported before something was raised.
    """
    from azure.core.exceptions import AzureError  # noqa: PLC0415  costs memory

    return (AzureError, DeliveryError, *_SLIPS)


@contextmanager
def delivery_errors(target: str, *, size: int | None = None) -> Iterator[None]:
    """Turn what the SDK raises into delivery errors.

    Args:
        target: how the other side is named in the text.
        size: bytes of what is sent, for the text of what is too large.
    """
    try:
        yield
    except failures() as error:
        raise as_delivery_error(error, target, size=size) from error


def as_delivery_error(
    error: Exception, target: str, *, size: int | None = None
) -> DeliveryError:
    """Return what an error of the SDK means for a delivery."""
    cause = _origin(error)
    if isinstance(cause, DeliveryError):  # anew: several may wait for one attempt
        return type(cause)(str(cause), cause.reason)
    if is_too_large(cause):
        much = "what was sent" if size is None else f"{size} bytes"
        return PermanentDeliveryError(f"{target}: {much}: too large", Reason.TOO_LARGE)
    if _is_identity_silent(cause):
        text = f"{target}: the identity endpoint of this machine does not answer"
        return TransientDeliveryError(text, Reason.CONNECTION)
    for name in _names(cause):
        if name in _REFUSED:
            reason, words = _REFUSED[name]
            return RefusedDeliveryError(f"{target}: {words} {_named(cause)}", reason)
        if name in _TRANSIENT:
            reason, words = _TRANSIENT[name]
            return TransientDeliveryError(f"{target}: {words} {_named(cause)}", reason)
    text = f"{target}: failed {_named(cause)}"
    return TransientDeliveryError(text, Reason.UNFORESEEN)


def remedy(error: DeliveryError, role: str, entity: str) -> str:
    """Return what helps against a refusal, as the end of a sentence; "" = not known.

    Args:
        error: the refusal.
        role: ``Sender`` or ``Receiver``: what the identity has to be there.
        entity: as it is called in Azure.
    """
    if error.reason is Reason.UNAUTHORIZED:
        return f'; it takes the role "Azure Service Bus Data {role}" on {entity}'
    if error.reason is Reason.NOT_FOUND:
        return f"; create or enable {entity}: the bridge has no right to"
    return ""


def is_too_large(error: Exception) -> bool:
    """Whether what was sent is larger than the entity takes."""
    return "MessageSizeExceededError" in _names(error)


def is_about_batch(error: Exception) -> bool:
    """Whether the messages may be taken one by one although not together."""
    return is_too_large(error) or _condition(error) in _NOT_SO


def is_not_allowed(error: Exception) -> bool:
    """Whether a receiver has no session where one is wanted, or the other way round."""
    return _condition(_origin(error)) == "amqp:not-allowed"


def is_lock_lost(error: Exception) -> bool:
    """Whether one message went back to the entity, and nothing else is wrong."""
    return "MessageLockLostError" in _names(error)


def is_held_elsewhere(error: Exception) -> bool:
    """Whether another receiver has locked the session."""
    return "SessionCannotBeLockedError" in _names(error)


def leaves_link_whole(error: Exception) -> bool:
    """Whether what was sent is refused, but the link is as good as before."""
    names = {"ServiceBusServerBusyError", "ServiceBusQuotaExceededError"}
    return is_about_batch(error) or not names.isdisjoint(_names(error))


def _names(error: Exception) -> list[str]:
    """Return what an error is called, the name that says most first."""
    cause = _origin(error)
    names = [kind.__name__ for kind in type(cause).__mro__]
    return [*_meant_by_token(cause), *names]


def _meant_by_token(error: Exception) -> list[str]:
    """Return what it means that a token was refused, where its status says so.

    The service looks for the entity before it looks at the rights: with a key or role
    of the whole namespace, 404 tells that there is no such entity. 401 tells that
    there is no right to it, whether it is there or not.
    """
    status = _token_status(error)
    if status == _GONE:
        return ["MessagingEntityNotFoundError"]
    return [_NO_ANSWER] if status is not None and status >= _TROUBLE else []


def _token_status(error: Exception) -> int | None:
    """Return the status that a token was refused with; None where that is not so."""
    inner = getattr(error, "inner_exception", None)
    status = getattr(inner, "status_code", None)
    is_token = type(inner).__name__ == "TokenAuthFailure" and isinstance(status, int)
    return status if is_token else None


def _origin(error: Exception) -> Exception:
    """Return what the SDK wrapped into its "Handler failed", else the error itself."""
    inner = getattr(error, "inner_exception", None)
    is_wrapper = type(error).__name__ == "ServiceBusError" and not _condition(error)
    return inner if is_wrapper and isinstance(inner, Exception) else error


def _is_identity_silent(error: Exception) -> bool:
    """Whether no token was had because nobody answered, which may pass."""
    if type(error).__name__ != "CredentialUnavailableError":
        return False
    return type(error.__cause__).__name__ in {
        "ServiceRequestError",
        "ServiceRequestTimeoutError",
        "ServiceResponseError",
        "ServiceResponseTimeoutError",
    }


def _condition(error: Exception) -> str | None:
    condition = getattr(error, "_condition", None)  # no public face, but worth naming
    return condition if isinstance(condition, str) else None


def _named(error: Exception) -> str:
    status, name = _token_status(error), type(error).__name__
    detail = _condition(error) if status is None else f"status {status}"
    return f"({name}, {detail})" if detail else f"({name})"
