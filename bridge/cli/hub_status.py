"""``sebridge status --hub``: print the open events and the bridges of a fleet."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bridge.cli.hub_client import HubBridge, HubEvent, open_hub
from bridge.foundation.printable import printable

_MOST_NAMES = 20
_HEADS = ("NOT BEFORE", "TYPE", "STATUS", "MACHINES", "APPROVAL", "EVENTID")
_STANDS = {"decided", "sending", "sent", "done"}  # later votes do not replace it

Paint = Callable[[str, str], str]


async def fetch(url: str, scope: str | None) -> dict[str, Any]:
    """Read the open events and the states of the bridges from a hub.

    Raises:
        BridgeError: the hub does not answer, or refuses the request.
    """
    async with open_hub(url, scope) as hub:
        events = await hub.pages("/api/v1/events", "events", HubEvent, open="true")
        bridges = await hub.pages("/api/v1/bridges", "bridges", HubBridge)
    counts = Counter(one["state"] for one in bridges)
    silent = [one for one in bridges if one["state"] == "silent"]
    return {
        "hub": url,
        "events": sorted(events, key=lambda one: one["notBefore"] or ""),
        "bridges": {"count": len(bridges), "states": dict(counts), "silent": silent},
    }


def lines(found: dict[str, Any], paint: Paint) -> Iterator[str]:
    """Yield the lines of the status."""
    events, bridges = found["events"], found["bridges"]
    yield f"Hub {found['hub']}"
    states = ", ".join(f"{n} {state}" for state, n in sorted(bridges["states"].items()))
    yield f"Bridges: {states or 'none was heard yet'}"
    if silent := bridges["silent"]:
        names = ", ".join(_name(one) for one in silent[:_MOST_NAMES])
        rest = len(silent) - _MOST_NAMES
        more = f" and {rest} more" if rest > 0 else ""
        yield paint(printable(f"Silent: {names}{more}"), "bad")
    late = sum(1 for one in events if one["unreported"])
    if late:
        yield paint(f"Reported by Azure, but by no bridge: {late}", "bad")
    yield ""
    if not events:
        yield "Nothing is announced"
        return
    yield from _table([_HEADS, *(_cells(one) for one in events)])


def _name(bridge: dict[str, Any]) -> str:
    return str(bridge["vmName"] or bridge["vmId"])


def _cells(event: dict[str, Any]) -> tuple[str, ...]:
    machines = event["machines"]
    more = f" +{len(machines) - 2}" if len(machines) > 2 else ""
    return (
        event["notBefore"] or "-",
        event["eventType"] or "-",
        event["status"],
        ", ".join(machines[:2]) + more or "-",
        _approval(event["approval"]),
        event["eventId"],
    )


def _approval(approval: dict[str, Any]) -> str:
    """Return the decision and the votes, by channel: each channel has its own."""
    decision, counts = (
        approval["decision"],
        Counter(v["via"] for v in approval["votes"]),
    )
    found = [f"{counts['bridge']} voted"] if counts["bridge"] else []
    found += [f"{counts['arm']} voted through ARM"] if counts["arm"] else []
    if decision is not None and (not found or decision["state"] in _STANDS):
        text = f"{decision['decision']}: {decision['state']}"
        found = [text] if decision["state"] == "done" else [text, *found]
    return ", ".join(found) or "-"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    plain = [[printable(cell) for cell in row] for row in rows]
    sizes = [max(map(len, column)) for column in zip(*plain, strict=True)]
    for row in plain:
        cells = (cell.ljust(size) for cell, size in zip(row, sizes, strict=True))
        yield "  ".join(cells).rstrip()
