"""The request and reply links of $cbs and of <entity>/$management.

A request comes on one link, and its reply goes to another link of the same connection.
This is the link whose target is the request's reply-to, or else the link whose source
is the address of the request.

Source: AMQP management and claims-based security drafts, as implemented by
        azure-servicebus 7.15 and @azure/service-bus 7.9.
"""

from collections import deque
from typing import Protocol
from uuid import uuid4

from bridge.simulator.servicebus.access import MANAGEMENT_SUFFIX
from bridge.simulator.servicebus.endpoints import Delivery, Link
from bridge.simulator.servicebus.entities import Namespace, is_transfer
from bridge.simulator.servicebus.faults import Faults
from bridge.simulator.servicebus.hub import Connection
from bridge.simulator.servicebus.management import SCHEDULE, Reply, answer, right_of
from bridge.simulator.servicebus.values import Condition, RefusedError, amqp_error
from bridge.simulator.servicebus.wire import entity_path
from bridge.simulator.wire.message import Message
from bridge.simulator.wire.outcomes import Accepted, Rejected, Transactional
from bridge.simulator.wire.values import DecodeError, Int32, Symbol

CBS = "$cbs"

_CREDIT = 100
_OK = 200


def is_control(path: str) -> bool:
    """Return whether a path belongs to a control link."""
    return path.lower() == CBS or path.lower().endswith(MANAGEMENT_SUFFIX)


