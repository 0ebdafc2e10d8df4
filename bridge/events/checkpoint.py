"""Encodes what was observed for the state file, and decodes it. Pure.

Monotonic times are left out: they mean nothing after a restart.
"""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from bridge.events.watch import Moment, Watch


def encode(watch: Watch, now: Moment | None = None) -> bytes:
    """Write a watch as JSON.

    Args:
        watch: what is known.
        now: the time of writing; None = the time at which the document was read. If the
            wall clock has jumped forward until then, the jump is subtracted, so that
            no event looks older after a restart.
    """
    last = now or watch.seen
    plain = replace(
        watch,
        seen=watch.seen and _wall(watch.seen),
        fall=watch.fall and replace(watch.fall, seen=_wall(watch.fall.seen)),
        known={
            key: replace(
                known,
                seen=_wall(known.seen),
                since=known.since and known.since.proven(last or known.seen),
            )
            for key, known in watch.known.items()
        },
    )
    return msgspec.json.encode(plain)


def decode(body: bytes) -> Watch:
    """Parse what ``encode`` wrote.

    Raises:
        msgspec.DecodeError: the bytes were not written by ``encode``.
    """
    try:
        watch = msgspec.json.decode(body, type=Watch)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError("not JSON in UTF-8, or nested too deep") from error
    if any(moment.monotonic is not None for moment in _moments(watch)):
        raise msgspec.DecodeError("has a monotonic time, which is never stored")
    return watch


def _moments(watch: Watch) -> Iterator[Moment]:
    moments = [watch.seen, watch.fall.seen if watch.fall else None]
    for known in watch.known.values():
        moments += [known.seen, known.since]
    return (moment for moment in moments if moment is not None)


def _wall(moment: Moment) -> Moment:
    return replace(moment, monotonic=None)
