"""What the administration API answers when it refuses.

Source: Azure Service Bus, Resource Manager exceptions: status and sub code.
"""

from http import HTTPStatus


class AdministrationError(Exception):
    """A request is refused.

    Attributes:
        status: of HTTP.
        detail: one sentence for people, with the sub code of Service Bus.
    """

    def __init__(self, status: HTTPStatus, what: str) -> None:
        sub_code = f"{status.value}00"
        super().__init__(what)
        self.status = status
        self.detail = f"SubCode={sub_code}. {status.phrase}. {what}"


def bad(what: str) -> AdministrationError:
    """Return the error for a request that cannot be read or has no sense."""
    return AdministrationError(HTTPStatus.BAD_REQUEST, what)


def missing(what: str) -> AdministrationError:
    """Return the error for a change of what is not there."""
    return AdministrationError(HTTPStatus.NOT_FOUND, what)


def conflict(what: str) -> AdministrationError:
    """Return the error for making what is there already."""
    return AdministrationError(HTTPStatus.CONFLICT, what)
