"""What the webhook sends, as libraries for JavaScript read it.

Needs Node.js and the packages that node/package.json names:
``npm ci --prefix DIRECTORY`` and NODE_PATH=DIRECTORY/node_modules, or npm ci in node/.
"""

import json
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

from bridge.events.cloudevent import CloudEvent
from bridge.events.samples import one_of_each
from bridge.sinks.base import Resources
from bridge.sinks.webhook.presets import teams
from tests.support.sink_fixtures import Inbox, cloud_event, opened_sink

NODE = shutil.which("node")
PROBE = "require('cloudevents'); require.resolve('adaptivecards')"
SCRIPTS = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def node() -> str:
    """The program, with the packages it needs; without any of it: skipped."""
    if NODE is None:
        pytest.skip("Node.js is not installed")
    probe = [NODE, "--eval", PROBE]
    found = subprocess.run(probe, cwd=SCRIPTS, capture_output=True, check=False)  # noqa: S603  # nothing from outside
    if found.returncode != 0:
        pytest.skip("packages are missing: npm ci in tests/sinks/node")
    return NODE


@pytest.mark.integration
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


@pytest.mark.integration
def test_cards_are_read_by_microsofts_own_renderer(node: str) -> None:
    odd = cloud_event(event={"EventType": "**b**", "Resources": ["{{DATE(x)}}"]})
    good = [card(event) for event in (odd, *one_of_each(lifecycle=True))]
    bad = {**good[0], "body": [{"type": "RichTextBlock", "inlines": [{"type": "x"}]}]}

    ran = subprocess.run(  # noqa: S603  # nothing comes from outside
        [node, str(SCRIPTS / "cards.js")],
        input=orjson.dumps([*good, bad]),
        capture_output=True,
        check=True,
    )

    *read, unread = json.loads(ran.stdout)
    assert [found["faults"] for found in read] == [[]] * len(good)
    assert read[0]["lines"][0] == "**b** is scheduled: {\u200a{DATE(x)}}"
    assert all(len(found["lines"]) >= 2 for found in read)
    assert unread["faults"], "else the reader finds nothing wrong with anything"


def card(event: CloudEvent) -> dict[str, object]:
    """Return the card in a message to Teams."""
    _, body = teams.render(event)
    found: dict[str, object] = orjson.loads(body)["attachments"][0]["content"]
    return found
