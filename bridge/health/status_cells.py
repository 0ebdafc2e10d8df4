"""Cells and tables of the status: texts, and whether they are good or bad news."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Mood = Literal["", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One value.

    Attributes:
        text: the text at the time of the status.
        mood: whether the value is good or bad news; "" = neither.
        moment: the time until which, or since which, ``text`` gives the duration; None
            if ``text`` is not a duration.
    """

    text: str
    mood: Mood = ""
    moment: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with heads and rows; without rows, the text ``empty`` is shown."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str
