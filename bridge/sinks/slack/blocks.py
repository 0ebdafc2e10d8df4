"""The messages for Slack: Block Kit, and text for notifications. Pure.

slack_sdk's classes write the blocks and check their limits. They are loaded only if
Slack is configured.

Source: docs.slack.dev/reference/block-kit
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from bridge.events.cloudevent import CloudEvent, hash32
from bridge.events.document import resources_of
from bridge.events.wording import family_of
from bridge.sinks.base import ApprovalAddress
from bridge.sinks.slack.card import Card, after, moment
from bridge.sinks.slack.text import (
    Wording,
    describe,
    describe_card,
    describe_step,
    names_of,
)

# -- The value of an Approve or Refuse button, for the app that receives the click.
#    Pure
#
#     value     the hex of HMAC-SHA256 of "sebridge-button-v1:" and json, ".", and json
#     json      an object without white space, in ASCII, with exactly these members
#     action    "approve" or "refuse"
#     digest    of the event as shown, see ``digest``
#     eventId   as received
#     replyTo   the approval entity
#     session   ReplyToSessionId; null if the entity has no sessions
#
# Source: infra/functions/approver/buttons.py, which reads it;
# docs.slack.dev/reference/block-kit/block-elements/button-element (2,000 characters).


Action = Literal["approve", "refuse"]

LEAST_SECRET = 32
MOST_CHARACTERS = 2000
_DOMAIN = b"sebridge-button-v1:"
_TERMS = ("DurationInSeconds", "EventSource", "EventType", "NotBefore")
_HIDDEN = "<signature>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """Signs buttons, and names the approval entity in them.

    Attributes:
        address: the approval entity.
        secret: shared with the app that receives clicks; None shows no signature.
    """

    address: ApprovalAddress
    secret: str | None = field(repr=False)

    def value(self, action: Action, event: Mapping[str, object]) -> str | None:
        """Return the value of a button for an event; None = too long for Slack.

        Args:
            action: what a click requests.
            event: the IMDS object as shown.
        """
        members = {
            "action": action,
            "digest": digest(event),
            "eventId": event.get("EventId"),
            "replyTo": self.address.entity,
            "session": self.address.session,
        }
        text = json.dumps(members, separators=(",", ":"))
        value = f"{self._signature(text)}.{text}"
        return value if len(value) <= MOST_CHARACTERS else None

    def _signature(self, text: str) -> str:
        if self.secret is None:
            return _HIDDEN
        key, signed = self.secret.encode(), _DOMAIN + text.encode()
        return hmac.new(key, signed, hashlib.sha256).hexdigest()


def digest(event: Mapping[str, object]) -> str:
    """Return the fingerprint of what a person approves.

    The hash32 of DurationInSeconds, EventSource, EventType, NotBefore (null where
    absent) and Resources (sorted). EventStatus and Description are not part of it.
    """
    names = event.get("Resources")
    resources = sorted(map(str, names)) if isinstance(names, list) else []
    return hash32([*(event.get(name) for name in _TERMS), resources])


# -- The messages for Slack: Block Kit, and text for notifications. Pure ---------------


if TYPE_CHECKING:
    from slack_sdk.models.blocks import Block, ButtonElement, TextObject

ACTION_PREFIX = "sebridge-"
_MOST_FIELDS = 10
_LONGEST_CONFIRM = 300
_LONGEST_LIST = 2800
_FROM_TERMINAL = "Approve it from a terminal"
_CLI_HINT = "It cannot be approved in Slack. Use `sebridge approve`."
_CONSEQUENCES: Mapping[Action, str] = {
    "approve": "It may start at once on all of",
    "refuse": "Until it changes, nobody can approve it in Slack. It affects all of",
}
_STYLES: Mapping[Action, str] = {"approve": "primary", "refuse": "danger"}

Message = dict[str, object]


class Face(Struct, frozen=True, kw_only=True):
    """A card, ready to be posted.

    Attributes:
        until: when its buttons must be removed, seconds since the epoch; None = there
            are none, or the next step removes them.
    """

    message: Message
    until: float | None


def render(
    event: CloudEvent,
    now: datetime | None = None,
    approvals: ApprovalAddress | None = None,
) -> Message:
    """Return a message for one event alone.

    Args:
        event: the event.
        now: when the message is sent; None = when the event was observed.
        approvals: the approval entity; None = there is none.
    """
    wording = describe(event, now)
    card = after(None, event) if family_of(event)[0] == "scheduledevent" else None
    at = now or moment(event.time)
    can_be = card is not None and at is not None and card.can_be_decided(at)
    hint = _hint(card.event, approvals) if card is not None and can_be else []
    return _message(wording, _blocks(wording, hint))


def _hint(
    event: Mapping[str, object], approvals: ApprovalAddress | None
) -> "list[Block]":
    """Say how to approve an event without a button, if it can be approved."""
    line = command(event, approvals)
    return [] if line is None else [_section(f"{_FROM_TERMINAL}: `{line}`")]


def render_step(event: CloudEvent, now: datetime) -> Message:
    """Return the reply in the thread of an EventId for one event."""
    wording = describe_step(event, now)
    return _message(wording, _blocks(wording))


def render_card(
    card: Card,
    now: datetime,
    signer: Signer | None,
    approvals: ApprovalAddress | None = None,
) -> Face:
    """Return the message of an EventId.

    Args:
        card: the content.
        now: when the message is sent.
        signer: signs the buttons; None = no buttons.
        approvals: the approval entity; None = there is none.
    """
    wording = describe_card(card, now)
    if not card.can_be_decided(now):
        return Face(message=_message(wording, _blocks(wording)), until=None)
    if signer is None:
        blocks = _blocks(wording, _hint(card.event, approvals))
        return Face(message=_message(wording, blocks), until=None)
    ballot = _ballot(card, signer)
    if ballot is None:
        hint = _hint(card.event, signer.address) or [_section(_CLI_HINT)]
        blocks = _blocks(wording, hint)
        return Face(message=_message(wording, blocks), until=None)
    until = moment(card.not_before)
    return Face(
        message=_message(wording, _blocks(wording, ballot)),
        until=until.timestamp() if until else None,
    )


def _message(wording: Wording, blocks: "Iterable[Block]") -> Message:
    return {
        "text": wording.headline,
        "blocks": [block.to_dict() for block in blocks],
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _blocks(wording: Wording, more: "Iterable[Block]" = ()) -> "list[Block]":
    from slack_sdk.models.blocks import ContextBlock, SectionBlock  # noqa: PLC0415 - an extra

    facts: list[str | TextObject] = [
        _text(f"*{name}*\n{value}") for name, value in wording.facts[:_MOST_FIELDS]
    ]
    blocks: list[Block] = [_section(f"{wording.sign} *{wording.headline}*")]
    if facts:
        blocks.append(SectionBlock(fields=facts))
    blocks.extend(_section(words) for words in wording.paragraphs)
    blocks.extend(more)
    more_of_it = [_text(_link(wording.link))] if wording.link else []
    blocks.append(ContextBlock(elements=[_text(wording.footer), *more_of_it]))
    return blocks


def _link(url: str) -> str:
    escaped = url.replace("&", "&amp;")  # there is no other sign of markup in it
    return f"<{escaped}|Open>"


def _section(mrkdwn: str) -> "Block":
    from slack_sdk.models.blocks import SectionBlock  # noqa: PLC0415 - an extra

    return SectionBlock(text=_text(mrkdwn))


def _text(mrkdwn: str) -> "TextObject":
    from slack_sdk.models.blocks import MarkdownTextObject  # noqa: PLC0415 - an extra

    return MarkdownTextObject(text=mrkdwn, verbatim=True)  # Slack must guess no links


def _ballot(card: Card, signer: Signer) -> "list[Block] | None":
    """Return the buttons, and a list of all names if the confirmation is too short.

    None if a person could not see everything the decision is about, or if the app that
    receives the click could not read the value.
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
    """Return the text to confirm: with all names, or with the number of VMs."""
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


# -- The command that approves an event in a terminal, for Slack messages. Pure --------


# Words that need no quotes in any shell, are no option, and contain no markup.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")


def command(event: Mapping[str, object], address: ApprovalAddress | None) -> str | None:
    """Return the command that approves an event; None if it could not be copied safely.

    Args:
        event: the IMDS object.
        address: the approval entity; None = there is none.
    """
    if address is None or not _is_plain(event_id := event.get("EventId")):
        return None
    if address.session is None:
        return f"sebridge approve {event_id}"
    if not _is_plain(address.session):
        return None
    return f"sebridge approve {event_id} --session {address.session}"


def _is_plain(word: object) -> bool:
    return isinstance(word, str) and bool(_PLAIN.fullmatch(word))
