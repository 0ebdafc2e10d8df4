"""The Grafana dashboard over a real Prometheus that scrapes a real forwarder.

There is no Grafana in it, so the panels are drawn by this file, at the places and with
the legends that dashboard.json gives: what is seen is whether each query finds
something, and whether it can be read. How Grafana itself would paint it is not.

    python -m tests.infra.dashboards PICTURE.png
"""

import asyncio
import html
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.support.browser import find
from tests.support.configurations import (
    approvals,
    command,
    config_text,
    servicebus,
    webhook,
)
from tests.support.ports import free_port
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    settled,
    simulator_here,
)

DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "infra" / "prometheus" / "dashboard.json").read_text()
)
SCRAPE = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: sebridge
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
_COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff")
_ROW = 38  # pixels of one unit of gridPos
_WIDE = 1500
_MARGIN = 12


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel, oldest first."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel and what its queries found."""

    spec: dict[str, object]
    series: Sequence[Series]

    @property
    def title(self) -> str:
        """What stands above it."""
        return str(self.spec["title"])


@asynccontextmanager
async def prometheus(folder: Path, target: int) -> AsyncIterator[str]:
    """Run Prometheus on a forwarder's port, and yield its address."""
    port = free_port()
    (folder / "prometheus.yml").write_text(SCRAPE.format(port=target))
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await ended(process)


async def play(at: Addresses, config: Path, pause: float) -> None:
    """Announce, approve by queue and withdraw, a ``pause`` of seconds in between."""
    for number, kind in enumerate(("Reboot", "Redeploy", "Freeze"), start=1):
        event = {"type": kind, "eventId": f"EVENT-{number}", "notBefore": 600}
        await at.control("POST", "events", event)
        await asyncio.sleep(pause)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bridge", "approve", "-c", str(config), "EVENT-1"),
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    await asyncio.sleep(pause)
    await at.control("DELETE", "events/EVENT-2")
    await asyncio.sleep(pause)


async def observed(
    folder: Path, pause: float, is_enough: Callable[[list[Panel]], object] = bool
) -> list[Panel]:
    """Run everything, and return what each panel would show.

    Where that is not enough, it waits for Prometheus to have seen more.
    """
    port = free_port()
    async with AsyncExitStack() as stage:
        at = await stage.enter_async_context(simulator_here())
        config = folder / "bridge.toml"
        config.write_text(
            config_text(
                servicebus(at.connection_string),
                webhook(f"{at.inbox}/siem"),
                webhook(f"http://127.0.0.1:{port}/gone", "old-siem"),
                command("/bin/true"),
                imds={"endpoint": at.imds},
                state=folder / "state.db",
                listen=f"127.0.0.1:{port}",
                traffic={"listen": "127.0.0.1:0", "lead": "1s"},
                approvals=approvals(at.connection_string),
            )
        )
        stage.push_async_callback(ended, await forwarder(config))
        await settled(config, 0)
        server = await stage.enter_async_context(prometheus(folder, port))
        http = await stage.enter_async_context(aiohttp.ClientSession())
        begun = time.time()
        await _scraped(http, server)
        await play(at, config, pause)
        until = time.monotonic() + PATIENCE
        while True:
            span = (begun, time.time())
            panels = [
                Panel(spec, [each async for each in _asked(http, server, spec, span)])
                for spec in DASHBOARD["panels"]
            ]
            if is_enough(panels) or time.monotonic() > until:
                return panels
            await asyncio.sleep(0.5)


async def _scraped(http: aiohttp.ClientSession, server: str) -> None:
    """Wait until it has looked at the forwarder twice."""
    query = {"query": "count_over_time(sebridge_build_info[1m]) > 1"}
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                async with http.get(f"{server}/api/v1/query", params=query) as answer:
                    if answer.ok and (await answer.json())["data"]["result"]:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.2)


