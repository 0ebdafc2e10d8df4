"""VMs as Azure shows them: what rings.py reads, changes and asks, by the Azure CLI."""

import json
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

API = "api-version=2024-07-01"
READY = "sebridge: ready"
ARM_SIZE = re.compile(r"Standard_[A-Z]+\d+(-\d+)?[a-z]*p[a-z]*_", re.IGNORECASE)
# What is missing stands in the status; it is empty where the bridge is ready.
ASK_LINUX = f"""\
/opt/sebridge/bin/sebridge --version
systemctl is-active sebridge.service
CREDENTIALS_DIRECTORY=/etc/sebridge/secrets /opt/sebridge/bin/sebridge status --json \\
  -c /etc/sebridge/bridge.toml | /opt/sebridge/bin/python -I -c '
import json, sys
missing = json.load(sys.stdin).get("missing", ["the forwarder does not answer"])
print("missing: " + "; ".join(missing) if missing else "{READY}")'"""
ASK_WINDOWS = f"""\
$config = "$env:ProgramData\\sebridge\\bridge.toml"
$python = "$env:ProgramFiles\\sebridge\\python.exe"
(Get-Service sebridge).Status
$found = & $python -I -m bridge status --json -c $config | ConvertFrom-Json
if ($LASTEXITCODE -ne 0) {{ "missing: the forwarder does not answer" }}
elseif ($found.missing) {{ "missing: $($found.missing)" }}
else {{ "{READY}" }}"""


class Fault(Exception):  # noqa: N818 - of this script alone
    """What is wrong, in one line."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A VM.

    Attributes:
        kind: linux, arm64 (Linux on Arm) or windows.
        ring: the value of its tag; empty without one.
        in_scale_set: its scale set says what is installed.
    """

    id: str
    kind: str
    ring: str
    in_scale_set: bool

    @property
    def name(self) -> str:
        """Return its name with that of its resource group."""
        parts = self.id.split("/")
        return f"{parts[4]}/{parts[-1]}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a machine: ready, done, skipped or failed, and why.

    Attributes:
        before: the version that was changed; empty where there was none.
    """

    machine: Machine
    what: str
    why: str = ""
    before: str = ""


def az(*words: str) -> Any:
    """Run the Azure CLI, and return what it prints; Fault where it fails."""
    command = ["az", *words, "--only-show-errors", "--output", "json"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    except FileNotFoundError:
        raise Fault("the Azure CLI (az) is not installed") from None
    if found.returncode:
        lines = found.stderr.strip().splitlines() or ["no reason given"]
        raise Fault(f"az {words[0]} {words[1]}: {lines[-1]}")
    return json.loads(found.stdout or "null")


def get(path: str) -> Any:
    """Return what Azure Resource Manager says of a path, or of a whole address."""
    return az("rest", "--method", "get", "--url", path)


def pages(path: str) -> Iterator[Any]:
    """Yield the entries of a list, over all its pages."""
    while path:
        found = get(path)
        yield from found["value"]
        path = found.get("nextLink") or ""


def machine_of(found: Any, tag: str) -> Machine:
    """Make a machine of what Azure says of a VM."""
    properties = found["properties"]
    kind = properties["storageProfile"]["osDisk"]["osType"].lower()
    if kind == "linux" and ARM_SIZE.match(properties["hardwareProfile"]["vmSize"]):
        kind = "arm64"
    return Machine(
        id=found["id"],
        kind=kind,
        ring=(found.get("tags") or {}).get(tag, ""),
        in_scale_set="virtualMachineScaleSet" in properties,
    )


def machines(groups: Sequence[str], tag: str) -> list[Machine]:
    """Return the VMs of some resource groups, or of the whole subscription."""
    subscription = f"/subscriptions/{az('account', 'show')['id']}"
    scopes = [f"{subscription}/resourceGroups/{group}" for group in groups]
    end = f"providers/Microsoft.Compute/virtualMachines?{API}"
    found = [pages(f"{scope}/{end}") for scope in scopes or [subscription]]
    return [machine_of(one, tag) for part in found for one in part]


def look(machine: Machine) -> Any:
    """Return the properties of a VM with its instance view."""
    return get(f"{machine.id}?$expand=instanceView&{API}")["properties"]


def give(machine: Machine, applications: Sequence[Any]) -> None:
    """Set the list of a VM's applications."""
    body = {"properties": {"applicationProfile": {"galleryApplications": applications}}}
    url = f"{machine.id}?{API}"
    az("rest", "--method", "patch", "--url", url, "--body", json.dumps(body))


