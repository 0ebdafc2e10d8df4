"""Finds out where this program was installed from, for messages about missing extras.

A package index may not have this package. So the note that pip made at the installation
(PEP 610, ``direct_url.json``) is read: it names the wheel, checkout or address.
"""

import json
from pathlib import Path
from urllib.parse import urlsplit

NAME = "scheduled-events-bridge"


def install_command(extra: str) -> str:
    """Return the command that installs an extra from the origin of this program."""
    from importlib.metadata import (  # noqa: PLC0415 - only messages need it
        PackageNotFoundError,
        distribution,
    )

    try:
        record = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # it runs from a checkout
        return _of_file(Path(__file__).parents[2], extra)
    return command_of(record, extra)


def command_of(record: str | None, extra: str) -> str:
    """Return the install command for the note of pip.

    Args:
        record: the text of ``direct_url.json``; None = installed from an index.
        extra: the extra to install, such as ``slack``.
    """
    if record is None:
        return f"pip install '{NAME}[{extra}]'"
    origin = json.loads(record)
    address = origin["url"]
    if address.startswith("file:"):
        from urllib.request import url2pathname  # noqa: PLC0415 - 12 ms of loading

        return _of_file(Path(url2pathname(urlsplit(address).path)), extra)
    if "vcs_info" in origin:
        source = origin["vcs_info"]
        address = f"{source['vcs']}+{address}@{source['commit_id']}"
    return f"pip install '{NAME}[{extra}] @ {address}'"


def _of_file(path: Path, extra: str) -> str:
    """Return the command for a wheel or a checkout, which may be deleted."""
    lost = "" if path.exists() else f", once {path.name} is there again"
    return f"pip install '{path}[{extra}]'{lost}"
