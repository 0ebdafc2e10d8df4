"""The check of the traffic probe, for ``sebridge check --connect``."""

from collections.abc import Mapping

from bridge.diagnostics.finding import Finding
from bridge.diagnostics.host_checks import listening_fault
from bridge.diagnostics.status_query import probed
from bridge.traffic.config import TrafficConfig

_START = "start the forwarder (Linux: systemctl start sebridge)"
_OTHER = (
    "if sebridge-traffic.socket holds the port, start the forwarder; otherwise use "
    "another port in traffic.listen, or stop the program that holds this one"
)
_RESTART = "restart the forwarder: it runs with another [traffic], or without one"


async def examine(config: TrafficConfig | None, *, is_running: bool) -> list[Finding]:
    """Request the probe as a balancer does; if nothing answers, find out why.

    Args:
        config: ``[traffic]``; None = no probe is configured.
        is_running: whether the forwarder answers at its health port.
    """
    if config is None or config.address[1] == 0:
        return []
    answer = await probed(config)
    if answer is not None:
        return [Finding(is_good=True, text=f"traffic: {config.listen} {_says(answer)}")]
    silent = f"traffic: no answer at {config.listen}: balancers treat this VM as out"
    fault = listening_fault(*config.address)
    if is_running:
        return [Finding(is_good=False, text=silent, advice=_RESTART)]
    if fault is None:
        return [Finding(is_good=True, is_warning=True, text=silent, advice=_START)]
    return [Finding(is_good=False, text=f"{silent} ({fault})", advice=_OTHER)]


def _says(answer: Mapping[str, object]) -> str:
    """Return the probe's answer and its reason as text."""
    why = " ".join(str(answer[key]) for key in ("reason", "eventId") if answer.get(key))
    return f"says {answer['traffic']}" + (f" ({why})" if why else "")
