"""Cells and tables of the status: what stands where, and in which mood."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Mood = Literal["", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One value.

    Attributes:
        text: as it was when it was looked at.
        mood: whether it is well.
        moment: what ``text`` counts down to, or up from; None where it does not.
    """

    text: str
    mood: Mood = ""
    moment: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under heads; ``empty`` is said where there are none."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str
