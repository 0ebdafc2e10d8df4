"""A VM leaves its back-end pools, at an ARM and an IMDS of our own."""

import asyncio
import copy
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.infra.hook_stage import PREPARE, RESTORE, Stage

pytestmark = pytest.mark.skipif(
    not (shutil.which("curl") and shutil.which("jq")),
    reason="curl or jq is missing (Debian: packages of these names)",
)
VM = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/vm7"
NET = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network"
NIC = f"{NET}/networkInterfaces/vm7-nic"
TOKEN = "eyJ0b2tlbg"


def pool(name: str) -> dict[str, str]:
    return {"id": f"{NET}/loadBalancers/lb/backendAddressPools/{name}"}


def interface() -> dict[str, Any]:
    return {
        "id": NIC,
        "etag": 'W/"1"',
        "tags": {"kept": "as it is"},
        "properties": {
            "provisioningState": "Succeeded",
            "ipConfigurations": [
                {
                    "name": "ipconfig1",
                    "properties": {
                        "privateIPAddress": "10.0.0.4",
                        "loadBalancerBackendAddressPools": [pool("web"), pool("api")],
                    },
                },
                {"name": "ipconfig2", "properties": {"privateIPAddress": "10.0.0.5"}},
            ],
        },
    }


@dataclass
class Azure:
    """As much of ARM and IMDS as the hook asks.

    Attributes:
        refusals: the statuses of the next PUTs.
        pending: how often an interface is still being changed after a PUT.
    """

    nic: dict[str, Any] = field(default_factory=interface)
    refusals: list[int] = field(default_factory=list)
    pending: int = 0
    puts: int = 0

    @property
    def pools(self) -> list[list[str]]:
        found = [ip["properties"] for ip in self.nic["properties"]["ipConfigurations"]]
        return [
            [
                p["id"].split("/")[-1]
                for p in ip.get("loadBalancerBackendAddressPools", [])
            ]
            for ip in found
        ]

    async def imds(self, request: web.Request) -> web.Response:
        assert request.headers["Metadata"] == "true"
        if request.path.endswith("/token"):
            assert request.query["client_id"] == "c-1"
            return web.json_response({"access_token": TOKEN})
        return web.Response(text=VM)

    async def arm(self, request: web.Request) -> web.Response:
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            return web.json_response({}, status=401)
        if request.path == VM:
            profile = {"networkInterfaces": [{"id": NIC}]}
            return web.json_response({"properties": {"networkProfile": profile}})
        assert request.path == NIC
        if request.method == "PUT":
            return await self.put(request)
        found = copy.deepcopy(self.nic)
        if self.pending:
            self.pending -= 1
            found["properties"]["provisioningState"] = "Updating"
        return web.json_response(found)

    async def put(self, request: web.Request) -> web.Response:
        if self.refusals:
            error = {"error": {"code": "No", "message": "not now"}}
            return web.json_response(error, status=self.refusals.pop(0))
        assert request.headers["If-Match"] == self.nic["etag"]
        self.puts += 1
        self.nic = {**await request.json(), "etag": f'W/"{self.puts + 1}"'}
        self.pending = 2
        return web.json_response(self.nic)


@pytest.fixture
async def azure() -> AsyncIterator[tuple[Azure, str]]:
    """Yield both and where they are; only the hook is asked by name."""
    found = Azure()
    app = web.Application()
    app.router.add_get("/metadata/{rest:.*}", found.imds)
    app.router.add_route("*", "/subscriptions/{rest:.*}", found.arm)
    async with TestServer(app) as server:
        yield found, str(server.make_url("")).rstrip("/")


def stage_at(folder: Path, at: str, more: str = "") -> Stage:
    settings = f"ARM={at}\nIMDS={at}\nCLIENT_ID=c-1\n{more}"
    return Stage(folder, "azure-lb-drain", settings)


async def run(stage: Stage, given: dict[str, str], **more: str) -> str:
    return await asyncio.to_thread(stage.run, given, **more)


