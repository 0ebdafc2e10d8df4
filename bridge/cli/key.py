"""``sebridge key``: shows the public keys of those who sign."""

from pathlib import Path

import click

from bridge.cli.common import echo_json


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
    from bridge.cli.verify import keys_of  # noqa: PLC0415 - needs 10 MiB

    found = keys_of(files)
    echo_json({"keys": [one.jwk for one in found.values()]}, indent=2)
