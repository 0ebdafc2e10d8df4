"""What Slack's incoming webhook checks of a message before it says ``ok``.

Source: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
        and the Block Kit reference's limits.
"""

from collections.abc import Mapping

_MOST_BLOCKS = 50
_TEXT_LIMITS = {"section": 3000, "header": 150}
_MOST_FIELDS = 10
_FIELD_LIMIT = 2000


def fault_of(body: object) -> str | None:
    """Return Slack's word for what is wrong with a message; None = nothing."""
    if not isinstance(body, Mapping):
        return "invalid_payload"
    blocks = body.get("blocks")
    if not body.get("text") and not blocks:
        return "no_text"
    if blocks is None:
        return None
    if not isinstance(blocks, list) or len(blocks) > _MOST_BLOCKS:
        return "invalid_blocks"
    is_good = all(isinstance(block, Mapping) and _is_good(block) for block in blocks)
    return None if is_good else "invalid_blocks"


def _is_good(block: Mapping[str, object]) -> bool:
    kind = str(block.get("type"))
    fields = block.get("fields") or []
    if not isinstance(fields, list) or len(fields) > _MOST_FIELDS:
        return False
    if not all(_fits(part, _FIELD_LIMIT) for part in fields):
        return False
    if kind == "section" and fields and "text" not in block:
        return True
    limit = _TEXT_LIMITS.get(kind)
    return limit is None or _fits(block.get("text"), limit)


def _fits(part: object, limit: int) -> bool:
    text = part.get("text") if isinstance(part, Mapping) else None
    return isinstance(text, str) and 0 < len(text) <= limit