class Replies:
    """Sends replies on one link; a reply waits until the client gives credit."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: deque[bytes] = deque()
        link.accept()
        self.source = entity_path(link.source)
        self.target = link.target

    @property
    def path(self) -> str:
        """Always empty: this link has no entity, and faults concern entities."""
        return ""

    @property
    def is_cbs(self) -> bool:
        """Whether the replies are about tokens."""
        return self.source.lower() == CBS

    def add(self, encoded: bytes) -> None:
        """Send a reply as soon as there is credit."""
        self._waiting.append(encoded)
        self.on_flow()

    def on_flow(self) -> None:
        """Send the waiting replies, as many as there is credit for."""
        while self._waiting and self._link.credit > 0 and self._link.is_open:
            tag = uuid4().bytes
            self._link.send(tag, self._waiting.popleft(), None)
        self._link.drained()

    def on_delivery(self, delivery: Delivery) -> None:
        """Do nothing: replies are sent settled."""

    def on_closed(self, *, dropped: bool) -> None:
        """Do nothing: there is no state to clean up."""


class OtherLinks(Protocol):
    """Finds the other links of a connection."""

    def find_replies(self, reply_to: str | None, path: str) -> Replies | None:
        """Return the link for the reply to a request on a path."""

    def find_session(self, name: str, path: str) -> str | None:
        """Return the session of the receiver with a name; None: it has none."""


class Requests:
    """Answers the requests of one link.

    Args:
        link: the link that the client has attached; it is not answered yet.
        namespace: the entities that requests are about.
        faults: may refuse to schedule a message, because that is a send.
        owner: the connection, which has the tokens.
        others: the other links of the connection.
    """

    def __init__(
        self,
        link: Link,
        namespace: Namespace,
        faults: Faults,
        *,
        owner: Connection,
        others: "OtherLinks",
    ) -> None:
        self._link = link
        self._namespace = namespace
        self._faults = faults
        self._owner = owner
        self._others = others
        self._path = entity_path(link.target)
        link.accept()
        link.grant(_CREDIT)

    @property
    def path(self) -> str:
        """Always empty: this link has no entity, and faults concern entities."""
        return ""

    @property
    def is_cbs(self) -> bool:
        """Whether the requests carry tokens."""
        return self._path.lower() == CBS

    def on_flow(self) -> None:
        """Do nothing: requests do not depend on the client's flow."""

    def on_delivery(self, delivery: Delivery) -> None:
        """Answer a request."""
        self._link.grant(1)
        if isinstance(delivery.state, Transactional):
            refused = RefusedError(
                Condition.NOT_IMPLEMENTED,
                "requests in a transaction are not supported: send and settle by links",
            )
            delivery.settle(Rejected(amqp_error(refused)))
            return
        try:
            request = Message.decode(delivery.encoded)
        except DecodeError:
            malformed = RefusedError(
                Condition.DECODE_ERROR, "this is not an AMQP message"
            )
            delivery.settle(Rejected(amqp_error(malformed)))
            return
        replies = self._others.find_replies(request.reply_to, self._path)
        if replies is None:
            lost = RefusedError(
                Condition.NOT_FOUND,
                f"there is no link for the reply: attach a receiver to {self._path}",
            )
            delivery.settle(Rejected(amqp_error(lost)))
            return
        delivery.settle(Accepted())
        replies.add(self._answer(request))

    def on_closed(self, *, dropped: bool) -> None:
        """Do nothing: there is no state to clean up."""

    def _answer(self, request: Message) -> bytes:
        if self.is_cbs:
            reply = Message(properties=self._authorize(request))
        else:
            answered = self._manage(request)
            body = None if answered.body is None else dict(answered.body)
            reply = Message(body, properties=_properties(answered))
        # The client compares the correlation id with its message id, type included.
        reply.correlation_id = request.id
        return reply.encode()

    def _authorize(self, request: Message) -> dict[str, object]:
        """Store a token for the namespace, or for an entity that exists."""
        named = request.properties
        try:
            _check_put_token(named.get("operation"))
            path = entity_path(str(named.get("name") or "")).lower()
            path = path.removesuffix(MANAGEMENT_SUFFIX)
            self._owner.claims.put(request.body, path)
            # An empty path means the whole namespace. A transfer queue, which this
            # broker does not support, is refused later, when the client attaches to
            # it: clients show the error of an attach to their user.
            if path and not is_transfer(path):
                self._namespace.find(path)
        except RefusedError as error:
            refused = Reply.refusal(error)
            return {
                "status-code": Int32(refused.status),
                "status-description": error.description,
            }
        return {"status-code": Int32(_OK), "status-description": "OK"}

    def _manage(self, request: Message) -> Reply:
        path = self._path[: -len(MANAGEMENT_SUFFIX)]
        try:
            operation = _operation(request)
            self._owner.claims.check(path, right_of(operation))
            entity = self._namespace.find(path)
            if operation == SCHEDULE:
                self._namespace.find_target(path)
                self._faults.check_send(path)
        except RefusedError as error:
            return Reply.refusal(error)
        return answer(operation, entity, self._body(request, path), self._owner)

    def _body(self, request: Message, path: str) -> object:
        """Return the body, with the session of the link that the request names.

        The client of Go names the link only, and no session.
        """
        body, link = request.body, request.properties.get("associated-link-name")
        if not isinstance(body, dict) or body.get("session-id") is not None:
            return body
        session = (
            self._others.find_session(link, path) if isinstance(link, str) else None
        )
        return body if session is None else {**body, "session-id": session}


CONTROL = (Replies, Requests)
"""The roles of control links."""


def _operation(request: Message) -> str:
    if operation := str(request.properties.get("operation") or ""):
        return operation
    raise RefusedError(Condition.ARGUMENT_ERROR, "the request names no operation")


def _check_put_token(operation: object) -> None:
    if operation != "put-token":
        raise RefusedError(
            Condition.NOT_IMPLEMENTED,
            f"{CBS} knows the operation 'put-token' only, not {operation!r}",
        )


def _properties(reply: Reply) -> dict[str, object]:
    properties: dict[str, object] = {
        "statusCode": Int32(reply.status),
        "statusDescription": reply.description,
    }
    if reply.condition is not None:
        properties["errorCondition"] = Symbol(str(reply.condition))
    return properties
