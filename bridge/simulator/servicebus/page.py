"""The page at ``/``: the broker in a browser. Pure.

It works without JavaScript and loads nothing: its headers forbid both.
"""

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Final, Generic, TypeVar
from urllib.parse import quote

from msgspec import Struct

from bridge.simulator.servicebus.overview import (
    MOST_ROWS,
    Detail,
    EntityRow,
    MessageRow,
    Overview,
    SessionRow,
)

RESUBMIT: Final = "/simulator/servicebus/resubmit"
PURGE: Final = "/simulator/servicebus/purge"

_REFRESH_SECONDS: Final = 5
_STYLE: Final = (
    files("bridge.simulator.servicebus").joinpath("page.css").read_text("utf-8")
)
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()

HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

Row = TypeVar("Row")


class _Column(Struct, Generic[Row], frozen=True):
    """A column: its head, and a function that returns the HTML of a cell."""

    head: str
    cell: Callable[[Row], str]
    kind: str = ""


def page(seen: Overview, now: float, *, refreshes: bool) -> str:
    """Return the page.

    Args:
        seen: the entities, and the content of the chosen one.
        now: seconds since the epoch.
        refreshes: whether the browser reloads the page by itself.
    """
    path = seen.detail.path if seen.detail else None
    again = f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">'
    detail = "" if seen.detail is None else _detail(seen.detail)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
{again if refreshes else ""}
<title>{escape(path or "The local Service Bus")}</title>
<style>{_STYLE}</style>
</head>
<body>
<header><h1>The local Service Bus</h1></header>
<main>
<section>{_entities(seen.entities, path)}</section>
{detail}
</main>
<footer>{_footer(path, now, refreshes=refreshes)}</footer>
</body>
</html>
"""


def link_to(path: str | None, *, refreshes: bool = False) -> str:
    """Return the address of the page that shows an entity."""
    wanted = [] if path is None else [f"entity={quote(path, safe='')}"]
    wanted += ["refresh"] if refreshes else []
    return f"/?{'&'.join(wanted)}" if wanted else "/"


def _entities(rows: Sequence[EntityRow], chosen: str | None) -> str:
    columns: tuple[_Column[EntityRow], ...] = (
        _Column("Entity", lambda row: _link(row.path)),
        _Column("Kind", lambda row: row.kind),
        _Column("Active", lambda row: str(row.counts.active), "number"),
        _Column("Locked", lambda row: _count(row.counts.locked, "locked"), "number"),
        _Column(
            "Deferred", lambda row: _count(row.counts.deferred, "deferred"), "number"
        ),
        _Column(
            "Scheduled", lambda row: _count(row.counts.scheduled, "scheduled"), "number"
        ),
        _Column("Dead", lambda row: _count(row.counts.dead, "dead"), "number"),
    )
    return _table(columns, rows, is_open=lambda row: row.path == chosen)


def _detail(detail: Detail) -> str:
    if not detail.is_queue:
        return (
            f"<section><h2>{escape(detail.path)}</h2>"
            "<p>A topic keeps no messages: look into its subscriptions.</p></section>"
        )
    path = escape(detail.path)
    sessions = _section(f"Sessions of {path}", _session_table(detail.sessions))
    purge = _button(PURGE, detail.path, "Purge", danger=True) if detail.messages else ""
    messages = _section(f"Messages of {path}", _message_table(detail.messages), purge)
    return f"{messages}{_dead(detail)}{sessions if detail.sessions else ''}"


def _dead(detail: Detail) -> str:
    actions = ""
    if detail.dead:
        actions = _button(RESUBMIT, detail.path, "Resubmit all") + _button(
            PURGE, detail.path, "Purge", danger=True, dead="yes"
        )
    again: _Column[MessageRow] = _Column(
        "",
        lambda row: _button(RESUBMIT, detail.path, "Resubmit", number=str(row.number)),
    )
    why: _Column[MessageRow] = _Column("Reason", lambda row: escape(row.reason), "dead")
    table = _message_table(detail.dead, why, again)
    return _section(f"Dead letters of {escape(detail.path)}", table, actions)


def _message_table(rows: Sequence[MessageRow], *more: _Column[MessageRow]) -> str:
    columns: tuple[_Column[MessageRow], ...] = (
        _Column("Number", lambda row: str(row.number), "number"),
        _Column("Message", lambda row: escape(row.message_id)),
        _Column("Subject", lambda row: escape(row.subject)),
        _Column("Session", lambda row: escape(row.session_id)),
        _Column("State", lambda row: f'<span class="{row.state}">{row.state}</span>'),
        _Column("Failed", lambda row: str(row.delivery_count), "number"),
        _Column("Enqueued (UTC)", lambda row: _time(row.enqueued_at)),
        _Column("Body", lambda row: f"<code>{escape(row.body)}</code>"),
        *more,
    )
    return _table(columns, rows) if rows else "<p>None.</p>"


def _session_table(rows: Sequence[SessionRow]) -> str:
    columns: tuple[_Column[SessionRow], ...] = (
        _Column("Session", lambda row: escape(row.session_id)),
        _Column("Messages", lambda row: str(row.messages), "number"),
        _Column("State", lambda row: "stored" if row.has_state else ""),
        _Column("Locked by", lambda row: escape(row.holder)),
        _Column("Until (UTC)", lambda row: _time(row.locked_until)),
    )
    return _table(columns, rows)


def _table(
    columns: Sequence[_Column[Row]],
    rows: Iterable[Row],
    *,
    is_open: Callable[[Row], bool] = lambda _row: False,
) -> str:
    heads = "".join(
        f'<th scope="col" class="{each.kind}">{escape(each.head)}</th>'
        for each in columns
    )
    body = "".join(
        f'<tr class="{"open" if is_open(row) else ""}">'
        + "".join(
            f'<td class="{each.kind}" data-head="{escape(each.head)}">'
            f"{each.cell(row)}</td>"
            for each in columns
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _section(head: str, table: str, actions: str = "") -> str:
    return f'<section><div class="head"><h2>{head}</h2>{actions}</div>{table}</section>'


def _button(
    action: str, path: str, text: str, *, danger: bool = False, **more: str
) -> str:
    fields = "".join(
        f'<input type="hidden" name="{name}" value="{escape(value)}">'
        for name, value in {"entity": path, **more}.items()
    )
    kind = "danger" if danger else ""
    return (
        f'<form method="post" action="{action}">{fields}'
        f'<button class="{kind}">{escape(text)}</button></form>'
    )


def _link(path: str) -> str:
    return f'<a href="{escape(link_to(path))}">{escape(path)}</a>'


def _count(count: int, kind: str) -> str:
    return f'<span class="{kind}">{count}</span>' if count else "0"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def _footer(path: str | None, now: float, *, refreshes: bool) -> str:
    text = "Stop refreshing" if refreshes else f"Refresh every {_REFRESH_SECONDS} s"
    there = escape(link_to(path, refreshes=not refreshes))
    return (
        f"As of {_time(now)} UTC; the first {MOST_ROWS} of each list. This page "
        'receives no messages. <a href="">Look again</a>. '
        f'<a href="{there}">{text}</a>.'
    )
