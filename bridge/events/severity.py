"""How severe an event is. Pure."""

from bridge.events.transitions import Transition
from bridge.events.vocabulary import DISRUPTIVE, TransitionKind

_NUMBERS = {"INFO": 9, "WARN": 13, "ERROR": 17}


def severity_of(transition: Transition) -> str:
    """Return how severe a transition is: INFO, WARN or ERROR."""
    kind, event = transition.kind, transition.event
    if kind is TransitionKind.ENDED:
        return "WARN"
    has_impact = {TransitionKind.SCHEDULED, TransitionKind.STARTED}
    if kind not in has_impact or event.duration == 0:
        return "INFO"
    return "ERROR" if event.event_type in DISRUPTIVE else "WARN"


def severity(text: str) -> dict[str, str | int]:
    """Return the extension attributes for a severity: INFO, WARN or ERROR."""
    return {"severitytext": text, "severitynumber": _NUMBERS[text]}
