"""The links of one connection, from attach to close, and the role of each.

States of a link: attach → role (a producer, a consumer, requests or replies)
                         → closed by either side, and removed
                  attach → refused
"""

import logging
from collections.abc import Hashable
from typing import Protocol

from bridge.simulator.servicebus.access import Right
from bridge.simulator.servicebus.consumer import Consumer, check_attach, session_request
from bridge.simulator.servicebus.control import (
    CBS,
    CONTROL,
    Replies,
    Requests,
    is_control,
)
from bridge.simulator.servicebus.endpoints import Delivery, Link
from bridge.simulator.servicebus.faults import Faults
from bridge.simulator.servicebus.hub import Connection, Hub
from bridge.simulator.servicebus.intake import MAX_MESSAGE_BYTES, check_size
from bridge.simulator.servicebus.storage import Target
from bridge.simulator.servicebus.transactions import Coordinator, Transactions
from bridge.simulator.servicebus.values import Condition, RefusedError, amqp_error
from bridge.simulator.servicebus.wire import (
    BATCH_FORMAT,
    entity_path,
    parse_message,
    split_batch,
)
from bridge.simulator.wire.outcomes import Accepted, Rejected, State, Transactional

log = logging.getLogger(__name__)

# Clients recognise these words of the cloud.
_NEEDS_SESSION = (
    "It is not possible for an entity that requires sessions to create a "
    "non-sessionful message receiver."
)
_HAS_NO_SESSIONS = (
    "A sessionful message receiver cannot be created on an entity that does not "
    "require sessions. Ensure RequiresSession is set to true when creating a Queue or "
    "Subscription to enable sessionful behavior."
)


class Role(Protocol):
    """The purpose of a link."""

    @property
    def path(self) -> str:
        """The path of its entity; empty if it has none."""

    def on_flow(self) -> None:
        """Handle credit that the client has given, or requests back."""

    def on_delivery(self, delivery: Delivery) -> None:
        """Handle a message from the client, or its outcome for a message."""

    def on_closed(self, *, dropped: bool) -> None:
        """Clean up after the link is closed; ``dropped``: its connection broke."""


class Links:
    """The links of one connection, each with its role.

    Args:
        hub: connects the links to the entities.
        owner: the connection, which also owns the session locks of its links.

    Attributes:
        transactions: the transactions of the connection.
    """

    def __init__(self, hub: Hub, owner: Connection) -> None:
        self._hub = hub
        self._owner = owner
        self._roles: dict[Link, Role] = {}
        self.transactions = Transactions(hub.namespace)

    def sign_in(self, name: str, password: str) -> bool:
        """Return whether a name and password are those of a rule and its key."""
        return self._owner.claims.sign_in(name, password)

    def attach(self, link: Link) -> None:
        """Give a link its role, or refuse it."""
        try:
            self._attach(link)
        except RefusedError as error:
            log.info("attach refused", extra={"condition": str(error.condition)})
            link.refuse(amqp_error(error))

    def on_flow(self, link: Link) -> None:
        """Let the role of a link use its credit; refused and closed links have none."""
        role = self._roles.get(link)
        if role is not None:
            role.on_flow()

    def on_delivery(self, link: Link, delivery: Delivery) -> None:
        """Pass a message or an outcome to the role of a link."""
        role = self._roles.get(link)
        if role is not None:
            role.on_delivery(delivery)

    def touch(self) -> None:
        """Write to the client at the end of the turn."""
        self._hub.touch(self._owner)

    def close(self, link: Link, *, dropped: bool = False) -> None:
        """Remove a link.

        Args:
            link: a link that either side has closed.
            dropped: whether its connection broke.
        """
        role = self._roles.pop(link, None)
        if role is None:
            return
        role.on_closed(dropped=dropped)
        if isinstance(role, Consumer):
            self._hub.remove_consumer(role)

    def close_session(self, session: Hashable) -> None:
        """Remove the links of an AMQP session."""
        for link in tuple(self._roles):
            if link.session == session:
                self.close(link)

    def close_all(self, *, dropped: bool) -> None:
        """Remove all links."""
        for link in tuple(self._roles):
            self.close(link, dropped=dropped)

    def detach(self, path: str | None, why: RefusedError | None = None) -> None:
        """Detach the links of one entity, or of all.

        If a reason is given, a sending client gets it as the outcome of its next
        message. It would not notice a detach before it sends, and would then lose this
        message without an answer.

        Args:
            path: the path of the entity; None: all entities.
            why: the reason for the clients; None: the link was idle.
        """
        idle = RefusedError(Condition.DETACH_FORCED, "the link was idle for too long")
        for link, role in tuple(self._roles.items()):
            concerned = role.path if path is None else role.path.lower() == path.lower()
            if concerned and why is not None and isinstance(role, Producer):
                role.end(why)
            elif concerned and link.is_open:
                link.close(amqp_error(why or idle))
                self.close(link)
            elif concerned and why is not None:
                link.refuse(amqp_error(why))  # not accepted yet: it waits for a session
                self.close(link)

    def _attach(self, link: Link) -> None:
        check_attach(link)
        if link.is_coordinator:
            self._roles[link] = Coordinator(link, self.transactions)
            return
        path = entity_path(link.source if link.is_sender else link.target)
        if path.lower() == CBS:
            self._check_single(link)
        if not is_control(path):
            self._hub.faults.check_attach(path)
        if not link.is_sender:
            self._roles[link] = self._attach_incoming(link, path)
        elif is_control(path):
            self._roles[link] = Replies(link)
        else:
            self._roles[link] = self._attach_consumer(link, path)

    def _check_single(self, link: Link) -> None:
        """Check that no other link of this direction goes to $cbs."""
        for other, role in self._roles.items():
            if (
                isinstance(role, CONTROL)
                and role.is_cbs
                and (other.is_sender == link.is_sender)
            ):
                raise RefusedError(
                    Condition.NOT_ALLOWED,
                    f"the connection has a link to {CBS} already: {other.name!r}",
                )

    def _attach_incoming(self, link: Link, path: str) -> Role:
        namespace = self._hub.namespace
        if not is_control(path):
            self._owner.claims.check(path, Right.SEND)
            target = namespace.find_target(path)
            return Producer(link, target, self._hub.faults, self.transactions)
        return Requests(
            link,
            namespace,
            self._hub.faults,
            owner=self._owner,
            others=self,
        )

    def _attach_consumer(self, link: Link, path: str) -> Consumer:
        self._owner.claims.check(path, Right.LISTEN)
        queue = self._hub.namespace.find_queue(path)
        request = session_request(link)
        if queue.settings.requires_session != (request is not None):
            words = _NEEDS_SESSION if request is None else _HAS_NO_SESSIONS
            raise RefusedError(Condition.NOT_ALLOWED, f"{words} The entity is {path!r}")
        consumer = Consumer(
            link,
            queue,
            owner=self._owner,
            faults=self._hub.faults,
            keeper=self,
        )
        if request is None:
            consumer.attach()
            self._hub.add_consumer(consumer)
        elif consumer.attach_to_session(request.session_id):
            self._hub.add_consumer(consumer)
        else:
            self._hub.add_waiting(consumer, request.timeout)
        return consumer

    def find_session(self, name: str, path: str) -> str | None:
        """Return the session of the receiver with a name; None: it has none."""
        for link, role in self._roles.items():
            if link.name == name and isinstance(role, Consumer):
                return role.session_id if role.path.lower() == path.lower() else None
        return None

    def find_replies(self, reply_to: str | None, path: str) -> Replies | None:
        """Return the link for the reply to a request on a path."""
        replies = [role for role in self._roles.values() if isinstance(role, Replies)]
        for role in replies:
            if reply_to is not None and role.target == reply_to:
                return role
        for role in replies:
            if role.source.lower() == path.lower():
                return role
        return None


