"""What was observed, as bytes for the state file. Pure.

Monotonic time means nothing to a later life of the process, so it is left out.
"""

from dataclasses import replace

import msgspec

from bridge.transitions import Moment, Watch


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
        return msgspec.json.decode(body, type=Watch)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError("no JSON in UTF-8, or nested too deep") from error


def _wall(moment: Moment) -> Moment:
    return replace(moment, monotonic=None)
