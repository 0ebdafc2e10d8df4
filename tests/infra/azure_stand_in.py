"""A stand-in for ``az``: what infra/acceptance.sh asks of Azure, the simulator does.

The command is a script that hands its words to this process. The VM is a ``World`` of
acceptance.simulated; a script for it is run here, with its own folders and commands.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from acceptance.app import KEY
from acceptance.simulated import World
from tests.docs.page_world import put_commands
from tests.system.processes import PATIENCE, started

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "infra" / "acceptance.sh"
_PATIENCE = 4 * PATIENCE  # less than the time that a test has
SIGNATURE = "sig=aB3%2Bsecret%3D"
STORAGE_KEY = "a-key-of-the-storage-account"
# Called hundreds of times: with what Python has loaded anyway, it takes a tenth.
AZ = """#!{python} -IS
import json, os, socket, sys
host, port = os.environ["CLOUD"].removeprefix("http://").split(":")
body = json.dumps(sys.argv[1:]).encode()
with socket.create_connection((host, int(port)), 240) as line:
    line.sendall(b"POST /az HTTP/1.0\\r\\n")
    line.sendall(b"Content-Length: %d\\r\\n\\r\\n%b" % (len(body), body))
    with line.makefile("rb") as answer:
        said = json.loads(answer.read().partition(b"\\r\\n\\r\\n")[2])
sys.stdout.write(said["out"])
sys.stderr.write(said["err"])
sys.exit(said["code"])
"""
SYSTEMCTL = '#!/bin/sh\necho "$@" >>"{folder}/systemctl.log"\n'


class AzureError(Exception):
    """What ``az`` fails with."""


@dataclass(slots=True)
class Cloud:
    """Azure, as far as the script asks.

    Attributes:
        groups: the tags of each resource group.
        others: how many resources are in a group that was there before.
        fails: the beginnings of commands that fail.
        world: the VM, the namespace and the app.
        calls: the words of each command, in order.
        blobs: what was put into the storage account.
    """

    folder: Path
    world: World | None = None
    groups: dict[str, dict[str, str]] = field(default_factory=dict)
    others: int = 0
    fails: tuple[str, ...] = ()
    encryption: str = "Registered"
    calls: list[list[str]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    url: str = ""

    @property
    def said(self) -> list[str]:
        """The commands, as lines."""
        return [" ".join(call) for call in self.calls]

    def called(self, beginning: str) -> list[str]:
        """Return the commands that begin so."""
        return [line for line in self.said if line.startswith(beginning)]

    async def az(self, words: list[str]) -> str:
        """Return what a command prints.

        Raises:
            AzureError: it fails.
        """
        self.calls.append(words)
        line = " ".join(words)
        for beginning in self.fails:
            if line.startswith(beginning):
                raise AzureError(f"(Conflict) {beginning} failed")
        if line.startswith("vm run-command invoke"):
            return await self._on_vm(words)
        if line.startswith("vm restart"):
            assert self.world is not None
            await self.world.restart()
            return ""
        if line.startswith("storage blob "):
            return self._blob(words)
        for beginning, answer in self._answers().items():
            if line.startswith(beginning):
                return answer(words)
        return ""

    def _answers(self) -> dict[str, Callable[[list[str]], str]]:
        world = self.world
        return {
            "account show --query id": lambda _: "0b6f2c0e-5a1d-4c3b-9e57-1f4d8a2b6c90",
            "account show --query user.type": lambda _: "user",
            "feature show": lambda _: self.encryption,
            "ad signed-in-user show": lambda _: "my-object-id",
            "group exists": lambda w: str(value(w, "-n") in self.groups).lower(),
            "group show -n": self._group,
            "group create": self._make,
            "group delete": self._delete,
            "resource list": lambda _: str(self.others),
            "storage account keys list": lambda _: STORAGE_KEY,
            "network vnet subnet show": lambda _: "/subscriptions/s/subnets/vms",
            "deployment group show -g mine -n main --query properties.outputs.name": (
                lambda _: world.bus.address if world else ""
            ),
            "deployment group show -g mine -n main --query properties.outputs.appr": (
                lambda _: world.address if world else ""
            ),
            "servicebus namespace list": lambda _: "/subscriptions/s/namespaces/ns",
            "functionapp keys list": lambda _: KEY,
        }

    def _group(self, words: list[str]) -> str:
        tags = self.groups[value(words, "-n")]
        is_tag = "tags" in value(words, "--query")
        return tags.get("sebridgeAcceptance", "") if is_tag else "norwayeast"

    def _make(self, words: list[str]) -> str:
        name, _, tag = value(words, "--tags").partition("=")
        self.groups[value(words, "-n")] = {name: tag}
        return ""

    def _delete(self, words: list[str]) -> str:
        del self.groups[value(words, "-n")]
        return ""

    def _blob(self, words: list[str]) -> str:
        name = value(words, "-n")
        match words[2]:
            case "upload":
                self.blobs[name] = Path(value(words, "-f")).read_bytes()
            case "download":
                Path(value(words, "-f")).write_bytes(self.blobs[name])
            case "generate-sas":
                return f"{self.url}/blob/{name}?sp=r&{SIGNATURE}&sr=b"
        return ""

    async def _on_vm(self, words: list[str]) -> str:
        """Run a script as the VM would; an exit code is not told, as in Azure."""
        text = Path(value(words, "--scripts").removeprefix("@")).read_text()
        folder = self.world.folder if self.world else self.folder
        for there, here in (
            ("/opt/sebridge-setup/source", ROOT),
            ("/etc/sebridge", folder),
            ("/var/lib/sebridge-acceptance", folder),
            ("/etc/systemd/system", folder),
        ):
            text = text.replace(there, str(here))
        process = await started(
            *("bash", "-c", text),
            stdout=-1,
            stderr=-1,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'vm'}:{os.environ['PATH']}",
                "BUS": self.world.bus.address if self.world else "",
            },
        )
        out, err = await process.communicate()
        # Only the last 4,096 bytes are shown.
        return f"[stdout]\n{out.decode()[-4096:]}\n[stderr]\n{err.decode()[-4096:]}"

    async def answer(self, request: web.Request) -> web.Response:
        """Answer the stand-in for the command."""
        said: dict[str, Any] = {"out": "", "err": "", "code": 0}
        try:
            out = await self.az(await request.json())
            said["out"] = out + "\n" if out else ""
        except AzureError as error:
            said |= {"err": f"ERROR: {error}\n", "code": 1}
        return web.json_response(said)

    async def put(self, request: web.Request) -> web.Response:
        """Take a blob, where the signature and the header are right."""
        is_right = request.headers.get("x-ms-blob-type") == "BlockBlob"
        if SIGNATURE not in request.raw_path or not is_right:
            return web.Response(status=403)
        self.blobs[request.match_info["name"]] = await request.read()
        return web.Response(status=201)


def value(words: list[str], option: str) -> str:
    """Return the value of an option of a command."""
    return words[words.index(option) + 1]


@asynccontextmanager
async def served(cloud: Cloud) -> AsyncIterator[Cloud]:
    """Put the stand-ins into the cloud's folder, and answer them."""
    (cloud.folder / "bin").mkdir()
    (cloud.folder / "vm").mkdir()
    put_commands(cloud.folder / "vm")
    for path, text in (
        (cloud.folder / "bin" / "az", AZ.format(python=sys.executable)),
        (cloud.folder / "vm" / "systemctl", SYSTEMCTL.format(folder=cloud.folder)),
        (cloud.folder / "vm" / "cloud-init", "#!/bin/sh\necho status: done\n"),
    ):
        path.write_text(text)
        path.chmod(0o755)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/az", cloud.answer)
    app.router.add_put("/blob/{name}", cloud.put)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        cloud.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield cloud
    finally:
        await runner.cleanup()


