"""Where this program was installed from, so that a message can say how to install more.

There may be no package of this name in an index: what pip noted at the installation
(PEP 610, ``direct_url.json``) names the wheel, the checkout or the address instead.
"""

import json
from pathlib import Path
from urllib.parse import urlsplit

NAME = "scheduled-events-bridge"


def install_command(extra: str) -> str:
    """Return the command that installs an extra where this program came from."""
    from importlib.metadata import (  # noqa: PLC0415 - read by messages alone
        PackageNotFoundError,
        distribution,
    )

    try:
        record = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # it runs out of a checkout
        return _of_file(Path(__file__).parents[2], extra)
    return command_of(record, extra)


def command_of(record: str | None, extra: str) -> str:
    """Return the command for what pip noted.

    Args:
        record: the text of ``direct_url.json``; None where an index was asked.
        extra: what is to be installed as well, such as ``slack``.
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
    """Return the command for a wheel or a checkout, which may be gone."""
    lost = "" if path.exists() else f", once {path.name} is there again"
    return f"pip install '{path}[{extra}]'{lost}"
