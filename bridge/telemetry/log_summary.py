"""Sums up what libraries log again and again: one line, and then how often.

A server that finds no file descriptor logs a traceback at each try, thousands a second;
a disk full of them ends more than the log.
"""

import logging
from dataclasses import dataclass

_EVERY = 60.0
_MOST_KINDS = 256
_OWN = "bridge"


@dataclass(slots=True)
class _Kind:
    """Lines that say the same.

    Attributes:
        first: the one that was written last.
        left_out: how many were not written since then.
    """

    first: logging.LogRecord
    left_out: int = 0


class RepeatFilter(logging.Filter):
    """Lets a line of a library through once a minute, with how many were left out.

    Lines say the same if they come from the same logger, begin with the same line and
    carry the same type of error. What the bridge itself logs is left alone.
    """

    def __init__(self, every: float = _EVERY) -> None:
        super().__init__()
        self._every = every
        self._kinds: dict[tuple[object, ...], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a record is written."""
        if hasattr(record, "repeated"):  # a sum of our own
            return True
        for key in [
            k for k, kind in self._kinds.items() if self._is_over(kind, record)
        ]:
            self._sum_up(self._kinds.pop(key))
        if record.name.partition(".")[0] == _OWN:
            return True
        key = _key(record)
        if known := self._kinds.get(key):
            known.left_out += 1
            return False
        if len(self._kinds) >= _MOST_KINDS:
            self._sum_up(self._kinds.pop(next(iter(self._kinds))))
        self._kinds[key] = _Kind(record)
        return True

    def _is_over(self, kind: _Kind, record: logging.LogRecord) -> bool:
        """Whether a minute has passed, or the clock was set back."""
        return not 0 <= record.created - kind.first.created < self._every

    def _sum_up(self, kind: _Kind) -> None:
        if kind.left_out:
            first = kind.first
            text = str(first.msg).partition("\n")[0]
            logging.getLogger(first.name).log(
                first.levelno, "%s", text, extra={"repeated": kind.left_out}
            )


def _key(record: logging.LogRecord) -> tuple[object, ...]:
    first_line = str(record.msg).partition("\n")[0]
    error = record.exc_info[0] if record.exc_info else None
    return record.name, record.levelno, first_line, error
