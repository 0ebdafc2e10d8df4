"""What the webhook sends, as the CloudEvents SDK for JavaScript reads it.

Needs Node.js and the package that node/package.json names:
``npm ci --prefix DIRECTORY`` and NODE_PATH=DIRECTORY/node_modules, or npm ci in node/.
"""

import json
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

from bridge.sinks.base import Resources
from tests.contract.sink_fixtures import Inbox, cloud_event, opened_sink

NODE = shutil.which("node")
SCRIPTS = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def node() -> str:
    """The program, with the package it needs; without either: skipped."""
    if NODE is None:
        pytest.skip("Node.js is not installed")
    probe = [NODE, "--eval", "require('cloudevents')"]
    found = subprocess.run(probe, cwd=SCRIPTS, capture_output=True, check=False)  # noqa: S603  # nothing from outside
    if found.returncode != 0:
        pytest.skip("cloudevents is not installed: npm ci in tests/contract/node")
    return NODE


async def test_each_mode_is_read_as_the_event_that_was_sent(
    resources: Resources, inbox: Inbox, node: str
) -> None:
    event = cloud_event(note="Euro € 😀")
    for mode in ("structured", "binary", "batch"):
        options = {"type": "webhook", "url": inbox.url, "content_mode": mode}
        async with opened_sink(resources, options) as sink:
            await sink.deliver(event)

    messages = [
        {"headers": {k.lower(): v for k, v in r.headers.items()}, "body": r.body}
        for r in inbox.received
    ]
    read = subprocess.run(  # noqa: ASYNC221, S603  # nothing else runs, or comes from outside
        [node, str(SCRIPTS / "read.js")],
        input=orjson.dumps(messages, default=bytes.decode),
        capture_output=True,
        check=True,
    )
    events = json.loads(read.stdout)
    assert len(events) == 3
    for found in events:
        assert found["id"] == event.id
        assert found["type"] == event.type
        assert found["source"] == event.source
        assert found["subject"] == event.subject
        assert str(found["severitynumber"]) == "17"
        assert found["data"] == event.data
