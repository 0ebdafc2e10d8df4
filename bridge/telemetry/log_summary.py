"""Shortens repeated log lines of libraries: one line, and the number of repetitions.

A server that has no file descriptor left logs a traceback at each try, thousands per
second. That could fill the disk.
"""

import logging

from msgspec import Struct

_EVERY = 60.0
_MOST_KINDS = 256
_OWN = "bridge"


class _Kind(Struct):
    """Lines that are treated as equal.

    Attributes:
        first: the line of this kind that was written last.
        left_out: how many lines of this kind were left out since then.
    """

    first: logging.LogRecord
    left_out: int = 0


class RepeatFilter(logging.Filter):
    """Writes equal lines of a library once a minute, with how many were left out.

    Records are equal if they have the same logger, the same level, the same first line
    and the same type of error. Lines of the bridge itself are always written.
    """

    def __init__(self, every: float = _EVERY) -> None:
        super().__init__()
        self._every = every
        self._kinds: dict[tuple[object, ...], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record."""
        if hasattr(record, "repeated"):  # written by _sum_up
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
        """Return whether a minute has passed, or the clock was set back."""
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
