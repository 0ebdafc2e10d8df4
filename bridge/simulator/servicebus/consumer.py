"""The link by which a client receives from a queue or from one of its sessions.

When the lock on a session ends, other receivers can lock the session at once, and its
messages can no longer be settled. The link is detached a little later, as in the cloud.
So a client that waits for exactly the lock duration, as the SDK's own tests do, gets no
error if it has lost an empty session.
"""

import asyncio
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from msgspec import Struct

from bridge.simulator.servicebus.endpoints import Delivery, Link
from bridge.simulator.servicebus.faults import Faults
from bridge.simulator.servicebus.queues import Queue
from bridge.simulator.servicebus.sessions import SessionLock, check_session_id
from bridge.simulator.servicebus.transactions import Transactions, apply_outcome, echo
from bridge.simulator.servicebus.values import Condition, RefusedError, amqp_error
from bridge.simulator.servicebus.wire import encode_delivery
from bridge.simulator.wire.outcomes import Received, Rejected, State, Transactional
from bridge.simulator.wire.values import Described, Symbol, ULong

_DETACHED_AFTER_SECONDS = 2.0


class Owner(Protocol):
    """The connection of a link."""

    def flush(self) -> None:
        """Write everything that is ready to be sent."""


class Keeper(Protocol):
    """Keeps the links of a connection."""

    @property
    def transactions(self) -> Transactions:
        """The transactions of the connection."""

    def touch(self) -> None:
        """Write the output to the client at the end of the turn."""

    def close(self, link: Link) -> None:
        """Remove a closed link."""


class Consumer:
    """Sends messages on one link, as many as it has credit for.

    Args:
        link: the link that the client has attached; it is not answered yet.
        queue: the source of the messages.
        owner: the connection of the link.
        faults: decide whether a session lock outlives a broken connection.
        keeper: holds the link, and writes to the client.
    """

    def __init__(
        self,
        link: Link,
        queue: Queue,
        *,
        owner: Owner,
        faults: Faults,
        keeper: Keeper,
    ) -> None:
        self.queue = queue
        self._link = link
        self._owner = owner
        self._faults = faults
        self._keeper = keeper
        self._session_id: str | None = None
        self._detaching: asyncio.TimerHandle | None = None
        self._deletes = link.is_presettled
        self._is_using = False

    @property
    def session_id(self) -> str | None:
        """The session that the link receives from; None: it has none."""
        return self._session_id

    @property
    def path(self) -> str:
        """The entity's path."""
        return self.queue.name

    def attach(self) -> None:
        """Accept the link: it receives from the whole queue."""
        self._begin()
        self._link.accept()

    def attach_to_session(self, session_id: str | None) -> bool:
        """Accept the link if the session is free now.

        Args:
            session_id: the wanted session; None: the next available one.

        Returns:
            Whether the link has a session.

        Raises:
            RefusedError: another receiver holds the session.
        """
        lock = self.queue.accept_session(session_id, self._owner, self._lose_session)
        if lock is None:
            return False
        self._session_id = lock.session_id
        self._begin()
        accept_session(self._link, lock)
        self._keeper.touch()
        return True

    def give_up(self) -> None:
        """Refuse the link: no session has become available in time."""
        timed_out = RefusedError(Condition.TIMEOUT, "no session has become available")
        self._link.refuse(amqp_error(timed_out))
        self._keeper.close(self._link)
        self._keeper.touch()

    def serve(self) -> bool:
        """Send the next message to the client; return whether there was one."""
        if self._link.credit <= 0 or not self._link.is_open or self._detaching:
            return False
        taken = self.queue.receive(self._session_id, delete=self._deletes)
        if taken is None:
            return False
        tag = b"" if taken.lock_token is None else tag_of(taken.lock_token)
        self._link.send(tag, encode_delivery(taken), taken.lock_token)
        self._keeper.touch()
        return True

    def on_flow(self) -> None:
        """Send what is available, and return unused credit if requested."""
        while self.serve():
            pass
        self._link.drained()

    def on_delivery(self, delivery: Delivery) -> None:
        """Settle a message with the client's outcome, and confirm it."""
        state = delivery.state
        if isinstance(state, Received | None) and not delivery.is_settled:
            return
        try:
            if delivery.token is not None:
                self._settle(delivery.token, state)
        except RefusedError as error:
            delivery.settle(Rejected(amqp_error(error)))
        else:
            delivery.settle(echo(state))

    def _settle(self, token: UUID, state: State | None) -> None:
        if not isinstance(state, Transactional):
            apply_outcome(self.queue, token, state)
        elif state.outcome is not None:
            transaction = self._keeper.transactions.find(state.txn_id)
            transaction.settle(self.queue, token, state.outcome)

    def on_closed(self, *, dropped: bool) -> None:
        """Release the session; locks on messages stay until they expire."""
        held_over = dropped and self._faults.hold_session_locks
        if self._session_id is not None and not held_over:
            self.queue.sessions.release(self._session_id, self._owner)
        self._session_id = None
        if self._detaching is not None:
            self._detaching.cancel()
        if self._is_using:
            self._is_using = False
            self.queue.use.end()

    def detach_if_lost(self) -> None:
        """Detach the link now, if the lock on its session has ended."""
        if self._detaching is None:
            return
        self._detaching.cancel()
        lost = RefusedError(
            Condition.SESSION_LOCK_LOST, "the lock on the session has expired"
        )
        self._link.close(amqp_error(lost))
        self._keeper.close(self._link)
        self._owner.flush()

    def _begin(self) -> None:
        self._is_using = True
        self.queue.use.begin()

    def _lose_session(self) -> None:
        # None: the connection broke, and a fault kept the lock (hold_session_locks).
        if self._session_id is None:
            return
        self._session_id = None
        loop = asyncio.get_running_loop()
        self._detaching = loop.call_later(_DETACHED_AFTER_SECONDS, self.detach_if_lost)


