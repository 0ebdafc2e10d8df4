"""Instance metadata: who the VM is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.simulator.imds.document import compute_of
from tests.simulator.imds_client import METADATA, Reply, Vm, vm

COMPUTE = "/metadata/instance/compute"
VERSION = "api-version=2021-12-13"


async def ask(it: Vm, path: str, version: str = VERSION) -> Reply:
    return await it.http.send("GET", f"{path}?{version}", headers=METADATA)


async def test_compute_identifies_the_vm() -> None:
    async with vm(vm_name="web-1") as it:
        compute = (await ask(it, COMPUTE)).json

        assert compute["name"] == "web-1"
        assert compute["vmScaleSetName"] == ""
        assert compute["resourceId"] == (
            f"/subscriptions/{compute['subscriptionId']}/resourceGroups/simulator-rg"
            "/providers/Microsoft.Compute/virtualMachines/web-1"
        )


async def test_scale_set_instance_is_recognised_by_its_name() -> None:
    async with vm() as it:
        compute = (await ask(it, COMPUTE)).json

        assert compute["name"] == "WestNO_0"
        assert compute["vmScaleSetName"] == "WestNO"
        path = "/virtualMachineScaleSets/WestNO/virtualMachines/0"
        assert compute["resourceId"].endswith(path)


async def test_values_are_strings() -> None:
    async with vm() as it:
        compute = (await ask(it, COMPUTE)).json
        nested = {"osProfile", "tagsList", "virtualMachineScaleSet"}

        assert {
            name for name, value in compute.items() if not isinstance(value, str)
        } == nested


async def test_vm_id_stays_from_run_to_run() -> None:
    ids = []
    for _ in range(2):
        async with vm(vm_name="web-1") as it:
            ids.append((await ask(it, COMPUTE)).json["vmId"])
    async with vm(vm_name="web-2") as it:
        ids.append((await ask(it, COMPUTE)).json["vmId"])

    assert ids[0] == ids[1] != ids[2]


async def test_whole_instance_has_a_network() -> None:
    async with vm() as it:
        instance = (await ask(it, "/metadata/instance")).json

        assert set(instance) == {"compute", "network"}
        path = "/metadata/instance/network/interface/0/macAddress"
        leaf = await ask(it, path, VERSION + "&format=text")
        assert leaf.body == instance["network"]["interface"][0]["macAddress"].encode()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/name", 400),
        ("/nothing", 404),
        ("/name/deeper", 404),
        ("/osProfile", 200),
    ],
)
async def test_element_is_found_by_its_path(path: str, status: int) -> None:
    async with vm() as it:
        assert (await ask(it, COMPUTE + path)).status == status


async def test_old_version_lacks_later_elements() -> None:
    async with vm() as it:
        compute = (await ask(it, COMPUTE, "api-version=2017-08-01")).json

        assert "vmId" in compute
        assert not {"vmScaleSetName", "resourceId", "tagsList"} & set(compute)


@pytest.mark.parametrize("query", ["", "api-version=2020-07-01"])
async def test_version_is_asked_for(query: str) -> None:
    """2020-07-01 is a version of scheduledevents, not of instance."""
    async with vm() as it:
        reply = await ask(it, COMPUTE, query)

        assert reply.status == 400
        assert reply.json["newest-versions"][0] == "2025-04-07"


async def test_versions_need_no_version() -> None:
    async with vm() as it:
        reply = await it.http.send("GET", "/metadata/versions", headers=METADATA)

        assert "2021-12-13" in reply.json["apiVersions"]


async def test_metadata_is_replaced_patched_and_taken_away() -> None:
    async with vm() as it:
        await it.control("PUT", "instance", {"name": "a", "vmId": "1"})
        await it.control("PATCH", "instance", {"vmId": "2"})
        assert (await ask(it, COMPUTE)).json == {"name": "a", "vmId": "2"}

        await it.control("DELETE", "instance")

        assert (await ask(it, COMPUTE)).status == 404
        assert (await it.get()).status == 200


async def test_null_takes_metadata_away_too() -> None:
    async with vm() as it:
        await it.control("PUT", "instance", b"null")

        assert (await ask(it, COMPUTE)).status == 404


FIPS = """\
openssl_conf = openssl_init
[openssl_init]
alg_section = evp_properties
[evp_properties]
default_properties = "fips=yes"
"""


def test_vm_has_its_id_on_a_python_in_fips_mode(tmp_path: Path) -> None:
    """There ``uuid.uuid5`` fails: it uses SHA-1 as if for security."""
    settings = tmp_path / "openssl.cnf"
    settings.write_text(FIPS)
    ask = "from bridge.simulator.imds import document as i; print(i.compute_of('a'))"

    found = subprocess.run(  # noqa: S603 - this Python
        [sys.executable, "-c", ask],
        env={**os.environ, "OPENSSL_CONF": str(settings)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert found.stdout.strip() == str(compute_of("a"))
