"""Writes a folder as a container image: an OCI archive of one layer.

    python oci_image.py ROOT ARCHIVE x86_64|aarch64 VERSION

The same folder gives the same bytes: names are sorted, and every time is that of
SOURCE_DATE_EPOCH. The layout is that of the OCI image specification, version 1.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

USER = 10001
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def entry(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a file's entry without what differs from build to build."""
    info.uname = info.gname = ""
    info.mtime = int(os.environ["SOURCE_DATE_EPOCH"])
    if info.name == "var/lib/sebridge":
        info.uid = info.gid = USER
        info.mode = 0o700
    return info


def layer(root: Path) -> bytes:
    """Return the files below a folder as a tar."""
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            tar.add(path, arcname=name, recursive=False, filter=entry)
    return found.getvalue()


def config(diff: str, machine: str, version: str) -> dict[str, Any]:
    """Return how the image is run."""
    return {
        "architecture": ARCHITECTURES[machine],
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": [
                "PATH=/opt/sebridge/bin:/usr/local/bin:/usr/bin:/bin",
                "PYTHONDONTWRITEBYTECODE=1",
                "PYTHONUNBUFFERED=1",
            ],
            "Entrypoint": ["sebridge"],
            "Cmd": ["run", "-c", "/etc/sebridge/bridge.toml"],
            "Volumes": {"/var/lib/sebridge": {}},
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "scheduled-events-bridge",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "MIT",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [diff]},
    }


class Layout:
    """The files of an image layout, by name."""

    def __init__(self) -> None:
        self.files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

    def blob(self, kind: str, body: bytes) -> dict[str, object]:
        """Add a blob; return how others name it."""
        digest = hashlib.sha256(body).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = body
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(body)}

    def image(self, files: bytes, machine: str, version: str) -> None:
        """Add an image of one layer, and the index that names it."""
        diff = f"sha256:{hashlib.sha256(files).hexdigest()}"
        packed = gzip.compress(files, 6, mtime=0)
        settings = json.dumps(config(diff, machine, version)).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.blob(CONFIG, settings),
            "layers": [self.blob(LAYER, packed)],
        }
        named = self.blob(MANIFEST, json.dumps(manifest).encode())
        named["annotations"] = {"org.opencontainers.image.ref.name": version}
        index = {"schemaVersion": 2, "manifests": [named]}
        self.files["index.json"] = json.dumps(index).encode()

    def write(self, archive: Path) -> None:
        """Write the layout as a tar."""
        with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
            for name, body in sorted(self.files.items()):
                info = entry(tarfile.TarInfo(name))
                info.size = len(body)
                tar.addfile(info, io.BytesIO(body))


if __name__ == "__main__":
    root, archive, machine, version = sys.argv[1:]
    layout = Layout()
    layout.image(layer(Path(root)), machine, version)
    layout.write(Path(archive))