# -- Check the attach of a link, and read its request for a session --------------------
#
# Source: azure-servicebus 7.15, which sends these filters and properties and reads
# these.


_SESSION_FILTER = Symbol("com.microsoft:session-filter")
_SESSION_FILTER_CODE = ULong(0x137000000C)
_LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
_SELECTOR = "jms-selector"
_SELECTOR_TYPES = (0x468C00000004, "apache.org:selector-filter:string")
_TIMEOUT = Symbol("com.microsoft:timeout")
_DEFAULT_TIMEOUT = timedelta(seconds=65)
_TICKS_AT_EPOCH = 621_355_968_000_000_000
_TICKS_PER_SECOND = 10_000_000


class SessionRequest(Struct, frozen=True, kw_only=True):
    """A receiver's request for a session.

    Attributes:
        session_id: the wanted session; None: the next available one.
        timeout: how long the receiver waits for the next available session.
    """

    session_id: str | None
    timeout: timedelta


def check_attach(link: Link) -> None:
    """Check that the attach has an address, and no unsupported source or target.

    Raises:
        RefusedError: the address is missing, or the link asks for a new entity, wants
            copies or has a selector; or the engine knows no transactions.
    """
    if link.is_coordinator and not link.can_transact:
        raise RefusedError(
            Condition.NOT_IMPLEMENTED, "this engine does not support transactions"
        )
    if link.is_sender:
        _check_selection(link)
    if link.is_dynamic:
        raise RefusedError(
            Condition.NOT_IMPLEMENTED, "this broker makes no entities for a link"
        )
    if link.is_coordinator:
        return
    if not (link.source if link.is_sender else link.target):
        raise RefusedError(
            Condition.NOT_ALLOWED,
            "an anonymous link is not supported: its address has to name a queue, "
            "topic or subscription",
        )


def _check_selection(link: Link) -> None:
    """Refuse what would not be obeyed: a browser would delete messages."""
    if link.is_browser:
        raise RefusedError(
            Condition.NOT_IMPLEMENTED,
            "the distribution-mode 'copy' is not supported: peek instead of browsing",
        )
    for name, given in link.filters.items():
        descriptor = given.descriptor if isinstance(given, Described) else None
        if name == _SELECTOR or descriptor in _SELECTOR_TYPES:
            raise RefusedError(
                Condition.NOT_IMPLEMENTED,
                f"the filter {name!r} is not supported: use a rule of a subscription",
            )


def session_request(link: Link) -> SessionRequest | None:
    """Return the receiver's request for a session; None: it requests no session.

    Raises:
        RefusedError: the session id is not a text, or is too long.
    """
    if _SESSION_FILTER not in link.filters:
        return None
    wanted = link.filters[_SESSION_FILTER]
    milliseconds = link.properties.get(_TIMEOUT)
    timeout = (
        timedelta(milliseconds=milliseconds)
        if isinstance(milliseconds, int)
        else _DEFAULT_TIMEOUT
    )
    if isinstance(wanted, Described):  # AMQP requires it; plain values are accepted
        if wanted.descriptor not in {_SESSION_FILTER_CODE, _SESSION_FILTER}:
            raise RefusedError(
                Condition.NOT_IMPLEMENTED,
                f"a session filter of the unknown type {wanted.descriptor!r}",
            )
        wanted = wanted.value
    if not isinstance(wanted, str | None):
        raise RefusedError(
            Condition.ARGUMENT_ERROR, "a session filter is a text, or null for any"
        )
    check_session_id(wanted)
    return SessionRequest(session_id=wanted, timeout=timeout)


def accept_session(link: Link, lock: SessionLock) -> None:
    """Accept an attach, with the id of its session and the end of the lock.

    The filter has the form of the client's. AMQP 1.0, 3.5.8 requires a described value,
    and the client of Go drops its whole connection at a plain one. The clients of .NET,
    Java and JavaScript send a plain one, and take a described one for another session.
    """
    is_described = isinstance(link.filters[_SESSION_FILTER], Described)
    session: object = lock.session_id
    if is_described:
        session = Described(_SESSION_FILTER_CODE, lock.session_id)
    ticks = _TICKS_AT_EPOCH + round(lock.until * 1000) * (_TICKS_PER_SECOND // 1000)
    link.accept(filters={_SESSION_FILTER: session}, properties={_LOCKED_UNTIL: ticks})


def tag_of(token: UUID) -> bytes:
    """Return the delivery tag of a lock token."""
    return token.bytes_le
