"""The section ``[traffic]``: when the probe takes this VM out of rotation."""

from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit

from bridge.events.vocabulary import DISRUPTIVE
from bridge.foundation.sections import Section
from bridge.foundation.values import Duration
from bridge.net.addresses import (
    ListenAddress,
    listen_addresses,
    listen_faults,
    target_fault,
)

_LEAST_APP_TIMEOUT = 0.1
_LONGEST_APP_TIMEOUT = 60.0
_HERE = {"localhost", "127.0.0.1", "::1"}


class TrafficConfig(Section, frozen=True, kw_only=True):
    """``[traffic]``: the probe for load balancers. Without this table, there is none.

    Attributes:
        listen: the address and port of the probe, or a list of them; [::] takes IPv4
            too. Example: ``"0.0.0.0:9466"``.
        lead: how long before NotBefore the VM goes out; at once if less time is left.
        event_types: the EventTypes that take the VM out. Example: ``["Reboot",
            "Redeploy", "Preempt", "Terminate"]``.
        resume_after: how long after the first document without the event the VM goes in
            again.
        settle: how long the probe must say "out" before the approval of a rule is sent;
            at most half of the time left until NotBefore.
        app: the URL of the application's health check; "" is none. The probe says "in"
            only if this URL answers with 2xx. Example:
            ``"http://127.0.0.1:8080/health"``.
        app_timeout: how long the application may take to answer.
        on_unknown: what the probe says while IMDS does not answer and no event of this
            VM is known.
    """

    listen: str | tuple[str, ...] = "0.0.0.0:9466"
    lead: Duration = Duration(300)
    event_types: tuple[str, ...] = DISRUPTIVE
    resume_after: Duration = Duration(30)
    settle: Duration = Duration(15)
    app: str = ""
    app_timeout: Duration = Duration(2)
    on_unknown: Literal["in", "out"] = "in"

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the addresses, the timeout, and that there is an EventType."""
        yield from listen_faults(self.listen, '"0.0.0.0:9466"')
        if not self.event_types:
            yield "event_types", "must name a type: without one, leave [traffic] out"
        if not _LEAST_APP_TIMEOUT <= self.app_timeout <= _LONGEST_APP_TIMEOUT:
            yield "app_timeout", "must be from 100ms to 1m"
        if not self.app:
            return
        if what := target_fault(self.app):
            yield "app", what
        elif self._checks_itself():
            yield "app", "must not be traffic.listen: the probe would ask itself"

    @property
    def addresses(self) -> tuple[ListenAddress, ...]:
        """The addresses of the probe."""
        return listen_addresses(self.listen)

    def _checks_itself(self) -> bool:
        url = urlsplit(self.app)
        asked = url.port or (443 if url.scheme == "https" else 80)
        return any(
            asked == one.port and (url.hostname or "") in {*_HERE, one.host}
            for one in self.addresses
        )