async def test_vm_leaves_its_pools_and_comes_back(
    azure: tuple[Azure, str], tmp_path: Path
) -> None:
    world, at = azure
    stage = stage_at(tmp_path, at)

    await run(stage, PREPARE)
    assert world.pools == [[], []]
    assert world.nic["tags"] == {"kept": "as it is"}

    await run(stage, PREPARE)
    assert world.puts == 1
    await run(stage, RESTORE)

    before, after = interface(), world.nic
    after["properties"]["ipConfigurations"][1]["properties"].pop(
        "loadBalancerBackendAddressPools", None
    )
    assert {**after, "etag": before["etag"]} == before
    assert not stage.marker
    assert "nothing to restore" in await run(stage, RESTORE)


async def test_vm_stays_out_while_another_event_waits(
    azure: tuple[Azure, str], tmp_path: Path
) -> None:
    world, at = azure
    stage = stage_at(tmp_path, at)
    await run(stage, PREPARE)
    marker = stage.marker

    assert "E-2" in await run(stage, RESTORE, SEBRIDGE_OTHER_EVENTS="E-2 E-3")

    assert world.pools == [[], []]
    assert (world.puts, stage.marker) == (1, marker)
    await run(stage, RESTORE)
    assert world.pools[0] == ["web", "api"]


async def test_only_the_pools_that_are_named_are_left(
    azure: tuple[Azure, str], tmp_path: Path
) -> None:
    world, at = azure
    stage = stage_at(tmp_path, at, 'POOLS="web other"')

    await run(stage, PREPARE)
    assert world.pools == [["api"], []]
    assert len(stage.marker.splitlines()) == 1

    await run(stage, RESTORE)
    assert [sorted(pools) for pools in world.pools] == [["api", "web"], []]


async def test_pool_that_somebody_put_back_is_not_added_twice(
    azure: tuple[Azure, str], tmp_path: Path
) -> None:
    world, at = azure
    stage = stage_at(tmp_path, at)
    await run(stage, PREPARE)
    world.nic = interface()

    await run(stage, RESTORE)

    assert world.pools == [["web", "api"], []]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "code"), [(412, 75), (429, 75), (503, 75), (403, 1)]
)
async def test_refusal_is_reported_and_tried_again_where_that_may_help(
    status: int, code: int, azure: tuple[Azure, str], tmp_path: Path
) -> None:
    world, at = azure
    stage = stage_at(tmp_path, at)
    world.refusals = [status]

    found = await asyncio.to_thread(stage.tried, PREPARE)

    assert found.returncode == code
    assert f"status {status} not now" in found.stderr
    assert TOKEN not in found.stderr + found.stdout
    await run(stage, PREPARE)
    assert world.pools == [[], []]
    await run(stage, RESTORE)
    assert world.pools == [["web", "api"], []]


async def test_azure_that_does_not_answer_is_tried_again(
    azure: tuple[Azure, str], tmp_path: Path
) -> None:
    stage = stage_at(tmp_path, azure[1])
    stage.settings += "ARM=http://127.0.0.1:1"

    found = await asyncio.to_thread(stage.tried, PREPARE)

    assert found.returncode == 75, found.stderr


async def test_token_is_in_no_argument(
    azure: tuple[Azure, str], tmp_path: Path
) -> None:
    stage = stage_at(tmp_path, azure[1])
    stage.tool("curl", 'exec /usr/bin/curl "$@"')

    await run(stage, PREPARE)

    assert [call for call in stage.called if "--request PUT" in call]
    assert TOKEN not in json.dumps(stage.called)


async def test_test_looks_and_changes_nothing(
    azure: tuple[Azure, str], tmp_path: Path
) -> None:
    world, at = azure
    stage = stage_at(tmp_path, at)

    said = await run(stage, {**PREPARE, "SEBRIDGE_TEST": "1"})

    assert f"would run: put {NIC}" in said
    assert world.nic == interface()
    assert not stage.state.exists()
