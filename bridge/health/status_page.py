"""The page at ``/`` of the health port: the status in a browser. Pure.

The page has no actions. It works without JavaScript: its only script updates the
countdowns. The page loads nothing from other addresses, and its headers forbid that.
"""

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from typing import Final

from bridge.health.report import StatusReport
from bridge.health.status_view import Cell, Overview, Table, overview

_REFRESH_SECONDS = 30

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--soft:#57606a;--line:#d0d7de;
--good:#116329;--warning:#7d4e00;--bad:#a40e26}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--soft:#9da7b3;
--line:#3d444d;--good:#56d364;--warning:#e3b341;--bad:#ff8182}}
body{margin:0 auto;max-width:80rem;padding:1rem 1.5rem;color:var(--ink);
background:var(--paper);font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:.2em 0}h2{font-size:1.15rem;margin:1.6em 0 .3em}
p{margin:.3em 0}a{color:inherit}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.8rem 0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.35rem .8rem .35rem 0;
border-bottom:1px solid var(--line)}
section{overflow-x:auto}td:last-child{overflow-wrap:anywhere;min-width:8rem}
th{color:var(--soft);font-weight:600;white-space:nowrap}
time{font-variant-numeric:tabular-nums}
small{color:var(--soft);display:block;font-weight:400;white-space:nowrap}
.good{color:var(--good)}.warning{color:var(--warning)}.bad{color:var(--bad)}
.warning,.bad{font-weight:600}footer{margin-top:2em;color:var(--soft)}
@media (max-width:52rem){body{padding:.8rem}
thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
tr{display:block;border-bottom:1px solid var(--line);padding:.4rem 0}
td{display:grid;grid-template-columns:7.5rem 1fr;column-gap:.8rem;border:0;
padding:.1rem 0;overflow-wrap:anywhere}
td::before{content:attr(data-head) " ";color:var(--soft);font-weight:400}
td.none{display:none}}
"""

_SCRIPT: Final = """
"use strict";
const ahead = Date.parse(document.documentElement.dataset.now) - Date.now();
const two = (n) => String(n).padStart(2, "0");
function span(s) {
  const m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  if (d) return `${d} d ${h % 24} h`;
  if (h) return `${h} h ${two(m % 60)} min`;
  return m ? `${m} min ${two(s % 60)} s` : `${s} s`;
}
function tick() {
  for (const time of document.querySelectorAll("time")) {
    const left = (Date.parse(time.dateTime) - Date.now() - ahead) / 1000;
    const duration = span(Math.floor(Math.abs(left)));
    time.textContent = left > 0 ? `in ${duration}` : `${duration} ago`;
  }
}
tick();
setInterval(tick, 1000);
"""


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(_STYLE)}",
            f"script-src {_hash(_SCRIPT)}",
            "img-src data:",  # the icon, or the browser would ask for /favicon.ico
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page(status: StatusReport, now: datetime, *, refreshes: bool) -> str:
    """Return the page.

    Args:
        status: the status.
        now: the time of the status.
        refreshes: whether the browser reloads the page every 30 s. By default it does
            not, because a reload loses the reader's place on the page.
    """
    seen = overview(status, now)
    again = f'<meta http-equiv="refresh" content="{_REFRESH_SECONDS}">'
    return f"""<!DOCTYPE html>
<html lang="en" data-now="{_stamp(now)}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
{again if refreshes else ""}
<title>{escape(seen.title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{_main(seen)}
<footer>{_footer(now, refreshes=refreshes)}</footer>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _main(seen: Overview) -> str:
    notices = "\n".join(f"<p>{_value(notice)}</p>" for notice in seen.notices)
    events, *rest = seen.tables
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{_value(cell)}</dd>" for name, cell in seen.facts
    )
    return f"""<header><h1>{escape(seen.title)}</h1>
<div role="status">{notices}</div></header>
<main>
{_table(events)}
{"".join(map(_table, rest))}
<section><h2>This VM</h2><dl>{facts}</dl></section>
</main>"""


def _footer(now: datetime, *, refreshes: bool) -> str:
    link = (
        '<a href="/">Stop refreshing</a>'
        if refreshes
        else f'<a href="/?refresh">Refresh every {_REFRESH_SECONDS} s</a>'
    )
    at = f"{now.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f'As of {at}. <a href="">Look again</a>. {link}.'


def _table(table: Table) -> str:
    title = f"<h2>{escape(table.title)}</h2>"
    if not table.rows:
        return f"<section>{title}<p>{escape(table.empty)}</p></section>\n"
    # The roles repeat what the elements are. On a narrow screen the table is laid out
    # as a list, and without roles browsers would no longer treat it as a table.
    heads = "".join(
        f'<th scope="col" role="columnheader">{escape(head)}</th>'
        for head in table.heads
    )
    rows = "\n".join(_row(table.heads, row) for row in table.rows)
    return f"""<section>{title}
<table role="table"><thead role="rowgroup"><tr role="row">{heads}</tr></thead>
<tbody role="rowgroup">{rows}</tbody></table></section>
"""


def _row(heads: tuple[str, ...], row: tuple[Cell, ...]) -> str:
    cells = "".join(map(_data, heads, row))
    return f'<tr role="row">{cells}</tr>'


def _data(head: str, cell: Cell) -> str:
    none = "" if cell.text else ' class="none"'
    return f'<td role="cell" data-head="{escape(head)}"{none}>{_value(cell)}</td>'


def _value(cell: Cell) -> str:
    text = escape(cell.text)
    if cell.moment is not None:
        exact = f"{cell.moment:%Y-%m-%d %H:%M:%S} UTC"
        at = _stamp(cell.moment)
        text = f'<time datetime="{at}">{text}</time> <small>{exact}</small>'
    mood = f' class="{cell.mood}"' if cell.mood else ""
    return f"<span{mood}>{text}</span>"


def _stamp(moment: datetime) -> str:
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