async def _asked(
    http: aiohttp.ClientSession,
    server: str,
    spec: dict[str, object],
    span: tuple[float, float],
) -> AsyncIterator[Series]:
    targets = spec.get("targets", [])
    assert isinstance(targets, list)
    for target in targets:
        query = re.sub(r"\$(job|instance|sink)\b", ".*", target["expr"])
        query = query.replace("$__rate_interval", "5s")
        start, end = map(str, span)
        asked = {"query": query, "start": start, "end": end, "step": "1"}
        async with http.get(f"{server}/api/v1/query_range", params=asked) as answer:
            found = await answer.json()
            assert answer.ok, found
        for each in found["data"]["result"]:
            values = ((at, float(value)) for at, value in each["values"])
            points = [point for point in values if not math.isnan(point[1])]
            yield Series(_legend(target.get("legendFormat"), each["metric"]), points)


def _legend(form: str | None, labels: dict[str, str]) -> str:
    if not form:
        return " ".join(labels.values())
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), form)


def page(panels: Iterable[Panel]) -> str:
    """Return the dashboard as HTML."""
    boxes = "".join(map(_box, panels))
    return (
        '<!doctype html><meta charset="utf-8"><style>'
        f"body{{margin:{_MARGIN}px;background:#111217;"
        "color:#ccccdc;font:13px sans-serif}"
        f"main{{display:grid;grid-template-columns:repeat(24,1fr);gap:8px;"
        f"grid-auto-rows:{_ROW - 8}px}}"
        "section{background:#181b1f;border:1px solid #2b2e34;padding:6px;"
        "overflow:hidden;display:flex;flex-direction:column}"
        "h2{font-size:13px;margin:0 0 4px}h1{font-size:14px;margin:6px 0 0}"
        "b{font-size:34px;margin:auto}svg{flex:1;min-height:0;width:100%}"
        "i{font-style:normal;margin-right:10px;white-space:nowrap}"
        "nav{display:flex;flex-wrap:wrap}"
        f"</style><main>{boxes}</main>"
    )


def height() -> int:
    """Return how many pixels all rows need."""
    places = (panel["gridPos"] for panel in DASHBOARD["panels"])
    rows: int = max(place["y"] + place["h"] for place in places)
    return _ROW * rows + 2 * _MARGIN


def _box(panel: Panel) -> str:
    grid = panel.spec["gridPos"]
    assert isinstance(grid, dict)
    place = (
        f"grid-area:{grid['y'] + 1}/{grid['x'] + 1}/span {grid['h']}/span {grid['w']}"
    )
    title = html.escape(panel.title)
    if panel.spec["type"] == "row":
        return f'<h1 style="{place}">{title}</h1>'
    draw = {"stat": _number, "table": _rows}.get(str(panel.spec["type"]), _lines)
    return f'<section style="{place}"><h2>{title}</h2>{draw(panel.series)}</section>'


def _number(series: Sequence[Series]) -> str:
    return f"<b>{series[0].points[-1][1]:.3g}</b>" if series else "<b>No data</b>"


def _rows(series: Sequence[Series]) -> str:
    return "".join(
        f"<div>{html.escape(each.name)}: {each.points[-1][1]:g}</div>"
        for each in series
    )


def _lines(series: Sequence[Series]) -> str:
    points = [point for each in series for point in each.points]
    if not points:
        return "<b>No data</b>"
    left, right = min(p[0] for p in points), max(p[0] for p in points)
    top = max(p[1] for p in points) or 1.0
    drawn, names = "", ""
    for number, each in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        places = (
            (100 * (at - left) / max(right - left, 1), 58 - 54 * value / top)
            for at, value in each.points
        )
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in places)
        drawn += (
            f'<polyline points="{path}" fill="none" stroke="{colour}" '
            'stroke-width="1.5" vector-effect="non-scaling-stroke"/>'
        )
        names += f'<i style="color:{colour}">{html.escape(each.name)}</i>'
    return (
        f'<div style="color:#888">{top:.3g}</div><svg viewBox="0 0 100 60" '
        f'preserveAspectRatio="none">{drawn}</svg><nav>{names}</nav>'
    )


async def picture(path: Path) -> None:
    """Draw the dashboard as it stands after half a minute of a VM's life."""
    browser = find()
    assert browser is not None, "there is no Chromium here"
    with tempfile.TemporaryDirectory() as folder:
        panels = await observed(Path(folder), pause=7.0)
        drawn = Path(folder) / "dashboard.html"
        drawn.write_text(page(panels))
        path.write_bytes(await browser.picture(drawn.as_uri(), _WIDE, height()))


if __name__ == "__main__":
    asyncio.run(picture(Path(sys.argv[1])))
