"""The consumers to copy: each hears a real forwarder, approves, and reads the reply."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.signing.test_dsse import KEY
from tests.signing.test_keys import pem
from tests.support.configurations import approvals, config_text, servicebus
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    forwarder,
    kill_rest,
    simulator_here,
    started,
)

pytestmark = pytest.mark.slow

HERE = Path(__file__).parents[2] / "infra" / "consumers"
NODE = shutil.which("node")
OFFLINE = {"GOFLAGS": "-mod=readonly", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
LIMIT_SECONDS = 300
STEPS = [
    "sebridge.scheduledevent.scheduled.v1",
    "sebridge.startrequest.relayed.v1",
    "sebridge.scheduledevent.started.v1",
]
ENTITIES = {
    "Name": "sbemulatorns",
    "Queues": [
        {"Name": "vm-approvals"},
        {"Name": "replies"},
        {"Name": "vm-approvals-sessions", "Properties": {"RequiresSession": True}},
        {"Name": "replies-sessions", "Properties": {"RequiresSession": True}},
    ],
    "Topics": [{"Name": "scheduled-events", "Subscriptions": [{"Name": "consumer"}]}],
}
FREEZE = {"type": "Freeze", "duration": 5, "startedSeconds": 3600}


def built(command: list[str], folder: Path, missing: str) -> None:
    """Compile a consumer; skipped where what it needs is not on this machine."""
    found = subprocess.run(  # noqa: S603 - nothing from outside
        command,
        cwd=folder,
        env={**os.environ, **OFFLINE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if found.returncode != 0 and missing in found.stdout:
        pytest.skip(f"libraries are missing: {found.stdout.strip().splitlines()[-1]}")
    assert found.returncode == 0, found.stdout


def installed(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def of_python(_: Path) -> list[str]:
    return [sys.executable, str(HERE / "consumer.py")]


def of_javascript(_: Path) -> list[str]:
    node = installed("node")
    probe = [node, "--eval", "require('@azure/service-bus')"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:  # noqa: S603  # nothing from outside
        pytest.skip("@azure/service-bus is not installed: NODE_PATH")
    return [node, str(HERE / "consumer.js")]


def of_go(folder: Path) -> list[str]:
    """Needs ``go mod download`` in infra/consumers/go, and Go 1.26."""
    program = str(folder / "consumer")
    built([installed("go"), "build", "-o", program, "."], HERE / "go", "go: ")
    return [program]


def of_java(folder: Path) -> list[str]:
    """Needs ``mvn compile`` in infra/consumers/java, or in a copy of it."""
    java = installed("java")
    shutil.copytree(HERE / "java", folder / "java")
    built([installed("mvn"), "-B", "-q", "-o", "compile"], folder / "java", "offline")
    target = folder / "java" / "target"
    path = f"{target / 'classes'}{os.pathsep}{target / 'lib' / '*'}"
    return [java, "-cp", path, "EventConsumer"]


CONSUMERS = [of_python, of_javascript, of_go, of_java]


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


def heed_ctrl_c() -> None:
    """Let a process end by Ctrl-C, also if whoever started the tests ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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


def written(folder: Path, at: Addresses, *, has_sessions: bool) -> Path:
    """Write the configuration of a forwarder whose queues have sessions or not."""
    kind = "-sessions" if has_sessions else ""
    keys = {"sessions": ["{vm_id}"]} if has_sessions else {}
    reply_to = [f"replies{kind}"]
    queue = f"vm-approvals{kind}"
    bus = at.connection_string
    path = folder / "bridge.toml"
    path.write_text(
        config_text(
            servicebus(bus),
            imds=at.imds,
            state=folder / "bridge.db",
            approvals=approvals(bus, queue, reply_to=reply_to, **keys),
        )
    )
    return path


def environment(connection_string: str, session: str | None) -> dict[str, str]:
    """Return the settings of a consumer."""
    host = connection_string.partition("sb://")[2].partition(";")[0]
    found = {"SERVICEBUS": connection_string, "SERVICEBUS_ENDPOINT": f"https://{host}"}
    if session is None:
        return {**os.environ, **found, "REPLIES": "replies"}
    found |= {"REPLIES": "replies-sessions", "REPLY_SESSION": session}
    return {**os.environ, **found}


ENDS = {of_python: 0, of_java: 128 + signal.SIGINT}  # by Ctrl-C; others: the signal
WAYS = [
    *((one, session, False) for one in CONSUMERS for session in (None, "consumer-1")),
    *(
        (one, None, True) for one in (of_python, of_javascript)
    ),  # the others do not sign
]


@pytest.mark.parametrize(("consumer_of", "session", "is_signed"), WAYS)
@pytest.mark.timeout(2 * LIMIT_SECONDS)
async def test_consumer_hears_approves_and_reads_the_reply(
    consumer_of: Callable[[Path], list[str]],
    session: str | None,
    tmp_path: Path,
    *,
    is_signed: bool,
) -> None:
    """With a session, approvals and replies go through queues with sessions."""
    command = consumer_of(tmp_path)
    entities = tmp_path / "entities.json"
    entities.write_text(json.dumps({"UserConfig": {"Namespaces": [ENTITIES]}}))
    async with simulator_here(servicebus_config=entities) as at:
        config = written(tmp_path, at, has_sessions=session is not None)
        more = signing(config) if is_signed else {}
        bridge = await forwarder(config)
        consumer = await started(
            *command,
            env={**environment(at.connection_string, session), **more},
            stdout=asyncio.subprocess.PIPE,
            preexec_fn=heed_ctrl_c,
        )
        try:
            event_id = await scheduled(at)
            wanted = sorted([*STEPS, "reply:relayed"])
            assert sorted(await heard(consumer, event_id, wanted)) == wanted
        finally:
            consumer.send_signal(signal.SIGINT)  # Ctrl-C
            code = await consumer.wait()
            assert code == ENDS.get(consumer_of, -signal.SIGINT)
            await ended(bridge)
            kill_rest()


def test_consumer_of_csharp_has_what_the_others_have() -> None:
    """It cannot be compiled here, and the page says so."""
    text = (HERE / "csharp" / "Program.cs").read_text(encoding="utf-8")
    settings = {"SERVICEBUS", "SERVICEBUS_NAMESPACE", "TOPIC", "SUBSCRIPTION"}
    settings |= {"REPLIES", "REPLY_SESSION"}
    other = (HERE / "go" / "consumer.go").read_text(encoding="utf-8")

    assert {*re.findall(r'Setting\("(\w+)"\)', text)} == settings
    assert settings <= {*re.findall(r'"([A-Z_]+)"', other)}
    for one in (
        "StartRequests",
        "approvedEvent",
        "reason",
        "application/cloudevents+json",
    ):
        assert one in text
        assert one in other
    for left, right in ("{}", "()", "[]"):
        assert text.count(left) == text.count(right)
    project = ET.parse(HERE / "csharp" / "Consumer.csproj")  # noqa: S314  # our own file
    packages = {one.get("Include") for one in project.iter("PackageReference")}
    used = {*re.findall(r"^using (Azure[\w.]+);", text, flags=re.MULTILINE)}
    assert used - {"Azure.Messaging"} == packages  # CloudEvent is of Azure.Core
    page = (HERE / "README.md").read_text(encoding="utf-8")
    assert "Not compiled in this project's CI" in page
