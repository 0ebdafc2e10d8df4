"""The fields that presets read from an event, whatever its data holds. Pure."""

import re
from collections.abc import Mapping

from msgspec import Struct

from bridge.events.cloudevent import CloudEvent
from bridge.events.document import resources_of
from bridge.events.wording import family_of, headline, table

# Control characters except the line break, marks that change the writing direction,
# and lone surrogates.
_NOT_SHOWN = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff]"
)


class Facts(Struct, frozen=True, kw_only=True):
    """The parts of an event that many services have a field for.

    Attributes:
        family: ``scheduledevent``, ``startrequest``, ``command``, ``bridge`` or
            ``document``.
        step: what happened, such as ``started``, ``relayed``, ``heartbeat``.
        raw: the IMDS object; empty if there is none.
        request: the approval message; empty if there is none.
        reporter: the VM that publishes.
        resources: names of VMs, as received.
        command: the command's sink and its action; "" = it is not about a command.
        headline: what happened in one line; its parts are not escaped.
    """

    family: str
    step: str
    raw: Mapping[str, object]
    request: Mapping[str, object]
    reporter: Mapping[str, object]
    resources: tuple[str, ...]
    command: str = ""
    headline: str = ""


def facts(event: CloudEvent) -> Facts:
    """Read an event; never raises, whatever the data holds."""
    family, step = family_of(event)
    raw = table(event.data.get("event"))
    return Facts(
        family=family,
        step=step,
        raw=raw,
        request=table(event.data.get("request")),
        reporter=table(event.data.get("reporter")),
        resources=tuple(name for name in resources_of(raw) if name.strip()),
        command=" ".join(
            found for key in ("sink", "action") if (found := text(event.data.get(key)))
        ),
        headline=headline(event),
    )


def text(value: object) -> str | None:
    """Return a string that is not blank, else None."""
    return value if isinstance(value, str) and value.strip() else None


def known(values: Mapping[str, object]) -> dict[str, object]:
    """Return the items with a value: None, "" and empty values mean unknown."""
    return {k: v for k, v in values.items() if v is not None and v not in ("", [], {})}


def clipped(value: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters, all of which can be shown."""
    shown = _NOT_SHOWN.sub("\ufffd", value[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
