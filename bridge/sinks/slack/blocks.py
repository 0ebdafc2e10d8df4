"""What Slack is sent: Block Kit, and text for notifications. Pure.

slack_sdk's classes write the blocks and check their limits; who configures no Slack
does not load them.

Source: docs.slack.dev/reference/block-kit
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from bridge.events.cloudevent import CloudEvent
from bridge.events.routing import resources_of
from bridge.sinks.base import ApprovalAddress
from bridge.sinks.slack.buttons import Action, Signer
from bridge.sinks.slack.card import Card, after, family_of, moment
from bridge.sinks.slack.phrases import names_of
from bridge.sinks.slack.terminal import command
from bridge.sinks.slack.text import Telling, tell, tell_card, tell_step

if TYPE_CHECKING:
    from slack_sdk.models.blocks import Block, ButtonElement, TextObject

ACTION_PREFIX = "sebridge-"
_MOST_FIELDS = 10
_LONGEST_CONFIRM = 300
_LONGEST_LIST = 2800
_FROM_TERMINAL = "Approve it from a terminal"
_CLI_HINT = "It cannot be approved from here; `sebridge approve` can."
_CONSEQUENCES: Mapping[Action, str] = {
    "approve": "It may begin at once, on all of",
    "refuse": "Until it changes, nobody can approve it from here. It concerns all of",
}
_STYLES: Mapping[Action, str] = {"approve": "primary", "refuse": "danger"}

Message = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """How a card looks.

    Attributes:
        until: when its buttons go, seconds since the epoch; None = it has none, or
            they go with the next step.
    """

    message: Message
    until: float | None


def render(
    event: CloudEvent,
    now: datetime | None = None,
    approvals: ApprovalAddress | None = None,
) -> Message:
    """Return the message for an event by itself.

    Args:
        event: what is told.
        now: when it is sent; None = when it was observed.
        approvals: where they are received; None = nowhere.
    """
    telling = tell(event, now)
    card = after(None, event) if family_of(event.type)[0] == "scheduledevent" else None
    at = now or moment(event.time)
    can_be = card is not None and at is not None and card.can_be_decided(at)
    hint = _hint(card.event, approvals) if card is not None and can_be else []
    return _message(telling, _blocks(telling, hint))


def _hint(
    event: Mapping[str, object], approvals: ApprovalAddress | None
) -> "list[Block]":
    """Say how an event is approved without a button, if it can be."""
    line = command(event, approvals)
    return [] if line is None else [_section(f"{_FROM_TERMINAL}: `{line}`")]


def render_step(event: CloudEvent, now: datetime) -> Message:
    """Return what the thread under the message of an EventId is told of an event."""
    telling = tell_step(event, now)
    return _message(telling, _blocks(telling))


def render_card(
    card: Card,
    now: datetime,
    signer: Signer | None,
    approvals: ApprovalAddress | None = None,
) -> Face:
    """Return the message of an EventId.

    Args:
        card: what it shows.
        now: when it is sent.
        signer: who signs buttons; None = there are to be none.
        approvals: where they are received; None = nowhere.
    """
    telling = tell_card(card, now)
    if not card.can_be_decided(now):
        return Face(message=_message(telling, _blocks(telling)), until=None)
    if signer is None:
        blocks = _blocks(telling, _hint(card.event, approvals))
        return Face(message=_message(telling, blocks), until=None)
    ballot = _ballot(card, signer)
    if ballot is None:
        hint = _hint(card.event, signer.address) or [_section(_CLI_HINT)]
        blocks = _blocks(telling, hint)
        return Face(message=_message(telling, blocks), until=None)
    until = moment(card.not_before)
    return Face(
        message=_message(telling, _blocks(telling, ballot)),
        until=until.timestamp() if until else None,
    )


def _message(telling: Telling, blocks: "Iterable[Block]") -> Message:
    return {
        "text": telling.headline,
        "blocks": [block.to_dict() for block in blocks],
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _blocks(telling: Telling, more: "Iterable[Block]" = ()) -> "list[Block]":
    from slack_sdk.models.blocks import ContextBlock, SectionBlock  # noqa: PLC0415 - an extra

    facts: list[str | TextObject] = [
        _text(f"*{name}*\n{value}") for name, value in telling.facts[:_MOST_FIELDS]
    ]
    blocks: list[Block] = [_section(f"{telling.sign} *{telling.headline}*")]
    if facts:
        blocks.append(SectionBlock(fields=facts))
    blocks.extend(_section(words) for words in telling.paragraphs)
    blocks.extend(more)
    blocks.append(ContextBlock(elements=[_text(telling.footer)]))
    return blocks


def _section(mrkdwn: str) -> "Block":
    from slack_sdk.models.blocks import SectionBlock  # noqa: PLC0415 - an extra

    return SectionBlock(text=_text(mrkdwn))


def _text(mrkdwn: str) -> "TextObject":
    from slack_sdk.models.blocks import MarkdownTextObject  # noqa: PLC0415 - an extra

    return MarkdownTextObject(text=mrkdwn, verbatim=True)  # no links by guessing


def _ballot(card: Card, signer: Signer) -> "list[Block] | None":
    """Return the buttons, and all names where no confirmation has room for them.

    None where a person could not see all that he decides on, or the app that takes
    the click could not read it.
    """
    from slack_sdk.models.blocks import ActionsBlock  # noqa: PLC0415 - an extra

    names = resources_of(card.event)
    if not names or not card.is_whole or card.event.get("Resources") != [*names]:
        return None
    listed = names_of(names)
    values = {action: signer.value(action, card.event) for action in _CONSEQUENCES}
    buttons = [
        _button(action, value, confirmation(action, listed, len(names)))
        for action, value in values.items()
        if value is not None
    ]
    if len(buttons) < len(values) or len(listed) > _LONGEST_LIST:
        return None
    is_short = all(listed in confirmation(a, listed, len(names)) for a in values)
    full = [] if is_short else [_section(f"*All {len(names)} machines*\n{listed}")]
    return [*full, ActionsBlock(elements=buttons)]


def confirmation(action: Action, listed: str, count: int) -> str:
    """Return what a person confirms: all names, or where all of them stand."""
    consequence = _CONSEQUENCES[action]
    text = f"{consequence}: {listed}."
    if len(text) <= _LONGEST_CONFIRM:
        return text
    return f"{consequence} the {count} machines that the message lists in full."


def _button(action: Action, value: str, words: str) -> "ButtonElement":
    from slack_sdk.models.blocks import (  # noqa: PLC0415 - an extra
        ButtonElement,
        ConfirmObject,
        PlainTextObject,
    )

    verb = action.capitalize()
    return ButtonElement(
        text=verb,
        action_id=f"{ACTION_PREFIX}{action}",
        value=value,
        style=_STYLES[action],
        confirm=ConfirmObject(
            title=f"{verb} the event?",
            text=PlainTextObject(text=words, emoji=False),
            confirm=verb,
            deny="Cancel",
            style=_STYLES[action],
        ),
    )
