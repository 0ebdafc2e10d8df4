"""What was observed, as bytes for the state file. Pure.

Monotonic time means nothing to a later life of the process, so it is left out.
"""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from bridge.events.watch import Moment, Watch


def encode(watch: Watch) -> bytes:
    """Write a watch as JSON."""
    plain = replace(
        watch,
        seen=watch.seen and _wall(watch.seen),
        fall=watch.fall and replace(watch.fall, seen=_wall(watch.fall.seen)),
        known={
            key: replace(
                known,
                seen=_wall(known.seen),
                since=known.since and known.since.proven(watch.seen or known.seen),
            )
            for key, known in watch.known.items()
        },
    )
    return msgspec.json.encode(plain)


def decode(body: bytes) -> Watch:
    """Read what ``encode`` wrote.

    Raises:
        msgspec.DecodeError: it was not written by ``encode``.
    """
    try:
        watch = msgspec.json.decode(body, type=Watch)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError("no JSON in UTF-8, or nested too deep") from error
    if any(moment.monotonic is not None for moment in _moments(watch)):
        raise msgspec.DecodeError("a monotonic time, which no life leaves behind")
    return watch


def _moments(watch: Watch) -> Iterator[Moment]:
    moments = [watch.seen, watch.fall.seen if watch.fall else None]
    for known in watch.known.values():
        moments += [known.seen, known.since]
    return (moment for moment in moments if moment is not None)


def _wall(moment: Moment) -> Moment:
    return replace(moment, monotonic=None)
