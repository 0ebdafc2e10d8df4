"""How the presets are reached in tests, and what they would send."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from multidict import CIMultiDict

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import DeliveryError
from bridge.net.http_client import Answer
from bridge.sinks.webhook.auth import filled
from bridge.sinks.webhook.body import Shape
from bridge.sinks.webhook.config import WebhookKeys, signed
from bridge.sinks.webhook.presets.preset import Call, advanced, assumed
from bridge.sinks.webhook.presets.registry import PRESETS, PresetName
from tests.receivers.serving import Post, Service, Way
from tests.support.fakes import START
from tests.support.sink_fixtures import sink_config

ROOT = Path(__file__).parents[2]
NAMES: tuple[PresetName, ...] = get_args(PresetName)
PAGE = ROOT / "config" / "sinks" / "webhook.md"


def _ways() -> dict[str, Way]:
    files = sorted((ROOT / "tests" / "receivers").glob("*.py"))
    modules = (import_module(f"tests.receivers.{path.stem}") for path in files)
    return {k: v for m in modules for k, v in getattr(m, "WAYS", {}).items()}


WAYS: Mapping[str, Way] = _ways()


def options(
    name: PresetName, url: str = "http://127.0.0.1:9", **more: object
) -> dict[str, object]:
    """Return the configuration of a sink with a preset."""
    way = WAYS[name]
    own = {"type": "webhook", "preset": name, "url": f"{url}{way.path}"}
    return {**own, **way.options, **more}


def example(name: PresetName) -> str:
    """Return the example of a preset: the first TOML of its page."""
    page = (ROOT / "config" / "presets" / f"{name}.md").read_text(encoding="utf-8")
    found = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert found, f"no TOML in the page of {name}"
    return found[1]


def posts(name: PresetName, call: Call, event: CloudEvent, now: datetime) -> Post:
    """Return a request as the service would see it."""
    config = sink_config(options(name))
    assert isinstance(config, WebhookKeys)
    headers = {**call.headers, **WAYS[name].headers}
    body = filled(config.auth_meant, call.body)
    if config.signature is not None:
        headers |= signed(config.signature, event.id, body, now)
    own, _, own_query = WAYS[name].path.partition("?")
    path, _, query = call.path.partition("?")
    if path and not path.startswith("/"):
        path = f"{own}/{path}"
    pairs = (query if call.path else own_query).split("&")
    found = dict(pair.split("=", 1) for pair in pairs if pair)
    return Post(path or own, body, CIMultiDict(headers), found, call.method)


def talked(
    name: PresetName, service: Service, event: CloudEvent
) -> DeliveryError | None:
    """Return what becomes of an event, with no network in between."""
    preset, answer = PRESETS[name], None
    now = datetime.now(UTC)
    talk = Shape(preset=name).talker()(event, preset.judge, now)
    while isinstance(step := advanced(talk, answer), Call):
        reply = service.answer(posts(name, step, event, now))
        answer = Answer(
            status=reply.status,
            body=reply.body,
            retry_after=None,
            target="https://it.example",
        )
    return step


def sent(name: PresetName, event: CloudEvent) -> object:
    """Return what a golden file holds: the requests for an event."""
    calls = list(assumed(Shape(preset=name).talker(), PRESETS[name], event, START))
    found = [_golden(call) for call in calls]
    is_plain = len(found) == 1 and found[0].keys() == {"headers", "body"}
    return found[0] if is_plain else found


def _golden(call: Call) -> dict[str, Any]:
    lines = [json.loads(line) for line in call.body.splitlines()]
    where = (
        {}
        if (call.method, call.path) == ("POST", "")
        else {"method": call.method, "path": call.path}
    )
    body = lines if len(lines) > 1 else lines[0] if lines else None
    return {**where, "headers": dict(call.headers), "body": body}


def table() -> str:
    """Return the rows of the table of presets."""
    return "".join(
        f"| {_linked(name)} | {PRESETS[name].gets} | {PRESETS[name].needs} |\n".replace(
            "|  |", "| |"
        )
        for name in NAMES
    )


def _linked(name: PresetName) -> str:
    return f"[`{name}`](../presets/{name}.md)"


def with_table(page: str) -> str:
    """Return the page of webhooks with the rows as they are to be."""
    head = "| preset | what the service gets | needed besides `url` |\n|---|---|---|\n"
    before, _, after = page.partition(head)
    rest = re.sub(r"\A(\|.*\n)*", "", after)
    return before + head + table() + rest
