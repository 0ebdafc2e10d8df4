"""Each panel of the dashboard finds something, once there is something to find."""

import shutil
from pathlib import Path

import pytest

from tests.infra.dashboards import Panel, observed

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("prometheus") is None,
        reason="Prometheus is missing: apt-get install prometheus",
    ),
]


FLAT = [
    "Delivered after NotBefore",
    "The VM's clock against IMDS",
    "Pauses of the VM",
]  # what comes so late takes minutes; and no VM stands still here


@pytest.mark.slow
async def test_every_panel_shows_what_a_forwarder_tells(tmp_path: Path) -> None:
    panels = await observed(
        tmp_path, 1.5, lambda found: (empty(found), flat(found)) == ([], FLAT)
    )

    assert empty(panels) == []
    assert flat(panels) == FLAT


def empty(panels: list[Panel]) -> list[str]:
    """Return the panels that show nothing."""
    shown = [panel for panel in panels if panel.spec["type"] != "row"]
    return [p.title for p in shown if not any(s.points for s in p.series)]


def flat(panels: list[Panel]) -> list[str]:
    """Return the panels of a course of time that never rises above 0."""
    return [
        p.title
        for p in panels
        if p.spec["type"] == "timeseries"
        and not any(value > 0 for each in p.series for _, value in each.points)
    ]
