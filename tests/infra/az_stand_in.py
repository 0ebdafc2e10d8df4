"""Stands in for the Azure CLI: VMs in a folder, one JSON file each.

A VM's file has ``model`` (as Azure Resource Manager shows it) and, for the tests:
``fails`` (versions that Azure calls failed), ``sick`` (versions whose bridge is not
ready), ``dead`` (none answers) and ``log`` (the versions that it was given). A change
is done at the second look.
"""

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

WORLD = Path(os.environ["WORLD"])
VERSION = re.compile(r"/galleries/g/applications/sebridge[^/]*/versions/([\d.]+)$")


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def version(vm: Any) -> str:
    profile = vm["model"]["properties"].get("applicationProfile") or {}
    found = [VERSION.search(a["packageReferenceId"]) for a in _list(profile)]
    return next((match[1] for match in found if match), "")


def _list(profile: Any) -> list[Any]:
    return list(profile.get("galleryApplications") or [])


def listed(url: str) -> Any:
    """Two pages, as a long list has."""
    group = re.search(r"/resourceGroups/([^/]+)/", url)
    files = sorted(WORLD.glob(f"{group[1] if group else '*'}+*.json"))
    half = len(files) // 2
    part = files[half:] if "page=2" in url else files[:half]
    found = {"value": [json.loads(file.read_text())["model"] for file in part]}
    return found if "page=2" in url else {**found, "nextLink": f"{url}&page=2"}


def change(vm: Any) -> Any:
    properties = vm["model"]["properties"]
    properties.update(json.loads(option("--body"))["properties"])
    properties["provisioningState"] = "Updating"
    vm["log"].append(version(vm))
    return vm["model"]


def look(vm: Any) -> Any:
    properties = vm["model"]["properties"]
    if properties["provisioningState"] == "Updating":
        is_bad = version(vm) in vm["fails"]
        properties["provisioningState"] = "Failed" if is_bad else "Succeeded"
        shown = json.loads(json.dumps(vm["model"]))
        shown["properties"]["provisioningState"] = "Updating"
        return shown
    return vm["model"]


def rest() -> Any:
    url = option("--url")
    found = re.match(r"(/subscriptions/s/resourceGroups/(\w+)/.*/(\w[\w-]*))\?", url)
    if not found or found[3] == "virtualMachines":
        return listed(url)
    file = WORLD / f"{found[2]}+{found[3]}.json"
    with file.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        vm = json.loads(file.read_text())
        answer = change(vm) if option("--method") == "patch" else look(vm)
        file.write_text(json.dumps(vm))
    return answer


def run_command() -> Any:
    """Run the script, on a machine whose bridge is ready or not."""
    group, name = option("--ids").split("/")[4::4]
    vm = json.loads((WORLD / f"{group}+{name}.json").read_text())
    script = option("--scripts").replace("/opt/sebridge/bin", str(WORLD))
    missing = ["imds: no document"] if version(vm) in vm["sick"] else []
    if option("--command-id") == "RunPowerShellScript":
        assert "ConvertFrom-Json" in script
        said = "missing: something" if missing else "sebridge: ready"
    else:
        answer = {} if vm.get("dead") else {"missing": missing}
        said = subprocess.run(  # noqa: S603 - the script under test
            ["/bin/bash", "-c", script],
            env={"PATH": os.environ["PATH"], "ANSWER": json.dumps(answer)},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    return {"value": [{"message": f"Enable succeeded: \n[stdout]\n{said}\n[stderr]\n"}]}


if os.environ.get("REFUSES"):
    sys.exit("ERROR: Please run 'az login' to setup account.")
if sys.argv[1] == "account":
    answer: Any = {"id": "s"}
else:
    answer = rest() if sys.argv[1] == "rest" else run_command()
sys.stdout.write(json.dumps(answer))
