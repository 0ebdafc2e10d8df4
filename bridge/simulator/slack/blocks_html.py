"""Render blocks and attachments as HTML. Pure; every posted text is escaped."""

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Final

from msgspec import Struct

from bridge.simulator.slack.mrkdwn import mrkdwn, plain

_COLOR: Final = re.compile(r"#?([0-9a-fA-F]{6}|[0-9a-fA-F]{3})")
_CLASSES: Final[Mapping[object, str]] = {
    "header": "head",
    "context": "context",
    "actions": "actions",
}
_COLORS: Final = {"good": "2eb886", "warning": "daa038", "danger": "a30200"}

Table = Mapping[str, object]


class Shown(Struct, frozen=True, kw_only=True):
    """The message whose blocks are shown.

    Attributes:
        now: seconds since the epoch.
    """

    ts: str
    channel: str
    now: float

    def blocks(self, blocks: Iterable[object]) -> str:
        """Return blocks as HTML."""
        return "".join(
            self._block(each) for each in blocks if isinstance(each, Mapping)
        )

    def attachment(self, attachment: Table) -> str:
        """Return an attachment as HTML, with a bar in its colour."""
        blocks, fields = attachment.get("blocks"), attachment.get("fields")
        parts = [
            self._words(attachment.get("pretext"), "div"),
            self._words(attachment.get("title"), "h3"),
            self._words(attachment.get("text"), "div"),
            self.blocks(blocks if isinstance(blocks, list) else ()),
            self._old_fields(fields if isinstance(fields, list) else ()),
            self._words(attachment.get("footer"), "div", "context"),
        ]
        words = "".join(parts) or self._words(attachment.get("fallback"), "div")
        kind = f"attachment {bar(attachment) or ''}".strip()
        return f'<div class="{kind}">{words}</div>'

    def text(self, text: object) -> str:
        """Return a text object as HTML."""
        if not isinstance(text, Mapping):
            return ""
        words = str(text.get("text", ""))
        if text.get("type") == "mrkdwn":
            return mrkdwn(words, self.now, is_verbatim=text.get("verbatim") is True)
        return plain(words, emoji=text.get("emoji") is not False)

    def _block(self, block: Table) -> str:
        kind = block.get("type")
        if kind == "divider":
            return "<hr>"
        if kind == "section":
            return self._section(block)
        return (
            f'<div class="block {_CLASSES.get(kind, "")}">{self._inside(block)}</div>'
        )

    def _inside(self, block: Table) -> str:
        match block.get("type"):
            case "header":
                return self.text(block.get("text"))
            case "context":
                return "".join(map(self._remark, _elements(block)))
            case "actions":
                return "".join(self._button(each, block) for each in _elements(block))
            case "image":
                return _image(block)
            case "markdown":
                return self._words(block.get("text"), "div")
        return f"[{escape(str(block.get('type')))}]"

    def _section(self, block: Table) -> str:
        text, fields, accessory = (
            block.get(name) for name in ("text", "fields", "accessory")
        )
        items = fields if isinstance(fields, list) else ()
        cells = "".join(f"<div>{self.text(each)}</div>" for each in items)
        grid = f'<div class="fields">{cells}</div>' if cells else ""
        body = f"<div>{self.text(text)}{grid}</div>"
        if not isinstance(accessory, Mapping):
            return f'<div class="block">{body}</div>'
        return f'<div class="block aside">{body}{self._element(accessory, block)}</div>'

    def _remark(self, element: Table) -> str:
        is_image = element.get("type") == "image"
        return f"<span>{_image(element) if is_image else self.text(element)}</span>"

    def _element(self, element: Table, block: Table) -> str:
        if element.get("type") == "image":
            return _image(element)
        return self._button(element, block)

    def _button(self, element: Table, block: Table) -> str:
        words = self.text(element.get("text"))
        if element.get("type") != "button":
            return f'<span class="image">{escape(str(element.get("type")))}</span>'
        confirm, style = element.get("confirm"), _style(element)
        if not isinstance(confirm, Mapping):
            return self._form(element, block, words, style)
        agreed = self.text(confirm.get("confirm"))
        dialog = (
            f"<h3>{self.text(confirm.get('title'))}</h3>"
            f"<p>{self.text(confirm.get('text'))}</p>"
            f"{self._form(element, block, agreed, _style(confirm) or 'primary')}"
            f' <span class="image">{self.text(confirm.get("deny"))}</span>'
        )
        return (
            f'<details><summary class="{style}">{words}</summary>'
            f'<div class="dialog">{dialog}</div></details>'
        )

    def _form(self, element: Table, block: Table, words: str, style: str) -> str:
        fields = {
            "channel": self.channel,
            "ts": self.ts,
            "blockId": block.get("block_id", ""),
            "actionId": element.get("action_id", ""),
        }
        hidden = "".join(
            f'<input type="hidden" name="{name}" value="{escape(str(value))}">'
            for name, value in fields.items()
        )
        return (
            f'<form method="post" action="/slack/click">{hidden}'
            f'<button class="{style}">{words}</button></form>'
        )

    def _words(self, text: object, tag: str, kind: str = "") -> str:
        if not isinstance(text, str) or not text:
            return ""
        start = f'<{tag} class="{kind}">' if kind else f"<{tag}>"
        return f"{start}{mrkdwn(text, self.now)}</{tag}>"

    def _old_fields(self, fields: Iterable[object]) -> str:
        cells = "".join(
            f"<div>{self._words(each.get('title'), 'b')}<br>"
            f"{self._words(each.get('value'), 'span')}</div>"
            for each in fields
            if isinstance(each, Mapping)
        )
        return f'<div class="block fields">{cells}</div>' if cells else ""


def bar(attachment: Table) -> str | None:
    """Return the class of an attachment's bar, such as ``bar-2eb886``."""
    given = attachment.get("color")
    color = _COLORS.get(given, given) if isinstance(given, str) else ""
    match = _COLOR.fullmatch(color)
    return f"bar-{match[1].lower()}" if match else None


def _style(element: Table) -> str:
    style = element.get("style")
    return style if isinstance(style, str) and style in {"primary", "danger"} else ""


def _image(block: Table) -> str:
    return f'<span class="image">{plain(str(block.get("alt_text", "image")))}</span>'


def _elements(block: Table) -> list[Table]:
    elements = block.get("elements")
    items = elements if isinstance(elements, list) else []
    return [each for each in items if isinstance(each, Mapping)]
