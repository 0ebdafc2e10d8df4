"""Each panel of the dashboard finds something, once there is something to find."""

import shutil
from pathlib import Path

import pytest

from tests.infra.dashboards import observed

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("prometheus") is None,
        reason="Prometheus is missing: apt-get install prometheus",
    ),
]


async def test_every_panel_shows_what_a_forwarder_tells(tmp_path: Path) -> None:
    panels = await observed(tmp_path, pause=1.5)

    shown = [panel for panel in panels if panel.spec["type"] != "row"]
    assert [p.title for p in shown if not any(s.points for s in p.series)] == []
    flat = [
        p.title
        for p in shown
        if p.spec["type"] == "timeseries"
        and not any(value > 0 for each in p.series for _, value in each.points)
    ]
    assert flat == ["Delivered after NotBefore"]  # that takes minutes
