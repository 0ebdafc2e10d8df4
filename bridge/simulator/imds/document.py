"""A scheduled event, and the document as each API version shows it.

Pure: no I/O, no clock; times are seconds since the epoch.

    Scheduled ──NotBefore, approval──→ Started ──ends_at──→ removed
        └───────ends_at (cancelled, evicted)───────────────↗

Source:  learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

import hashlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from email.utils import formatdate
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

VERSIONS: Final = (
    "2017-03-01",
    "2017-08-01",
    "2017-11-01",
    "2019-01-01",
    "2019-04-01",
    "2019-08-01",
    "2020-07-01",
)
NEWEST: Final = VERSIONS[-1]
PREVIEW: Final = VERSIONS[0]

# The version that introduced each field and type; older versions do not show it.
_FIELD_SINCE: Final[Mapping[str, str]] = {
    "Description": "2019-04-01",
    "EventSource": "2019-08-01",
    "DurationInSeconds": "2020-07-01",
}
_TYPE_SINCE: Final[Mapping[str, str]] = {
    "Preempt": "2017-11-01",
    "Terminate": "2019-01-01",
}


class Status(StrEnum):
    """The status of an event; an event that is over is not in the document."""

    SCHEDULED = "Scheduled"
    STARTED = "Started"


class ScheduledEvent(Struct, frozen=True, kw_only=True):
    """One event, and what will happen to it.

    Attributes:
        started_seconds: how long it is Started; None: until ends_at.
        ends_at: when it leaves the document; None: not known yet.
        waits_for_others: whether other tenants of the host must approve, too, so that
            the approval of its VMs alone does not start it.
        approved_by: the names of the VMs that have approved it, in lower case.
    """

    event_id: str
    event_type: str
    resources: tuple[str, ...]
    status: Status
    not_before: float
    description: str
    source: str
    duration_seconds: int
    started_seconds: float | None = None
    ends_at: float | None = None
    waits_for_others: bool = False
    approved_by: frozenset[str] = frozenset()

    @property
    def next_step_at(self) -> float | None:
        """When its status changes by itself; None: never."""
        if self.status is Status.STARTED:
            return self.ends_at
        if self.ends_at is None:
            return self.not_before
        return min(self.ends_at, self.not_before)

    def next_step(self) -> "ScheduledEvent | None":
        """Return the event after its next change; None: it leaves the document."""
        ends_first = self.ends_at is not None and self.ends_at <= self.not_before
        if self.status is Status.STARTED or ends_first:
            return None
        return self.started(self.not_before)

    def started(self, at: float) -> "ScheduledEvent":
        """Return the event as it is when it starts at ``at``."""
        lasts = self.started_seconds
        ends_at = self.ends_at if lasts is None else at + lasts
        return replace(self, status=Status.STARTED, ends_at=ends_at)

    def is_approved_by_all(self) -> bool:
        """Return whether each affected VM has approved it."""
        return {name.lower() for name in self.resources} <= self.approved_by


def is_shown(event: ScheduledEvent, version: str) -> bool:
    """Return whether the version knows events of this type."""
    return _TYPE_SINCE.get(event.event_type, PREVIEW) <= version


def document(
    events: Iterable[ScheduledEvent], incarnation: int, version: str
) -> dict[str, object]:
    """Return the document as ``version`` shows it."""
    shown = [_shown(event, version) for event in events if is_shown(event, version)]
    return {"DocumentIncarnation": incarnation, "Events": shown}


def _shown(event: ScheduledEvent, version: str) -> dict[str, object]:
    # The preview version wrote the names of IaaS VMs with an underscore in front.
    prefix = "_" if version == PREVIEW else ""
    is_started = event.status is Status.STARTED
    fields: dict[str, object] = {
        "EventId": event.event_id,
        "EventStatus": event.status,
        "EventType": event.event_type,
        "ResourceType": "VirtualMachine",
        "Resources": [prefix + name for name in event.resources],
        "NotBefore": "" if is_started else formatdate(event.not_before, usegmt=True),
        "Description": event.description,
        "EventSource": event.source,
        "DurationInSeconds": event.duration_seconds,
    }
    return {
        name: value
        for name, value in fields.items()
        if _FIELD_SINCE.get(name, PREVIEW) <= version
    }


# -- instance metadata: what IMDS says about the VM ------------------------------------

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
