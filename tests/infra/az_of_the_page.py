"""Stands in for the Azure CLI, for who follows infra/fleet.md.

What is deployed is held against the Bicep file: its parameters, and later its outputs.
Blobs are files in a folder. What it does not know is told, and ends with 2. VMs are
those of az_stand_in.py.
"""

import json
import os
import re
import runpy
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
WORLD = Path(os.environ["WORLD"])
GALLERY = "/subscriptions/s/resourceGroups/images/providers/Microsoft.Compute"
OUTPUTS = {
    "namespace": "fleet.servicebus.windows.net",
    "identityId": "/subscriptions/s/identities/sebridge",
    "identityClientId": "5eb41d6e-0000-4000-8000-00000000c11e",
}
SILENT = (
    *("group create", "role assignment create", "storage account create"),
    *("storage container create", "vm identity assign"),
)
ANSWERS = {
    "ad signed-in-user show": "me",
    "storage account show": "/subscriptions/s/storage",
    "policy state list": "/subscriptions/s/resourceGroups/web/vm",
}


class UnknownError(Exception):
    """The page asks for something that is not there."""


def option(*names: str) -> str:
    (at,) = (number for number, word in enumerate(sys.argv) if word in names)
    return sys.argv[at + 1]


def given() -> dict[str, str]:
    """Return the parameters of a deployment: all words behind -p with an =."""
    words = sys.argv[sys.argv.index("-p") + 1 :]
    return dict(word.split("=", 1) for word in words)


def deploy() -> str:
    """Note a deployment whose file has every parameter that is given."""
    path = Path(option("-f"))
    declared = set(re.findall(r"(?m)^param (\w+)", path.read_text()))
    if unknown := given().keys() - declared:
        raise UnknownError(f"{path} has no parameter {', '.join(sorted(unknown))}")
    name = option("-n") if "-n" in sys.argv else path.stem
    note = {"file": str(path.resolve()), **given()}
    (WORLD / f"deployed.{name}").write_text(json.dumps(note))
    return ""


def output() -> str:
    """Return an output of a deployment that was made and has it."""
    note = json.loads((WORLD / f"deployed.{option('-n')}").read_text())
    (name,) = re.findall(r"^properties\.outputs\.(\w+)\.value$", option("--query"))
    if f"output {name} string" not in Path(note["file"]).read_text():
        raise UnknownError(f"{note['file']} has no output {name}")
    application = note.get("applicationName", "sebridge")
    return OUTPUTS.get(name) or f"{GALLERY}/galleries/g/applications/{application}"


def upload() -> str:
    shutil.copy(option("-f"), WORLD / "blobs" / option("-n"))
    return ""


def address() -> str:
    blob = WORLD / "blobs" / option("-n")
    if not blob.is_file():
        raise UnknownError(f"there is no blob {blob.name}")
    return f"https://packages.example/{blob.name}?sig=x"


def vms() -> str:
    files = sorted(WORLD.glob("web+*.json"))
    return "\n".join(json.loads(file.read_text())["model"]["id"] for file in files)


COMMANDS = {
    "deployment group create": deploy,
    "deployment sub create": deploy,
    "deployment group show": output,
    "storage blob upload": upload,
    "storage blob generate-sas": address,
    "vm list": vms,
}


def main() -> int:
    """Answer one command."""
    words = " ".join(sys.argv[1:])
    with (WORLD / "calls").open("a") as calls:
        calls.write(f"{words}\n")
    if words.startswith(("account show", "rest ", "vm run-command")):
        runpy.run_path(str(HERE / "az_stand_in.py"))
        return 0
    if words.startswith(SILENT):
        return 0
    for known, answer in ANSWERS.items():
        if words.startswith(known):
            sys.stdout.write(f"{answer}\n")
            return 0
    for known, command in COMMANDS.items():
        if words.startswith(known):
            sys.stdout.write(f"{command()}\n")
            return 0
    raise UnknownError(f"az {words}")


if __name__ == "__main__":
    try:
        code = main()
    except UnknownError as error:
        sys.stderr.write(f"ERROR: {error}\n")
        code = 2
    sys.exit(code)
