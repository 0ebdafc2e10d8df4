"""``sebridge key``: shows the public keys of those who sign."""

import os
from pathlib import Path

import click

from bridge.cli.common import echo_json
from bridge.cli.ending import WRONG, fail
from bridge.foundation.values import Secret


@click.group()
def key() -> None:
    """Show keys for signatures.

    Example: sebridge key show sign.pem >approvers.jwks
    """


@key.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=Path)
def show(files: tuple[Path, ...]) -> None:
    """Print the public keys in files of keys, as JWKS.

    The thumbprint (kid) is the name of a key in signatures.

    Example: sebridge key show old.pem new.pem >approvers.jwks
    """
    from bridge.signing.keys import PublicKey, public_keys  # noqa: PLC0415 - needs 10 MiB

    found: dict[str, PublicKey] = {}
    for file in files:
        try:
            found |= public_keys(Secret(f"file:{file}", os.environ).reveal())
        except ValueError as error:
            fail(f"{file}: {error}", code=WRONG)
    echo_json({"keys": [one.jwk for one in found.values()]}, indent=2)
