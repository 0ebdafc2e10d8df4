"""Faults on demand, to test how a consumer reacts.

Lasting faults stay until they are ended, one by one or all by clear(). They concern the
whole broker, or one entity by its path. An unknown path raises RefusedError, so that a
misspelt path is noticed.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

from bridge.simulator.servicebus.values import Condition, RefusedError


class Control(Protocol):
    """What faults need from the broker."""

    def check_entity(self, path: str) -> None:
        """Refuse a path that belongs to no entity."""

    def drop_connections(self) -> None:
        """Break all connections."""

    def detach_links(self, path: str | None) -> None:
        """Detach the links of one entity, or of all."""

    def expire_locks(self, path: str) -> None:
        """Expire the locks of an entity."""

    def freeze(self, *, frozen: bool) -> None:
        """Stop reading and writing, or continue."""


class Faults:
    """The faults of one broker.

    Args:
        control: the broker to act on.

    Attributes:
        hold_session_locks: whether a broken connection leaves its session locks until
            they expire, as a strict model of the cloud; otherwise they end at once.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._refused: dict[str, RefusedError] = {}
        self._full: set[str] = set()
        self._busy_sends = 0
        self._reply_delay = timedelta()
        self._frozen = False
        self.hold_session_locks = False

    @property
    def reply_delay(self) -> timedelta:
        """How long everything that the broker sends is delayed."""
        return self._reply_delay

    @property
    def is_frozen(self) -> bool:
        """Whether the broker accepts connections but answers nothing."""
        return self._frozen

    def drop_connections(self) -> None:
        """Break all connections at once, without a close frame."""
        self._control.drop_connections()

    def detach_links(self, path: str | None = None) -> None:
        """Detach the links of one entity, or of all, like idle links in the cloud."""
        if path is not None:
            self._control.check_entity(path)
        self._control.detach_links(path)

    def expire_locks(self, path: str) -> None:
        """Expire all message and session locks of an entity now."""
        self._control.expire_locks(path)

    def refuse_attach(
        self, path: str, condition: Condition = Condition.ENTITY_DISABLED
    ) -> None:
        """Refuse every new sender and receiver of an entity."""
        self._control.check_entity(path)
        self._refused[path.lower()] = RefusedError(condition, f"{path} is out of order")

    def allow_attach(self, path: str) -> None:
        """End refuse_attach."""
        self._refused.pop(path.lower(), None)

    def busy_for_sends(self, count: int) -> None:
        """Answer the next ``count`` sends with "server busy"."""
        self._busy_sends = count

    def fill(self, path: str) -> None:
        """Answer every send to an entity with "full"."""
        self._control.check_entity(path)
        self._full.add(path.lower())

    def make_room(self, path: str) -> None:
        """End fill."""
        self._full.discard(path.lower())

    def delay_replies(self, delay: timedelta) -> None:
        """Delay everything that the broker sends; zero ends the delay."""
        self._reply_delay = delay

    def freeze(self) -> None:
        """Accept connections, but read nothing and answer nothing."""
        self._frozen = True
        self._control.freeze(frozen=True)

    def thaw(self) -> None:
        """End freeze: handle everything that has arrived meanwhile."""
        self._frozen = False
        self._control.freeze(frozen=False)

    def clear(self) -> None:
        """End all lasting faults."""
        self._refused.clear()
        self._full.clear()
        self._busy_sends = 0
        self._reply_delay = timedelta()
        self.hold_session_locks = False
        if self._frozen:
            self.thaw()

    def in_force(self) -> Mapping[str, object]:
        """Return the lasting faults, by their names over HTTP; empty: none."""
        found = {
            "refuse-attach": {
                path: str(error.condition) for path, error in self._refused.items()
            },
            "full": sorted(self._full),
            "server-busy": self._busy_sends,
            "delay": self._reply_delay.total_seconds(),
            "freeze": self._frozen,
            "hold-session-locks": self.hold_session_locks,
        }
        return {name: value for name, value in found.items() if value}

    def check_attach(self, path: str) -> None:
        """Check that an attach is allowed.

        Raises:
            RefusedError: a fault refuses it.
        """
        if (error := self._refused.get(path.lower())) is not None:
            raise error

    def check_send(self, path: str) -> None:
        """Check that a send is allowed; this counts down the sends with "server busy".

        Raises:
            RefusedError: a fault refuses it.
        """
        if self._busy_sends > 0:
            self._busy_sends -= 1
            raise RefusedError(Condition.SERVER_BUSY, "the server is busy")
        if path.lower() in self._full:
            raise RefusedError(Condition.RESOURCE_LIMIT_EXCEEDED, f"{path} is full")
