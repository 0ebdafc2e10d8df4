"""The status as text, for the shell. Pure."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from bridge.health.report import StatusReport
from bridge.health.status_view import Cell, Mood, Table, overview

_GAP = "  "
_INDENT = "  "

Paint = Callable[[str, Mood], str]


def plain(
    status: StatusReport, now: datetime, *, width: int | None, paint: Paint
) -> str:
    """Return the status as aligned columns.

    Args:
        status: the status.
        now: the time of the status.
        width: the width of the terminal. A wider table is written with one value per
            line, so that nothing is cut off. None = no limit.
        paint: returns a text in the colour for a mood.
    """
    seen = overview(status, now)
    blocks = [
        [seen.title, *(paint(cell.text, cell.mood) for cell in seen.notices)],
        *(_block(table, now, width, paint) for table in seen.tables),
        _listed(seen.facts, now, paint),
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _block(table: Table, now: datetime, width: int | None, paint: Paint) -> list[str]:
    if not table.rows:
        return [f"{table.title}: {table.empty}"]
    used = [
        index
        for index in range(len(table.heads))
        if any(r[index].text for r in table.rows)
    ]
    heads = [table.heads[index] for index in used]
    rows = [[row[index] for index in used] for row in table.rows]
    columns = [
        [head.upper(), *(_text(row[n], now) for row in rows)]
        for n, head in enumerate(heads)
    ]
    sizes = [max(map(len, column)) for column in columns]
    if width is None or len(_INDENT) + sum(sizes) + len(_GAP) * len(sizes) <= width:
        lines = _aligned(heads, rows, sizes, now, paint)
    else:
        lines = _stacked(heads, rows, now, paint)
    return [table.title, *(f"{_INDENT}{line}" if line else "" for line in lines)]


def _aligned(
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    sizes: Sequence[int],
    now: datetime,
    paint: Paint,
) -> list[str]:
    def line(texts: Sequence[str], moods: Sequence[Mood]) -> str:
        *most, last = [
            (text, " " * (size - len(text)), mood)
            for text, size, mood in zip(texts, sizes, moods, strict=True)
        ]
        padded = "".join(f"{paint(t, m)}{fill}{_GAP}" for t, fill, m in most)
        return f"{padded}{paint(last[0], last[2])}".rstrip()

    head = line([head.upper() for head in heads], [""] * len(heads))
    return [
        head,
        *(line([_text(c, now) for c in row], [c.mood for c in row]) for row in rows),
    ]


def _stacked(
    heads: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    now: datetime,
    paint: Paint,
) -> list[str]:
    found = list[str]()
    for row in rows:
        pairs = [pair for pair in zip(heads, row, strict=True) if pair[1].text]
        found += [*([""] if found else []), *_listed(pairs, now, paint)]
    return found


def _listed(
    pairs: Sequence[tuple[str, Cell]], now: datetime, paint: Paint
) -> list[str]:
    label = max((len(name) for name, _ in pairs), default=0)
    return [
        f"{name:<{label}}{_GAP}{paint(_text(cell, now), cell.mood)}"
        for name, cell in pairs
    ]


def _text(cell: Cell, now: datetime) -> str:
    """Return the text of a cell; for a future moment, with the time of day."""
    if cell.moment is None or cell.moment < now:
        return cell.text
    moment = cell.moment.astimezone(UTC)
    form = "%H:%M:%SZ" if moment.date() == now.date() else "%Y-%m-%d %H:%M:%SZ"
    return f"{cell.text} ({moment:{form}})"
