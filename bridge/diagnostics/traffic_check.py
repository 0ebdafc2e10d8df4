"""Whether the traffic probe answers: what ``sebridge check --connect`` says of it."""

from collections.abc import Mapping

from bridge.diagnostics.host_checks import Finding, listening_fault
from bridge.diagnostics.status_query import probed
from bridge.traffic.config import TrafficConfig

_START = "start the forwarder (Linux: systemctl start sebridge)"
_OTHER = (
    "start the forwarder, if it is sebridge-traffic.socket that holds it; else name "
    "another in traffic.listen, or stop what has it"
)
_RESTART = "restart the forwarder: it runs with another [traffic], or without"


async def examine(config: TrafficConfig | None, *, is_running: bool) -> list[Finding]:
    """Ask the probe as a balancer does, and say why nobody answers.

    Args:
        config: ``[traffic]``; None: there is no probe, and nothing to be said.
        is_running: whether the forwarder answers at its health port.
    """
    if config is None or config.address[1] == 0:
        return []
    answer = await probed(config)
    if answer is not None:
        return [Finding(is_good=True, text=f"traffic: {config.listen} {_says(answer)}")]
    silent = f"traffic: nobody answers at {config.listen}: to balancers this VM is out"
    fault = listening_fault(*config.address)
    if is_running:
        return [Finding(is_good=False, text=silent, advice=_RESTART)]
    if fault is None:
        return [Finding(is_good=True, is_warning=True, text=silent, advice=_START)]
    return [Finding(is_good=False, text=f"{silent} ({fault})", advice=_OTHER)]


def _says(answer: Mapping[str, object]) -> str:
    """Return what the probe says, and why."""
    why = " ".join(str(answer[key]) for key in ("reason", "eventId") if answer.get(key))
    return f"says {answer['traffic']}" + (f" ({why})" if why else "")
