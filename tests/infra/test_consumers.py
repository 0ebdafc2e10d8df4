"""The consumers to copy: each hears a real forwarder, and two of them approve."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.signing.test_dsse import KEY
from tests.signing.test_keys import pem
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    kill_rest,
    simulator_here,
    started,
    written_config,
)

pytestmark = pytest.mark.slow

HERE = Path(__file__).parents[2] / "infra" / "consumers"
NODE = shutil.which("node")
PROGRAMS = {"consumer.py": sys.executable, "consumer.js": NODE}
STEPS = [
    "sebridge.scheduledevent.scheduled.v1",
    "sebridge.startrequest.relayed.v1",
    "sebridge.scheduledevent.started.v1",
]
FREEZE = {"type": "Freeze", "duration": 5, "startedSeconds": 3600}


@pytest.fixture(params=PROGRAMS)
def command(request: pytest.FixtureRequest) -> list[str]:
    """Return what runs a consumer here; skipped where it cannot be run."""
    program = PROGRAMS[request.param]
    if program is None:
        pytest.skip("Node.js is not installed")
    if program == NODE:
        probe = [program, "--eval", "require('@azure/service-bus')"]
        if subprocess.run(probe, capture_output=True, check=False).returncode:  # noqa: S603  # nothing from outside
            pytest.skip("@azure/service-bus is not installed: NODE_PATH")
    return [program, str(HERE / request.param)]


async def heard(
    process: asyncio.subprocess.Process, event_id: str, wanted: list[str]
) -> list[str]:
    """Return the types of what a consumer says of an event, until all are there."""
    assert process.stdout is not None
    found: list[str] = []
    async with asyncio.timeout(2 * PATIENCE):
        while not set(wanted) <= set(found):
            line = (await process.stdout.readline()).decode()
            assert line, found
            kind, subject, *_ = [*line.split(), "", ""]
            if subject == event_id:
                found.append(kind)
    return found


async def scheduled(at: Addresses) -> str:
    """Schedule a short freeze, and return its EventId."""
    event = await at.control("POST", "events", FREEZE)
    assert isinstance(event, dict)
    return str(event["eventId"])


def signing(config: Path) -> dict[str, str]:
    """Let the forwarder want signatures; return how a consumer signs."""
    key, keys = config.with_name("sign.pem"), config.with_name("approvers.jwks")
    key.write_text(pem(KEY))
    keys.write_text(json.dumps(KEY.public.jwk))
    wanted = f'signed_by = ["file:{keys}"]'
    text = config.read_text()
    assert "[approvals]" in text
    config.write_text(text.replace("[approvals]", f"[approvals]\n{wanted}"))
    return {"SIGN_KEY": str(key)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_signed", [False, True])
async def test_consumer_hears_and_approves(
    command: list[str], tmp_path: Path, *, is_signed: bool
) -> None:
    async with simulator_here() as at:
        config = written_config(tmp_path, at)
        more = signing(config) if is_signed else {}
        bridge = await forwarder(config)
        consumer = await started(
            *command,
            env={
                **os.environ,
                "SERVICEBUS": at.connection_string,
                "REPLIES": "replies",
                **more,
            },
            stdout=asyncio.subprocess.PIPE,
        )
        reply = ["reply:relayed"] if command[0] == sys.executable else []
        try:
            event_id = await scheduled(at)
            wanted = sorted([*STEPS, *reply])
            assert sorted(await heard(consumer, event_id, wanted)) == wanted
        finally:
            consumer.send_signal(signal.SIGINT)  # Ctrl-C
            code = await consumer.wait()
            assert code == (0 if command[0] == sys.executable else -signal.SIGINT)
            await ended(bridge)
            kill_rest()
