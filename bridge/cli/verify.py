"""``sebridge verify``: checks the signatures of events that a receiver has kept."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from bridge.cli.common import echo_json
from bridge.cli.ending import FAILED, WRONG, fail
from bridge.foundation.printable import printable
from bridge.foundation.values import Secret
from bridge.signing.archive import GOOD, Found, Tally, examined, is_one_document
from bridge.signing.keys import PublicKey, public_keys


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=Path)
@click.option(
    "--keys",
    "key_files",
    metavar="FILE",
    multiple=True,
    required=True,
    type=Path,
    help="The public keys of the bridges (JWKS or PEM); may be given several times.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(
    files: tuple[Path, ...], key_files: tuple[Path, ...], *, as_json: bool
) -> None:
    """Check the signatures of events in files of a receiver.

    The files may be of the file sink, the archive of a webhook, requests to Splunk or
    exports of Splunk and Elastic. Each event whose signature does not hold is named.

    Exit code 0: every signature holds. 1: at least one does not, or there is no event.

    Example: sebridge verify events.ndjson --keys bridges.jwks
    """
    keys, tally = keys_of(key_files, "--keys "), Tally()
    for path in files:
        for found in examined(_lines(path), keys, tally):
            if not as_json and found.opinion.verdict not in GOOD:
                click.echo(_line(path, found))
    counts = {one.value: count for one, count in sorted(tally.verdicts.items())}
    if as_json:
        echo_json({"verdicts": counts, "linesWithoutEvent": tally.no_event})
    else:
        words = [f"{count} {what}" for what, count in counts.items()]
        if tally.no_event:
            words.append(f"{tally.no_event} lines without an event")
        click.echo(", ".join(words) or "no events")
    if not tally.is_good:
        raise SystemExit(FAILED)


def keys_of(paths: Iterable[Path], place: str = "") -> dict[str, PublicKey]:
    """Return the public keys in files; end the command if one has none."""
    found: dict[str, PublicKey] = {}
    for path in paths:
        try:
            found |= public_keys(Secret(f"file:{path}", os.environ).reveal())
        except ValueError as error:
            fail(f"{place}{path}: {error}", code=WRONG)
    return found


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; one document of several lines is one line."""
    try:
        with path.open("rb") as file:
            start = file.read(65536)
            file.seek(0)
            if is_one_document(start):
                yield file.read()
            else:
                yield from file
    except OSError as error:
        fail(f"{path}: {error.strerror}", code=WRONG)


def _line(path: Path, found: Found) -> str:
    key = f" ({found.opinion.key_id})" if found.opinion.key_id else ""
    verdict = found.opinion.verdict.value
    return printable(f"{path}:{found.line}: {found.id}: {verdict}{key}")
