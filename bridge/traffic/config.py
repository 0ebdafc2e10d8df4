"""``[traffic]``: when the probe says that this VM is out of rotation."""

from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit

from bridge.foundation.sections import Section
from bridge.foundation.values import Duration
from bridge.net.addresses import is_listen_address, split_address, target_fault

_LEAST_APP_TIMEOUT = 0.1
_LONGEST_APP_TIMEOUT = 60.0
_HERE = {"localhost", "127.0.0.1", "::1"}


class TrafficConfig(Section, frozen=True, kw_only=True):
    """``[traffic]``: leave the table out, and there is no probe.

    Attributes:
        listen: the address and port of the probe. Example: ``"0.0.0.0:9466"``.
        lead: the VM is out so long before NotBefore; at once where less is left.
        event_types: the types of events that take the VM out. Example: ``["Reboot",
            "Redeploy", "Preempt", "Terminate"]``.
        resume_after: the VM is in again so long after a document without the event.
        settle: a rule's approval waits until the probe has said so long that the VM is
            out, but for half of the notice left at most.
        app: a URL of the application's own health; "" is none. The probe says in only
            while that answers with 2xx. Example: ``"http://127.0.0.1:8080/health"``.
        app_timeout: how long the application may take to answer.
        on_unknown: what the probe says while IMDS cannot be asked and no event of this
            VM is known.
    """

    listen: str = "0.0.0.0:9466"
    lead: Duration = Duration(300)
    event_types: tuple[str, ...] = ("Reboot", "Redeploy", "Preempt", "Terminate")
    resume_after: Duration = Duration(30)
    settle: Duration = Duration(15)
    app: str = ""
    app_timeout: Duration = Duration(2)
    on_unknown: Literal["in", "out"] = "in"

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the addresses, and that there is something to go out for."""
        if not is_listen_address(self.listen):
            yield "listen", 'must be host:port, such as "0.0.0.0:9466"'
        if not self.event_types:
            yield "event_types", "must name a type: without one, leave [traffic] out"
        if not _LEAST_APP_TIMEOUT <= self.app_timeout <= _LONGEST_APP_TIMEOUT:
            yield "app_timeout", "must be from 100ms to 1m"
        if not self.app:
            return
        if what := target_fault(self.app):
            yield "app", what
        elif is_listen_address(self.listen) and self._is_asked_itself():
            yield "app", "must not be traffic.listen: the probe would ask itself"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the probe."""
        return split_address(self.listen)

    def _is_asked_itself(self) -> bool:
        url, (host, port) = urlsplit(self.app), self.address
        asked = url.port or (443 if url.scheme == "https" else 80)
        return asked == port and (url.hostname or "") in {*_HERE, host}
