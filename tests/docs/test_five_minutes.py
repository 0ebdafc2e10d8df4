"""README's five minutes, followed word for word, with the simulator in Azure's place.

In a mount namespace of its own, where /etc, /opt and /var/lib are this test's: the
files are written where the page says. ``az`` is a stand-in that notes what it is asked
for; the simulator is started with exactly these entities.
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.docs.pages import ROOT, blocks
from tests.support.ports import free_port
from tests.system.processes import (
    PATIENCE,
    Addresses,
    ended,
    kill_rest,
    simulator_here,
    started,
)

MARK = "five minutes: "
AZ = """\
#!/bin/sh
printf '%s\\n' "$*" >>"$AZ_LOG"
case "$*" in
  "vm identity assign"*) echo 11111111-1111-1111-1111-111111111111 ;;
  "servicebus namespace show"*) echo /subscriptions/S/namespaces/NS ;;
esac
"""
PIP = """\
#!/bin/sh
printf '%s\\n' "$*" >>"$PIP_LOG"
"""
# A fake virtual environment, which is fast: its program is the one under test.
PYTHON = """\
#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 9
mkdir -p "$3/bin" && cp "$PARTS/pip" "$PARTS/sebridge" "$3/bin/"
"""


def can_unshare() -> bool:
    """Whether this system allows a mount namespace for the test."""
    if sys.platform != "linux" or not (tool := shutil.which("unshare")):
        return False
    return not subprocess.run(  # noqa: S603  fixed words
        [tool, "-rm", "mount", "-t", "tmpfs", "none", "/opt"],
        check=False,
        capture_output=True,
    ).returncode


pytestmark = pytest.mark.skipif(not can_unshare(), reason="no mount namespaces here")


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    kill_rest()


def steps(kind: str) -> list[str]:
    """Return all "five minutes" blocks of one kind, in order."""
    found = blocks("README.md")
    return [block.text for block in found if block.mark == MARK + kind]


def programs(folder: Path) -> None:
    """Create fakes of the programs that use Azure or a registry."""
    ours = f'#!/bin/sh\ncd {ROOT} && exec {sys.executable} -m bridge "$@"\n'
    for name, text in (("pip", PIP), ("sebridge", ours), ("az", AZ)):
        (folder / name).write_text(text)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").write_text(PYTHON)
    (folder / "az").rename(folder / "bin" / "az")
    for path in (*folder.glob("*"), *folder.glob("bin/*")):
        path.chmod(0o755)


def asked_of_azure(folder: Path) -> list[str]:
    """Run the steps with a fake Azure CLI, and return the recorded calls."""
    environ = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "AZ_LOG": str(folder / "az.log"),
    }
    for text in steps("az"):
        subprocess.run(  # noqa: S603  the page's own words
            ["/bin/bash", "-euo", "pipefail", "-c", text], env=environ, check=True
        )
    return (folder / "az.log").read_text().splitlines()


def option(line: str, name: str) -> str | None:
    found = re.search(rf"{name} (\S+)", line)
    return found[1] if found else None


def entities(asked: list[str]) -> dict[str, object]:
    """Return the created entities in the format of Microsoft's emulator."""
    topic, subscription, queue = (
        line for line in asked if line.startswith("servicebus") and "create" in line
    )
    assert option(subscription, "--topic-name") == option(topic, "-n")
    window = option(topic, "--duplicate-detection-history-time-window")
    topics = [
        {
            "Name": option(topic, "-n"),
            "Properties": {
                "RequiresDuplicateDetection": "detection true" in topic,
                "DuplicateDetectionHistoryTimeWindow": window,
            },
            "Subscriptions": [{"Name": option(subscription, "-n")}],
        }
    ]
    sessions = {"RequiresSession": option(queue, "--enable-session") == "true"}
    queues = [{"Name": option(queue, "-n"), "Properties": sessions}]
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": topics}
    logging = {"Type": "File"}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": logging}}


def in_place(text: str, at: Addresses) -> str:
    """Replace the namespace and the Slack webhook with the simulator."""
    text = re.sub(
        r'(?m)^namespace = "NS\..*"$',
        'connection_string = "env:SERVICEBUS"',
        text,
    )
    return re.sub(r"https://hooks\.slack\.com", f"{at.inbox}/slack", text)