# -- The link by which a client sends to a queue or topic ------------------------------


_CREDIT = 1000


class Producer:
    """Accepts messages from one link.

    Args:
        link: the link that the client has attached; it is not answered yet.
        target: the destination of the messages.
        faults: may refuse each message.
        transactions: those that messages may belong to.
    """

    def __init__(
        self, link: Link, target: Target, faults: Faults, transactions: Transactions
    ) -> None:
        self._transactions = transactions
        self._link = link
        self._target = target
        self._faults = faults
        self._gone: RefusedError | None = None
        link.accept(max_message_bytes=MAX_MESSAGE_BYTES)
        link.grant(_CREDIT)

    @property
    def path(self) -> str:
        """The entity's path."""
        return self._target.name

    def end(self, why: RefusedError) -> None:
        """Refuse the next message and detach the link, if its target was deleted.

        A disabled target stays attached: it refuses each message until it is enabled.
        """
        if why.condition is Condition.NOT_FOUND:
            self._gone = why

    def on_flow(self) -> None:
        """Do nothing: sending does not depend on the client's flow."""

    def on_delivery(self, delivery: Delivery) -> None:
        """Accept or refuse a message or batch, and settle it."""
        if self._link.credit < _CREDIT // 2:
            self._link.grant(_CREDIT - self._link.credit)
        is_batch = delivery.message_format == BATCH_FORMAT
        try:
            outcome = self._take(delivery, is_batch=is_batch)
        except RefusedError as error:
            delivery.settle(Rejected(amqp_error(error)))
            if error is self._gone and self._link.is_open:
                self._link.close(amqp_error(error))
        else:
            delivery.settle(outcome)

    def on_closed(self, *, dropped: bool) -> None:
        """Do nothing: there is no state to clean up."""

    def _take(self, delivery: Delivery, *, is_batch: bool) -> State:
        encoded, state = delivery.encoded, delivery.state
        if self._gone is not None:
            raise self._gone
        self._faults.check_send(self.path)
        check_size(encoded)
        parts = split_batch(encoded) if is_batch else [encoded]
        messages = [parse_message(part) for part in parts]
        if isinstance(state, Transactional):
            self._transactions.find(state.txn_id).send(self._target, messages)
            return Transactional(state.txn_id, Accepted())
        self._target.send(messages)
        return Accepted()
