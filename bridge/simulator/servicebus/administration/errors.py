"""The errors of the administration API.

Source: Azure Service Bus, Resource Manager exceptions: status and sub code.
"""

from http import HTTPStatus


class AdministrationError(Exception):
    """A request is refused.

    Attributes:
        status: the HTTP status.
        detail: a text for people, with the sub code of Service Bus.
    """

    def __init__(self, status: HTTPStatus, what: str) -> None:
        sub_code = f"{status.value}00"
        super().__init__(what)
        self.status = status
        self.detail = f"SubCode={sub_code}. {status.phrase}. {what}"


def bad(what: str) -> AdministrationError:
    """Return the error for an invalid request."""
    return AdministrationError(HTTPStatus.BAD_REQUEST, what)


def missing(what: str) -> AdministrationError:
    """Return the error for a request about an entity or rule that does not exist."""
    return AdministrationError(HTTPStatus.NOT_FOUND, what)


def conflict(what: str) -> AdministrationError:
    """Return the error for creating an entity or rule that already exists."""
    return AdministrationError(HTTPStatus.CONFLICT, what)
