"""The identity of this VM: for ``source``, ``reporter``, and the scope "own". Pure."""

import re
from collections.abc import Collection, Mapping
from typing import Self
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import asdict

from bridge.events.document import bare
from bridge.foundation.sections import Section
from bridge.foundation.values import PLACEHOLDERS

_GROUP_PATH = re.compile(
    r"^/subscriptions/([^/]+)/resourcegroups/([^/]+)(/|$)", re.IGNORECASE
)
# The members of ``reporter`` in events and of ``vm`` in the status, in their order.
_MEMBERS = {
    "vmName": "vm_name",
    "vmId": "vm_id",
    "resourceId": "resource_id",
    "location": "location",
    "vmScaleSetName": "vm_scale_set_name",
}
_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")


class IdentityConfig(Section, frozen=True, kw_only=True):
    """``[identity]``: values to use in place of those from instance metadata.

    Attributes:
        vm_name: the name of the VM, as in compute.name of instance metadata. This is
            not the host name. Example: ``"web-1"``.
        vm_id: the id of the VM, as in compute.vmId of instance metadata. Example:
            ``"13f56399-bd52-4150-9748-7190aae1ff21"``.
        resource_id: the resource id of the VM in Azure. Example:
            ``"/subscriptions/00001111-aaaa-2222-bbbb-3333cccc4444/resourceGroups/web/providers/Microsoft.Compute/virtualMachines/web-1"``.
        location: the Azure region. Example: ``"westeurope"``.
    """

    vm_name: str = ""
    vm_id: str = ""
    resource_id: str = ""
    location: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether name, id and resource id are given: then metadata is not needed."""
        return bool(self.vm_name and self.vm_id and self.resource_id)


class Identity(Struct, frozen=True, kw_only=True):
    """What is known about this VM; None for each value that is not known.

    Source: https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service
    """

    vm_name: str | None = None
    vm_id: str | None = None
    resource_id: str | None = None
    location: str | None = None
    vm_scale_set_name: str | None = None
    subscription_id: str | None = None
    resource_group: str | None = None

    @classmethod
    def from_metadata(cls, compute: Mapping[str, object]) -> Self:
        """Read the ``compute`` object of instance metadata; "" counts as absent."""

        def text(key: str) -> str | None:
            value = compute.get(key)
            return value if isinstance(value, str) and value else None

        return cls(
            vm_name=text("name"),
            vm_id=text("vmId"),
            resource_id=text("resourceId"),
            location=text("location"),
            vm_scale_set_name=text("vmScaleSetName"),
            subscription_id=text("subscriptionId"),
            resource_group=text("resourceGroupName"),
        )

    @classmethod
    def from_reporter(cls, members: Mapping[str, object]) -> Self:
        """Read the ``reporter`` of an event; a value that is not text is left out."""
        texts = {key: members.get(name) for name, key in _MEMBERS.items()}
        return cls(**{k: v for k, v in texts.items() if isinstance(v, str) and v})

    @property
    def members(self) -> dict[str, str | None]:
        """The members that describe this VM in events and in the status."""
        return {name: getattr(self, key) for name, key in _MEMBERS.items()}

    def overridden(self, config: IdentityConfig) -> "Identity":
        """Return this identity, with the values of ``[identity]`` where given."""
        given = {
            key: value
            for key, value in (
                ("vm_name", config.vm_name),
                ("vm_id", config.vm_id),
                ("resource_id", config.resource_id),
                ("location", config.location),
            )
            if value
        }
        return Identity(**{**asdict(self), **given})

    @property
    def is_known(self) -> bool:
        """Whether the name, the id or the resource id of this VM is known."""
        return bool(self.vm_name or self.vm_id or self.resource_id)

    @property
    def group(self) -> str | None:
        """The name of the scale set, else of the resource group; in lower case."""
        path = _GROUP_PATH.match(self.resource_id or "")
        name = self.vm_scale_set_name or self.resource_group or (path and path[2])
        return name.lower() if name else None

    @property
    def source(self) -> str | None:
        """The CloudEvents source: the same on all VMs that see the same document."""
        if path := _GROUP_PATH.match(self.resource_id or ""):
            subscription, group = path[1], path[2]
        elif self.subscription_id and self.resource_group:
            subscription, group = self.subscription_id, self.resource_group
        else:
            return None
        return (
            f"/subscriptions/{_segment(subscription)}"
            f"/resourcegroups/{_segment(group)}/providers/microsoft.compute"
        )

    def is_named_in(self, resources: Collection[str]) -> bool | None:
        """Whether this VM is one of ``resources``; None if the VM's name is unknown."""
        if (me := self.vm_name) is None:
            return None
        return me in resources or bare(me) in map(bare, resources)

    def expand(self, text: str) -> str:
        """Fill in ``{vm_id}``, ``{vm_name}`` and ``{group}``.

        Raises:
            ValueError: the value of a placeholder is not known.
        """

        def value(match: re.Match[str]) -> str:
            found: str | None = getattr(self, match[1])
            if not found:
                raise ValueError(f"{match[0]} in {text!r} is not known here")
            return found

        return _PLACEHOLDER.sub(value, text)


def _segment(name: str) -> str:
    return quote(name.lower(), safe="-._~()!$&'*+,;=:@")
