"""What Slack's incoming webhook refuses, and in which words.

Pure. Only the limits that a message of blocks can break are checked here.

Source:  docs.slack.dev/reference/block-kit/blocks, and
         docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
"""

from collections.abc import Mapping
from typing import Final

_MOST_BLOCKS: Final = 50
_MOST_FIELDS: Final = 10
_MOST_ELEMENTS: Final = {"context": 10, "actions": 25}
_LONGEST: Final = {"section": 3000, "header": 150, "field": 2000, "button": 75}
_LONGEST_ID: Final = 255
_BLOCKS: Final = frozenset(
    {
        "actions",
        "context",
        "divider",
        "file",
        "header",
        "image",
        "input",
        "markdown",
        "rich_text",
        "section",
        "table",
        "video",
    }
)


def refusal(message: object) -> str | None:
    """Return the word with which Slack refuses a message; None: it takes it.

    Args:
        message: the body as JSON; text when it is none.
    """
    if not isinstance(message, Mapping):
        return "invalid_payload"
    text, blocks = message.get("text"), message.get("blocks")
    if not text and not blocks and not message.get("attachments"):
        return "no_text"
    if blocks is not None and not _are_blocks(blocks):
        return "invalid_blocks"
    return None


def _are_blocks(blocks: object) -> bool:
    if not isinstance(blocks, list) or len(blocks) > _MOST_BLOCKS:
        return False
    if not all(isinstance(block, Mapping) and _is_block(block) for block in blocks):
        return False
    ids = [block["block_id"] for block in blocks if "block_id" in block]
    return len(ids) == len({str(each) for each in ids})


def _is_block(block: Mapping[str, object]) -> bool:
    kind = block.get("type")
    if kind not in _BLOCKS or len(str(block.get("block_id", ""))) > _LONGEST_ID:
        return False
    match kind:
        case "section":
            return _is_section(block)
        case "header":
            return _is_text(block.get("text"), "header", {"plain_text"})
        case "context" | "actions":
            elements = block.get("elements")
            most = _MOST_ELEMENTS[kind]
            return isinstance(elements, list) and _are_elements(elements, most)
        case _:
            return True


def _is_section(block: Mapping[str, object]) -> bool:
    text, fields = block.get("text"), block.get("fields")
    if text is None and fields is None:
        return False
    if text is not None and not _is_text(text, "section"):
        return False
    if fields is None:
        return True
    if not isinstance(fields, list) or not 1 <= len(fields) <= _MOST_FIELDS:
        return False
    return all(_is_text(each, "field") for each in fields)


def _are_elements(elements: list[object], most: int) -> bool:
    return 1 <= len(elements) <= most and all(
        isinstance(element, Mapping)
        and isinstance(element.get("type"), str)
        and (
            element["type"] != "button"
            or _is_text(element.get("text"), "button", {"plain_text"})
        )
        for element in elements
    )


def _is_text(
    text: object,
    where: str,
    kinds: frozenset[str] | set[str] = frozenset({"plain_text", "mrkdwn"}),
) -> bool:
    if not isinstance(text, Mapping) or text.get("type") not in kinds:
        return False
    words = text.get("text")
    return isinstance(words, str) and 1 <= len(words) <= _LONGEST[where]
