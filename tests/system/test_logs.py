"""The sinks for logs, in a forwarder that runs as a process."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.support.configurations import config_text
from tests.support.sink_fixtures import LogReceiver
from tests.system.processes import PATIENCE, ended, simulator_here, started

pytestmark = pytest.mark.integration


async def test_events_go_to_file_syslog_and_standard_output_and_logs_to_neither(
    tmp_path: Path,
) -> None:
    config, lines = tmp_path / "bridge.toml", tmp_path / "events.jsonl"
    receiver = LogReceiver()
    async with simulator_here() as at, receiver.serving():
        config.write_text(
            config_text(
                {"name": "out", "type": "file", "path": "-"},
                {"name": "lines", "type": "file", "path": lines},
                {
                    "name": "log",
                    "type": "syslog",
                    "host": "127.0.0.1",
                    "port": receiver.port,
                },
                imds=at.imds,
                state=tmp_path / "state.db",
            )
        )
        process = await started(
            *(sys.executable, "-m", "bridge", "run", "-c", str(config)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            first = await process.stdout.readline()
            while not (lines.exists() and lines.read_bytes() and receiver.data):
                await asyncio.sleep(0.02)
        assert await ended(process) == 0
        out = first + await process.stdout.read()
        log = await process.stderr.read()

    types = [json.loads(line)["type"] for line in out.splitlines()]
    assert types == ["sebridge.bridge.started.v1", "sebridge.bridge.stopped.v1"]
    assert lines.read_bytes() == out
    assert receiver.data.count(b" sebridge - bridge.st") == len(types)
    assert b"forwarder started" in log
