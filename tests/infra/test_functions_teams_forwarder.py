"""An event from IMDS to a card in Teams and back, by a real forwarder.

IMDS → forwarder (a process) → namespace → app → card → click → app → namespace →
forwarder → IMDS, and what comes of it on the same card.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.imds.state import ImdsSettings
from bridge.simulator.teams.team import Post
from tests.infra.functions_world import APPROVALS
from tests.infra.teams_world import ALICE, TeamsStage, buttons, runs, teams_stage
from tests.support.configurations import approvals, config_text, servicebus
from tests.system.processes import PATIENCE, ended, forwarder

pytestmark = pytest.mark.integration

REBOOT = EventLife(
    event_type="Reboot",
    resources=("WestNO_0",),
    source="User",
    notice_seconds=3600,
    started_seconds=2,
    description="Virtual machine is being restarted as requested by authorized user.",
)


@asynccontextmanager
async def machine(stage: TeamsStage, folder: Path) -> AsyncIterator[ImdsSimulator]:
    """Lend the IMDS of a VM on which a forwarder runs."""
    settings = ImdsSettings(vm_name="WestNO_0")
    async with ImdsSimulator(settings) as imds:
        config, bus = folder / "bridge.toml", stage.host.broker.connection_string
        config.write_text(
            config_text(
                servicebus(bus),
                imds=imds.url,
                state=folder / "state.db",
                approvals=approvals(bus, APPROVALS, sessions=["{vm_id}"]),
            )
        )
        process = await forwarder(config)
        try:
            yield imds
        finally:
            code = await ended(process)
        log = config.with_suffix(".log").read_text()
        assert code == 0, log
        assert "Traceback" not in log


async def card(stage: TeamsStage, *words: str) -> Post:
    """Let the app hear what is told until its only card says all of this."""
    async with asyncio.timeout(PATIENCE):
        while True:
            await stage.host.hear()
            for post in stage.conversation.posts.values():
                if set(words) <= set(runs(post.card)):
                    return post


@pytest.mark.slow
async def test_event_of_a_real_forwarder_is_approved_in_teams(tmp_path: Path) -> None:
    async with teams_stage() as stage, machine(stage, tmp_path) as imds:
        approved = list[str]()
        imds.on_approved.append(approved.append)
        event = imds.schedule(REBOOT)

        post = await card(stage, "Reboot is scheduled", "WestNO_0", event.event_id)
        assert buttons(post.card) == ["Approve", "Refuse"]
        assert approved == []

        answer = await stage.click(ALICE, "approve", post)
        assert "Approved by Alice Ndiaye" in runs(answer["answer"]["value"])
        post = await card(stage, "Reboot is over", "Approval passed on to Azure")

    assert approved == [event.event_id]
    assert buttons(post.card) == []
    lines = runs(post.card)
    assert "Approved by Alice Ndiaye" in lines
    steps = ["Scheduled", "Approval passed on to Azure", "Started", "Over"]
    assert sorted(steps) == sorted(line for line in lines if line in steps)
    assert len(stage.conversation.posts) == 1
