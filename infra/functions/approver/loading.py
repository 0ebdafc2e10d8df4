"""Parse JSON from outside, with a limit of its depth. Pure."""

import json
from typing import Final

from approver.errors import UnreadableError

MOST_LEVELS: Final = 100
"""An event of the bridge has at most 80.

Values are copied and written again by functions that call themselves for each level:
at several hundred they fail.
"""


def load(body: bytes | str, what: str) -> object:
    """Return a JSON value.

    Args:
        body: the text of the value.
        what: what the text is, for errors.

    Raises:
        UnreadableError: it is not JSON, or has more than ``MOST_LEVELS`` levels.
    """
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{what} is not JSON") from error
    if _is_deep(found):
        raise UnreadableError(f"{what} is nested more than {MOST_LEVELS} levels deep")
    return found


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [
            child
            for each in level
            if isinstance(each, (dict, list))
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return any(isinstance(each, (dict, list)) for each in level)
