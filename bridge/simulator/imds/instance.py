"""Instance metadata: what IMDS says about the VM.

Single values are strings; "" means that there is no value.

Source:  learn.microsoft.com/azure/virtual-machines/instance-metadata-service
"""

import hashlib
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

INSTANCE_VERSIONS: Final = (
    "2017-03-01",
    "2017-04-02",
    "2017-08-01",
    "2017-10-01",
    "2017-12-01",
    "2018-02-01",
    "2018-04-02",
    "2018-10-01",
    "2019-02-01",
    "2019-03-11",
    "2019-04-30",
    "2019-06-01",
    "2019-06-04",
    "2019-08-01",
    "2019-08-15",
    "2019-11-01",
    "2020-06-01",
    "2020-07-15",
    "2020-09-01",
    "2020-10-01",
    "2020-12-01",
    "2021-01-01",
    "2021-02-01",
    "2021-03-01",
    "2021-05-01",
    "2021-10-01",
    "2021-11-01",
    "2021-11-15",
    "2021-12-13",
    "2023-07-01",
    "2023-11-15",
    "2024-03-15",
    "2024-07-17",
    "2025-04-07",
)

_SUBSCRIPTION = "0b6f2c0e-5a1d-4c3b-9e57-1f4d8a2b6c90"
_GROUP = "simulator-rg"
# A name gives the same vmId in each run, so that a state file stays valid.
_NAMESPACE = uuid.UUID("6f1c9d52-3f0e-4d0b-8a63-2f0a5b1c7e44")
_SINCE: Final[Mapping[str, str]] = {
    "vmScaleSetName": "2017-12-01",
    "zone": "2017-12-01",
    "azEnvironment": "2018-10-01",
    "resourceId": "2019-03-11",
    "tagsList": "2019-06-04",
    "osProfile": "2020-07-15",
    "evictionPolicy": "2020-12-01",
    "priority": "2020-12-01",
    "virtualMachineScaleSet": "2021-03-01",
}
_SCALE_SET_INSTANCE = re.compile(r"(?P<set>.+)_(?P<number>\d+)")
_NETWORK: Final[Mapping[str, object]] = {
    "interface": [
        {
            "ipv4": {
                "ipAddress": [{"privateIpAddress": "10.0.0.4", "publicIpAddress": ""}],
                "subnet": [{"address": "10.0.0.0", "prefix": "24"}],
            },
            "ipv6": {"ipAddress": []},
            "macAddress": "000D3A5C1E20",
        }
    ]
}


def compute_of(vm_name: str) -> dict[str, object]:
    """Return the ``compute`` object of a VM; ``set_3`` is in a scale set ``set``."""
    part = _SCALE_SET_INSTANCE.fullmatch(vm_name)
    scale_set = part["set"] if part else ""
    path = (
        f"virtualMachineScaleSets/{part['set']}/virtualMachines/{part['number']}"
        if part
        else f"virtualMachines/{vm_name}"
    )
    return {
        "azEnvironment": "AzurePublicCloud",
        "evictionPolicy": "",
        "location": "norwayeast",
        "name": vm_name,
        "offer": "ubuntu-24_04-lts",
        "osProfile": {"computerName": re.sub(r"[^A-Za-z0-9-]", "", vm_name).lower()},
        "osType": "Linux",
        "platformFaultDomain": "0",
        "platformUpdateDomain": "0",
        "priority": "Regular",
        "publisher": "Canonical",
        "resourceGroupName": _GROUP,
        "resourceId": (
            f"/subscriptions/{_SUBSCRIPTION}/resourceGroups/{_GROUP}"
            f"/providers/Microsoft.Compute/{path}"
        ),
        "sku": "server",
        "subscriptionId": _SUBSCRIPTION,
        "tags": "",
        "tagsList": [],
        "version": "24.04.202504080",
        "virtualMachineScaleSet": {"id": ""},
        "vmId": str(_named(vm_name.lower())),
        "vmScaleSetName": scale_set,
        "vmSize": "Standard_D2s_v5",
        "zone": "1",
    }


def _named(name: str) -> uuid.UUID:
    """Return ``uuid.uuid5`` of a name, which a Python in FIPS mode refuses to make."""
    seed = _NAMESPACE.bytes + name.encode()
    digest = hashlib.sha1(seed, usedforsecurity=False).digest()
    return uuid.UUID(bytes=digest[:16], version=5)


def instance_of(compute: Mapping[str, object], version: str) -> dict[str, object]:
    """Return instance metadata as ``version`` shows it."""
    known = {
        name: value
        for name, value in compute.items()
        if _SINCE.get(name, INSTANCE_VERSIONS[0]) <= version
    }
    return {"compute": known, "network": dict(_NETWORK)}


def element(tree: object, path: Sequence[str]) -> object | None:
    """Return the value at ``path``; None: there is none."""
    for step in path:
        if isinstance(tree, Mapping):
            tree = tree.get(step)
        elif isinstance(tree, list) and step.isdecimal() and int(step) < len(tree):
            tree = tree[int(step)]
        else:
            return None
    return tree
