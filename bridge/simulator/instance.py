"""The machine that the simulated IMDS describes."""

from dataclasses import dataclass

_SUBSCRIPTION = "00000000-0000-4000-8000-000000000001"
_GROUP = "contoso-rg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A VM as instance metadata tells of it."""

    name: str = "WestNO_0"
    vm_id: str = "5c08b38e-4d57-4c23-ac45-aca61037f084"
    location: str = "westeurope"

    def compute(self) -> dict[str, object]:
        """Return the ``compute`` object; every value is a string, "" = absent."""
        scale_set, _, number = self.name.rpartition("_")
        is_member = bool(scale_set) and number.isdigit()
        group = f"/subscriptions/{_SUBSCRIPTION}/resourceGroups/{_GROUP}"
        kind = f"{group}/providers/Microsoft.Compute"
        return {
            "azEnvironment": "AzurePublicCloud",
            "location": self.location,
            "name": self.name,
            "osType": "Linux",
            "resourceGroupName": _GROUP,
            "resourceId": (
                f"{kind}/virtualMachineScaleSets/{scale_set}/virtualMachines/{number}"
                if is_member
                else f"{kind}/virtualMachines/{self.name}"
            ),
            "subscriptionId": _SUBSCRIPTION,
            "tags": "",
            "vmId": self.vm_id,
            "vmScaleSetName": scale_set if is_member else "",
            "vmSize": "Standard_D2s_v5",
            "zone": "1",
        }