def said_there(machine: Machine) -> str:
    """Ask the machine itself how its bridge is, and return what that printed."""
    is_windows = machine.kind == "windows"
    found = az(
        *("vm", "run-command", "invoke", "--ids", machine.id, "--command-id"),
        "RunPowerShellScript" if is_windows else "RunShellScript",
        *("--scripts", ASK_WINDOWS if is_windows else ASK_LINUX),
    )
    return "\n".join(one.get("message") or "" for one in found["value"])


# -- one machine -------------------------------------------------------------------


def has(application: Any, versions: str) -> bool:
    """Tell whether an entry of a VM is a version of ours; ARM ignores the case."""
    reference: str = application["packageReferenceId"]
    return reference.lower().startswith(versions.lower())


def installed(properties: Any) -> list[Any]:
    """Return the entries of a VM's applications."""
    profile = properties.get("applicationProfile") or {}
    return list(profile.get("galleryApplications") or [])


def obstacle(machine: Machine, properties: Any) -> str:
    """Return why a machine cannot be changed now; empty where it can."""
    view = properties.get("instanceView") or {}
    codes = [one["code"] for one in view.get("statuses") or []]
    power = [code for code in codes if code.startswith("PowerState/")]
    agent = (view.get("vmAgent") or {}).get("statuses") or []
    if machine.in_scale_set:
        return "its scale set says what is installed"
    if power != ["PowerState/running"]:
        return f"it is off ({power[0] if power else 'its state is not known'})"
    if not any(one.get("displayStatus") == "Ready" for one in agent):
        return "its VM agent does not answer"
    return ""


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done on each machine.

    Attributes:
        applications: the resource id of the application for each kind of machine.
        every: seconds between two looks at a machine that is being changed.
        patience: seconds that a change may take.
    """

    applications: dict[str, str]
    version: str
    every: float
    patience: float

    def deploy(self, machine: Machine) -> Outcome:
        """Give a machine the version, and wait until Azure says that it is done."""
        try:
            return self._deploy(machine)
        except Fault as fault:
            return Outcome(machine, "failed", str(fault))

    def _deploy(self, machine: Machine) -> Outcome:
        if machine.kind not in self.applications:
            return Outcome(machine, "skipped", f"no --{machine.kind} was given")
        properties = look(machine)
        if why := obstacle(machine, properties):
            return Outcome(machine, "skipped", why)
        versions = f"{self.applications[machine.kind]}/versions/"
        ours = [one for one in installed(properties) if has(one, versions)]
        others = [one for one in installed(properties) if not has(one, versions)]
        before = ours[0]["packageReferenceId"].rsplit("/", 1)[-1] if ours else ""
        if before == self.version:
            before = ""
            if properties["provisioningState"] == "Succeeded":
                return Outcome(machine, "done", "had it already")
            # What has failed is tried again only after it was taken away.
            give(machine, others)
            self._settle(machine)
        new = {
            **(ours[0] if ours else {}),  # its order and its own configuration stay
            "packageReferenceId": versions + self.version,
            "treatFailureAsDeploymentFailure": True,
        }
        give(machine, [*others, new])
        self._settle(machine)
        return Outcome(machine, "done", before=before)

    def _settle(self, machine: Machine) -> None:
        """Wait for the end of a change; Fault where it went wrong or takes too long."""
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            time.sleep(self.every)
            properties = look(machine)
            if properties["provisioningState"] == "Succeeded":
                return
            if properties["provisioningState"] == "Failed":
                raise Fault(reason(properties))
        raise Fault(f"not done after {self.patience:g} s")

    def ask(self, machine: Machine) -> Outcome:
        """Ask a machine whether its bridge is ready."""
        try:
            said = said_there(machine)
        except Fault as fault:
            return Outcome(machine, "failed", str(fault))
        if READY in said:
            return Outcome(machine, "ready")
        found = re.findall(r"missing: .*", said)
        return Outcome(machine, "failed", found[0] if found else "no bridge answers")


def reason(properties: Any) -> str:
    """Return what the VM Application's extension says of a failure."""
    extensions = (properties.get("instanceView") or {}).get("extensions") or []
    for one in extensions:
        if one["name"] == "VMAppExtension":
            texts = [status.get("message") or "" for status in one["statuses"]]
            return " ".join(" ".join(texts).split())[-300:]
    return "Azure says Failed, and no more"
