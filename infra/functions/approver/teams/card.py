"""The card of an event, for everybody and for the person who looks. Pure.

All text from outside is in text runs, which have no Markdown and cannot call the date
functions of a card; only our own times stand in text blocks. Every text is cut, so that
the card stays far below the 28 KB that Teams accepts.

Source: learn.microsoft.com/adaptive-cards/authoring-cards/universal-action-model,
        learn.microsoft.com/microsoftteams/platform/task-modules-and-cards/cards/
        universal-actions-for-adaptive-cards/overview
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from approver.ballots import Ballot, Mark
from approver.teams.wording import (
    LINE,
    NAME,
    PARAGRAPH,
    date_of,
    decided,
    headline,
    impact_of,
    machines,
    marked,
    safe,
    status_of,
    text_of,
)
from approver.vote_rules import digest

Block = dict[str, object]

_STYLES: Final = {
    "scheduled": "warning",
    "started": "attention",
    "completed": "good",
    "cancelled": "good",
}
_VERBS: Final = {"approve": "Approve", "refuse": "Refuse"}
_BUTTONS: Final = {"approve": "positive", "refuse": "destructive"}
_CONSEQUENCES: Final = {
    "approve": "Azure starts the event now, on all its machines",
    "refuse": "Nobody can approve it any more until it changes",
}
_MOST_USERS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a card is to show besides the event.

    Attributes:
        actions: the buttons: ``approve``, ``refuse``, or none.
        missing: what is still wanted for an approval.
        note: words for the person who looks; "" for everybody.
        users: Teams' ids of those for whom the card is refreshed by itself; none: all,
            if they are few.
    """

    actions: tuple[str, ...] = ()
    missing: str = ""
    note: str = ""
    users: Sequence[str] = ()


def render(ballot: Ballot, view: View) -> Block:
    """Return the card."""
    event_id = str(ballot.event.get("EventId"))
    return {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.5",
        "fallbackText": summary_of(ballot),
        "msteams": {"width": "Full"},
        "refresh": _refresh(event_id, view.users),
        "body": [_head(ballot), *_facts(ballot), *_story(ballot, view), _foot(ballot)],
        "actions": [_button(ballot, action, event_id) for action in view.actions],
    }


def summary_of(ballot: Ballot) -> str:
    """Return what notifications show of the card."""
    return f"{headline(ballot)}: {machines(ballot, most=3)}"


def _refresh(event_id: str, users: Sequence[str]) -> Block:
    action = {
        "type": "Action.Execute",
        "title": "Refresh",
        "verb": "look",
        "data": {"eventId": event_id},
    }
    return {"action": action, **({"userIds": users[:_MOST_USERS]} if users else {})}


def _head(ballot: Ballot) -> Block:
    style = _STYLES.get(status_of(ballot), "emphasis")
    title = _run(headline(ballot), weight="Bolder", size="Large")
    return {
        "type": "Container",
        "style": style,
        "bleed": True,
        "items": [_line(title), _line(_run(machines(ballot, most=3)))],
    }


def _facts(ballot: Ballot) -> Iterator[Block]:
    event = ballot.event
    if (at := date_of(ballot.not_before)) and status_of(ballot) == "scheduled":
        when = {"type": "TextBlock", "text": at, "wrap": True}
        yield _row("Not before", when)
    values = (
        ("Machines", machines(ballot) if len(ballot.names) > 3 else ""),
        ("Impact", impact_of(event)),
        ("Announced by", text_of(event.get("EventSource"), NAME)),
        ("Description", text_of(event.get("Description"), PARAGRAPH)),
    )
    for name, value in values:
        if value:
            yield _row(name, _line(_run(value)))


def _story(ballot: Ballot, view: View) -> Iterator[Block]:
    """Return what has happened, who decided, and the note for the person."""
    if len(ballot.trail) > 1:
        lines = [_mark(each) for each in ballot.trail]
        yield {
            "type": "Container",
            "spacing": "Medium",
            "separator": True,
            "items": lines,
        }
    if said := decided(ballot, view.missing):
        yield _line(_run(said, weight="Bolder"), spacing="Medium", separator=True)
    if view.note:
        yield _line(_run(view.note, color="Accent"), spacing="Medium")


def _mark(mark: Mark) -> Block:
    shown = date_of(mark.time, "COMPACT") or "-"
    at = {"type": "TextBlock", "text": shown, "isSubtle": True, "size": "Small"}
    return _columns(at, _line(_run(marked(mark), size="Small")))


def _foot(ballot: Ballot) -> Block:
    shown = safe(str(ballot.event.get("EventId")), LINE)
    return _line(_run(shown, isSubtle=True, size="Small"), spacing="Medium")


def _button(ballot: Ballot, action: str, event_id: str) -> Block:
    """Return a button that asks before it acts."""
    words = f"{_CONSEQUENCES[action]}: {machines(ballot)}."
    execute = {
        "type": "Action.Execute",
        "title": f"{_VERBS[action]} now",
        "verb": action,
        "style": _BUTTONS[action],
        "data": {"eventId": event_id, "digest": digest(ballot.event)},
    }
    return {
        "type": "Action.ShowCard",
        "title": _VERBS[action],
        "style": _BUTTONS[action],
        "card": {
            "type": "AdaptiveCard",
            "body": [_line(_run(words))],
            "actions": [execute],
        },
    }


def _row(name: str, value: Block) -> Block:
    return _columns(_line(_run(name, isSubtle=True)), value)


def _columns(name: Block, value: Block) -> Block:
    return {
        "type": "ColumnSet",
        "spacing": "Small",
        "columns": [
            {"type": "Column", "width": "130px", "items": [name]},
            {"type": "Column", "width": "stretch", "items": [value]},
        ],
    }


def _line(*runs: Block, **more: object) -> Block:
    return {"type": "RichTextBlock", "inlines": list(runs), **more}


def _run(shown: str, **style: object) -> Block:
    return {"type": "TextRun", "text": shown, **style}
