"""Writes the wheel for machines: the program without the local Azure and the demo.

    python vm_wheel.py WHEEL FOLDER

The file has the same name in FOLDER, and the same bytes each time. Who wants the rest
takes the whole wheel, with its extra [simulator].
"""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

LEFT_OUT = ("bridge/demo/", "bridge/simulator/")
PLUGIN = "[pytest11]"  # of the local Service Bus: pytest would miss it


def without_plugin(points: str) -> str:
    """Return the entry points without the plugin of pytest.

    Args:
        points: the text of ``entry_points.txt``; sections are parted by a blank line.
    """
    parts = points.strip().split("\n\n")
    return "\n\n".join(part for part in parts if not part.startswith(PLUGIN)) + "\n"


def row(name: str, body: bytes) -> str:
    """Return the line of RECORD about a file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=")
    return f"{name},sha256={digest.decode()},{len(body)}\n"


def write(source: Path, target: Path) -> None:
    """Write the wheel; RECORD is its last file, as in the source."""
    rows: list[str] = []
    with zipfile.ZipFile(source) as whole, zipfile.ZipFile(target, "w") as out:
        for entry in whole.infolist():
            name, body = entry.filename, whole.read(entry)
            if name.startswith(LEFT_OUT):
                continue
            if name.endswith(".dist-info/entry_points.txt"):
                body = without_plugin(body.decode()).encode()
            if name.endswith(".dist-info/RECORD"):
                body = "".join([*rows, f"{name},,\n"]).encode()
            rows.append(row(name, body))
            out.writestr(entry, body)


if __name__ == "__main__":
    wheel, folder = map(Path, sys.argv[1:])
    write(wheel, folder / wheel.name)
