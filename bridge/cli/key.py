"""``sebridge key``: shows the public keys of signers, and replaces that of a bridge."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import orjson

from bridge.cli.common import echo_json
from bridge.cli.ending import WRONG, fail
from bridge.foundation.values import Secret
from bridge.signing import own_key

_FILE = click.argument("file", metavar="FILE", type=Path)


@click.group()
def key() -> None:
    """Show keys for signatures, and replace the key of a bridge.

    Example: sebridge key show sign.pem >approvers.jwks
    """


@key.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=Path)
def show(files: tuple[Path, ...]) -> None:
    """Print the public keys in files of keys, as JWKS.

    The thumbprint (kid) is the name of a key in signatures. The key of a bridge is
    printed with the vmId and the resource id of its VM, as a hub wants it.

    Example: sebridge key show old.pem new.pem >approvers.jwks
    """
    found = {one["kid"]: one for path in files for one in _keys_in(path)}
    echo_json({"keys": list(found.values())}, indent=2)


@key.command()
@_FILE
def rotate(file: Path) -> None:
    """Put a new key beside that of a bridge.

    Both sign its events from then on.

    FILE is the key beside the state file. The forwarder uses both from its next start
    on. A kill at any moment leaves the old file or the new one.

    Example: sebridge key rotate /var/lib/sebridge/state.db.key
    """
    _change(own_key.rotate, file)


@key.command()
@_FILE
def retire(file: Path) -> None:
    """Take the older key out of a file that has two.

    Before, the hubs and all lists of keys must have the new one.

    Example: sebridge key retire /var/lib/sebridge/state.db.key
    """
    _change(own_key.retire, file)


def _change(change: Callable[[Path], None], file: Path) -> None:
    try:
        change(file)
    except ValueError as error:
        fail(str(error), code=WRONG)
    click.echo("Restart the forwarder: it reads the file at its start.")


def _keys_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the public keys in a file, with the VM that they belong to."""
    from bridge.signing.keys import public_keys  # noqa: PLC0415 - needs 10 MiB

    try:
        text = Secret(f"file:{path}", os.environ).reveal()
        keys = public_keys(text).values()
    except ValueError as error:
        fail(f"{path}: {error}", code=WRONG)
    held: Any = orjson.loads(text) if text.lstrip().startswith("{") else {}
    bound = {n: held[n] for n in ("vmId", "resourceId") if held.get(n)}
    yield from ({**one.jwk, **bound} for one in keys)
