"""What a forwarder loads that has one webhook and is asked nothing.

Each module that it does without is memory on every VM: what comes back, fails here.
The forwarder is a process of its own, which runs until it has read the document twice.
"""

import asyncio
import os
import sys
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.system.processes import PATIENCE, ended, started

CONFIG = """
[imds]
endpoint = "http://127.0.0.1:{port}"
poll_interval = "250ms"
[state]
path = "{folder}/state.db"
[http]
listen = "127.0.0.1:0"
[[sinks]]
name = "siem"
type = "webhook"
url = "http://127.0.0.1:{port}/siem"
"""
# Says what is loaded when the forwarder ends.
LISTING = """
import sys
from bridge.__main__ import main
try:
    main()
finally:
    print(*sys.modules)
"""
# What costs much and has no work there; what is of the package alone is listed below.
WITHOUT = {
    *("aiohttp.web", "argparse", "azure", "html", "http.server", "jinja2"),
    *("prometheus_client", "slack_sdk", "socketserver", "wsgiref"),
}
# Of the packages that most can do without: what [approvals], [traffic], a sink and the
# health port are configured with, and the sink that is configured.
WITH = {
    "approvals": {"config", "evidence", "rotation", "rules"},
    "cli": {"process"},
    "demo": set(),
    "diagnostics": set(),
    "health": {"config", "port", "status"},
    "servicebus": {"namespace", "sdk_sockets", "timings"},
    "simulator": set(),
    "sinks": {"base", "batch", "registry", "webhook"},
    "telemetry": {"counters", "log_summary", "metrics", "unseen_errors"},
    "traffic": {"config"},
}


def unmeasured() -> dict[str, str]:
    """Return the environment of a process that loads no measure of coverage."""
    return {n: v for n, v in os.environ.items() if not n.startswith("COVERAGE")}


async def loaded(folder: Path) -> set[str]:
    """Run a forwarder with one webhook, and return the modules it had in the end."""
    reads, is_enough = [], asyncio.Event()

    async def document(_: web.Request) -> web.Response:
        reads.append(1)
        if len(reads) > 1:
            is_enough.set()
        return web.json_response({"DocumentIncarnation": 1, "Events": []})

    async def compute(_: web.Request) -> web.Response:
        return web.json_response({"name": "vm", "vmId": "id"})

    app = web.Application()
    app.router.add_get("/metadata/scheduledevents", document)
    app.router.add_get("/metadata/instance/compute", compute)
    app.router.add_post("/siem", compute)
    async with TestServer(app) as server:
        path = folder / "bridge.toml"
        path.write_text(CONFIG.format(port=server.port, folder=folder.as_posix()))
        process = await started(
            *(sys.executable, "-c", LISTING, "run", "-c", str(path)),
            stdout=asyncio.subprocess.PIPE,
            env=unmeasured(),
        )
        async with asyncio.timeout(PATIENCE):
            await is_enough.wait()
        assert await ended(process) == 0
    assert process.stdout is not None
    return set((await process.stdout.read()).decode().split())


async def test_forwarder_with_one_webhook_loads_nothing_that_it_does_without(
    tmp_path: Path,
) -> None:
    found = await loaded(tmp_path)

    assert not found & WITHOUT
    for package, wanted in WITH.items():
        names = (name.split(".") for name in found)
        used = {
            name[2] for name in names if name[:2] == ["bridge", package] and name[2:]
        }
        assert used <= wanted, package
