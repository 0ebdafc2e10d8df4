"""Microsoft Teams: an Adaptive Card for a workflow that is started by a webhook.

All text from outside is in text runs, which have no Markdown and cannot call the date
functions of a card. Every text is cut, so that the message stays below the 28 KB that
Teams accepts.

Source: https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors
        https://learn.microsoft.com/adaptive-cards/authoring-cards/text-features
"""

import re
from collections.abc import Iterator

import orjson

from bridge.events.cloudevent import CloudEvent, link_of
from bridge.events.wording import facts_of, machines_of, one_line
from bridge.sinks.webhook.presets.fields import Facts, facts, text
from bridge.sinks.webhook.presets.preset import JSON, Preset, Rendered

_MOST_NAMES = 10
_NAME, _LINE, _PARAGRAPH = 100, 300, 600
_LONG = {"Machines", "Description", "Because", "Reason", "Output"}
_COLORS = {"ERROR": "Attention", "WARN": "Warning"}


def render(event: CloudEvent) -> Rendered:
    """Return a message with one card."""
    message = {
        "type": "message",
        "attachments": [
            {
                "contentType": "application/vnd.microsoft.card.adaptive",
                "contentUrl": None,
                "content": _card(event),
            }
        ],
    }
    return dict(JSON), orjson.dumps(message)


def _card(event: CloudEvent) -> dict[str, object]:
    seen = facts(event)
    color = _COLORS.get(event.text("severitytext") or "", "Default")
    title = _run(_safe(seen.headline, _LINE), weight="Bolder", color=color)
    lines = [_line(title)]
    for name, value in _named(event, seen):
        lines.append(_line(_run(f"{name}: ", weight="Bolder"), _run(value)))
    lines.append(_line(_run(_footer(event, seen), isSubtle=True, size="Small")))
    link = link_of(event)
    opens = {"type": "Action.OpenUrl", "title": "Open", "url": link}
    return {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "fallbackText": _safe(seen.headline, _LINE),
        "msteams": {"width": "Full"},
        "body": lines,
        **({"actions": [opens]} if link else {}),
    }


def _named(event: CloudEvent, seen: Facts) -> Iterator[tuple[str, str]]:
    is_own = seen.family == "bridge"  # the other families are about an event
    own = ("Event", event.data.get("eventId") if is_own else None)
    machines = machines_of(seen.raw, _name, _MOST_NAMES) if seen.raw else ""
    for name, value in (*facts_of(event, machines), own):
        if (found := text(value)) is not None:
            yield name, _safe(found, _PARAGRAPH if name in _LONG else _LINE)


def _name(value: str) -> str:
    return _safe(value, _NAME - 20)


def _footer(event: CloudEvent, seen: Facts) -> str:
    vm_name = text(seen.reporter.get("vmName"))
    by = f", reported by {_safe(vm_name, _NAME)}" if vm_name else ""
    return _safe(event.subject or event.id, _NAME) + by


def _line(*runs: dict[str, object]) -> dict[str, object]:
    return {"type": "RichTextBlock", "inlines": list(runs)}


def _run(shown: str, **style: object) -> dict[str, object]:
    return {"type": "TextRun", "text": shown, **style}


def _safe(value: str, limit: int) -> str:
    """Return a text on one short line that calls no function of a card."""
    line = re.sub("{(?={)", "{\u200a", one_line(value, limit) or "-")  # a hair space
    return line if len(line) <= limit else line[: limit - 1] + "…"


PRESET = Preset(
    gets="an Adaptive Card, for the URL of a Teams workflow",
    render=render,
    is_open=True,  # the URL contains the signature
)
