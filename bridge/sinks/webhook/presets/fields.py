"""What presets read of an event, whatever IMDS may have put into it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.events.cloudevent import CloudEvent
from bridge.events.routing import resources_of

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The parts of an event that have a place in other people's schemas.

    Attributes:
        family: ``scheduledevent``, ``startrequest``, ``command``, ``bridge`` or
            ``document``.
        step: what happened, such as ``started``, ``relayed``, ``heartbeat``.
        raw: the IMDS object; empty where there is none.
        request: of an approval; else empty.
        reporter: the VM that tells.
        resources: names of VMs, as received.
        command: the name of its sink and what it was run for; "" = it is of none.
    """

    family: str
    step: str
    raw: Mapping[str, object]
    request: Mapping[str, object]
    reporter: Mapping[str, object]
    resources: tuple[str, ...]
    command: str = ""

    @property
    def headline(self) -> str:
        """One line that says what happened; its parts come from outside."""
        kind = text(self.raw.get("EventType")) or "Event of unknown type"
        if self.family == "scheduledevent":
            return f"{kind} {self.step}: {self._machines()}"
        if self.family == "startrequest":
            return f"Approval {self.step}" + (f": {kind}" if self.raw else "")
        if self.family == "command":
            return f"Command {self.command} {self.step}" + (
                f": {kind}" if self.raw else ""
            )
        return f"{self.family.capitalize()} {self.step}: {self._teller()}"

    def _machines(self) -> str:
        rest = len(self.resources) - _SHOWN
        shown = ", ".join(self.resources[:_SHOWN]) or "unknown machines"
        return shown + (f" and {rest} more" if rest > 0 else "")

    def _teller(self) -> str:
        return text(self.reporter.get("vmName")) or "unknown machine"


def facts(event: CloudEvent) -> Facts:
    """Read an event; whatever its data holds, this does not raise."""
    *_, family, step, _ = ("", "", *event.type.split("."))
    raw = table(event.data.get("event"))
    return Facts(
        family=family,
        step=step,
        raw=raw,
        request=table(event.data.get("request")),
        reporter=table(event.data.get("reporter")),
        resources=tuple(resources_of(raw)),
        command=" ".join(
            found for key in ("sink", "action") if (found := text(event.data.get(key)))
        ),
    )


def table(value: object) -> Mapping[str, object]:
    """Return a JSON object as it is, and anything else as an empty one."""
    return value if isinstance(value, Mapping) else {}


def text(value: object) -> str | None:
    """Return a string that says something, else None."""
    return value if isinstance(value, str) and value.strip() else None


def known(values: Mapping[str, object]) -> dict[str, object]:
    """Return what has a value: None, "" and what is empty mean unknown."""
    return {k: v for k, v in values.items() if v is not None and v not in ("", [], {})}