def script(at: Addresses, folder: Path) -> str:
    """Return the steps on the VM as one script with its own /etc, /opt and /var/lib."""
    (config,) = (
        (block.mark.removeprefix(MARK), block.text)
        for block in blocks("README.md")
        if block.mark.startswith(f"{MARK}/")
    )
    place, text = config
    install, secret, run = steps("vm")
    write = f"cat >{place} <<'TOML'\n{in_place(text, at)}TOML\n"
    return "\n".join(
        (
            f"exec >{folder / 'said'} 2>&1",
            "set -euo pipefail",
            "for place in /etc /opt /var/lib; do mount -t tmpfs none $place; done",
            f"cd {folder / 'clone'}",
            install,
            in_place(secret, at),
            write,
            re.sub(r"(?m)^(.* run -c .*)$", r"exec \1", run),
        )
    )


async def events_at(at: Addresses, path: str) -> list[str]:
    """Wait until an event has arrived, and return it as text."""
    async with asyncio.timeout(2 * PATIENCE):
        while not (found := await at.messages(path)):
            await asyncio.sleep(0.2)
    return [json.dumps(one["body"]) for one in found]


@pytest.mark.integration
@pytest.mark.timeout(300)
async def test_five_minutes_end_with_an_event_and_a_bridge_that_is_ready(
    tmp_path: Path,
) -> None:
    programs(tmp_path)
    asked = asked_of_azure(tmp_path)
    (tmp_path / "Config.json").write_text(json.dumps(entities(asked)))
    (tmp_path / "clone").mkdir()
    port = free_port()

    config = tmp_path / "Config.json"
    async with simulator_here(servicebus_config=config) as at:
        vm = await started(
            *("unshare", "-rm", "bash", "-c", script(at, tmp_path)),
            env={
                "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
                "PARTS": str(tmp_path),
                "PIP_LOG": str(tmp_path / "pip.log"),
                "SERVICEBUS": at.connection_string,
                "SEBRIDGE__IMDS__ENDPOINT": at.imds,
                "SEBRIDGE__HTTP__LISTEN": f"127.0.0.1:{port}",
            },
        )
        async with asyncio.timeout(3 * PATIENCE), aiohttp.ClientSession() as session:
            while not await is_ready(session, port):
                assert vm.returncode is None, (tmp_path / "said").read_text()
                await asyncio.sleep(0.2)
        await at.control("POST", "events", {"type": "Reboot", "notBefore": 900})
        messages = await events_at(at, "/slack/services/T000/B000/XXXX")
        await ended(vm)

    said = (tmp_path / "said").read_text()
    assert re.findall(r"(?m)^(\w+) +sinks\.", said) == ["ok", "ok"], said
    assert not re.search(r"(?m)^FAIL|^warning:", said), said
    assert "Reboot" in messages[0]
    installed = (tmp_path / "pip.log").read_text()
    assert installed == "install -q -c constraints.txt .[email,slack,template]\n"


async def is_ready(session: aiohttp.ClientSession, port: int) -> bool:
    """Whether ``curl -f …/readyz`` would succeed."""
    try:
        async with session.get(f"http://127.0.0.1:{port}/readyz") as response:
            return response.status == 200 and await response.json() == []
    except aiohttp.ClientError:
        return False


def test_rights_are_for_what_was_created_and_for_nothing_else(tmp_path: Path) -> None:
    programs(tmp_path)
    asked = asked_of_azure(tmp_path)
    given = [line for line in asked if line.startswith("role assignment")]

    # By its object id: the directory may not know an identity yet that was just made.
    new = "--assignee-object-id 1{8}(-1{4}){3}-1{12} --assignee-principal-type ServiceP"
    assert all(re.search(new, line) for line in given)
    rights = [re.findall(r"Data (\w+) --scope (\S+)", line) for line in given]
    assert [right for found in rights for right in found] == [
        ("Sender", "/subscriptions/S/namespaces/NS/topics/scheduled-events"),
        ("Receiver", "/subscriptions/S/namespaces/NS/queues/vm-approvals-sessions"),
    ]