async def acceptance(cloud: Cloud, *words: str) -> tuple[int, str]:
    """Run the script; return its exit code and all that it printed."""
    process = await begun(cloud, *words)
    said = bytearray()
    try:
        async with asyncio.timeout(_PATIENCE):
            while part := await process.stdout.read(4096):
                said += part
            await process.wait()
    except TimeoutError:
        tree = await asyncio.to_thread(processes)
        pytest.fail(f"not ended after {_PATIENCE} s: {said.decode()}\n{tree}")
    return process.returncode, said.decode()


def processes() -> str:
    """Return all processes of the machine, for a failure's text."""
    listed = subprocess.run(
        ["ps", "-ef", "--forest"],  # noqa: S607 - from the PATH
        capture_output=True,
        check=False,
    )
    return listed.stdout.decode(errors="replace")


def history(folder: Path) -> dict[str, str]:
    """Return what tells git where the history is: a copy of the tree has none."""
    if (ROOT / ".git").exists():
        return {}
    known = {"GIT_DIR": str(folder / "history"), "GIT_WORK_TREE": str(ROOT)}
    person = ["-c", "user.name=tests", "-c", "user.email=tests@example.com"]
    for words in (["init"], ["add", "-A"], [*person, "commit", "-m", "a copy"]):
        subprocess.run(  # noqa: S603 - fixed words
            ["git", *words],  # noqa: S607 - from the PATH
            cwd=ROOT,
            env={**os.environ, **known},
            capture_output=True,
            check=True,
        )
    return known


async def begun(cloud: Cloud, *words: str) -> Any:
    """Start the script; with no VM to compare, the simulator counts as recorded."""
    if cloud.world is None:
        recorded = cloud.folder / "work" / "simulator" / "witness.jsonl"
        recorded.parent.mkdir(parents=True)
        recorded.write_text("{}\n")
    return await started(
        *("bash", str(SCRIPT), "-g", "mine", "--python", sys.executable),
        *("--work", str(cloud.folder / "work"), "--pause", "0", *words),
        stdout=-1,
        stderr=-2,
        env={
            **os.environ,
            "PATH": f"{cloud.folder / 'bin'}:{os.environ['PATH']}",
            "CLOUD": cloud.url,
            "COLUMNS": "120",
            **history(cloud.folder),
        },
    )


def records(folder: Path, name: str) -> Any:
    """Return a file of records."""
    text = (folder / name).read_text()
    if name.endswith(".jsonl"):
        return [json.loads(line) for line in text.splitlines()]
    return json.loads(text)


def rows(said: str) -> list[str]:
    """Return the lines of an output without what only lays them out."""
    return [re.sub(r"\s+", " ", line).strip() for line in said.splitlines()]
