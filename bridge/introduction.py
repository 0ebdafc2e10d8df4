"""Finding out who this VM is, before the first event is told.

Instance metadata is asked patiently; what it does not say comes from the last life
of this bridge, and in the end there is a name that says that nothing is known.
"""

import asyncio
import logging
import platform
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import msgspec

from bridge.clock import Clock
from bridge.errors import MetadataError
from bridge.identity import Identity, IdentityConfig
from bridge.outbox.database import Database
from bridge.outbox.statements import load, save

log = logging.getLogger(__name__)

_PATIENCE = 60.0
_HURRY = 10.0  # a notice may be half a minute
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 5.0
_BUSY_SECONDS = 1.0
_UNKNOWN = "who this VM is cannot be had"
_UNCHECKED = (
    "who this VM is cannot be had: it is taken for the one that the state file is of, "
    "whether the disk was cloned is not known"
)
_IDENTITY = "identity"
_SOURCE = "source"


class Instance(Protocol):
    """Who can be asked who this VM is."""

    async def instance(self) -> Mapping[str, object]:
        """Return the ``compute`` object of instance metadata.

        Raises:
            MetadataError: it cannot be had now.
        """
        ...


async def introduce(
    client: Instance,
    config: IdentityConfig,
    clock: Clock,
    stop: asyncio.Event,
    *,
    is_remembered: bool = False,
) -> Identity | None:
    """Ask instance metadata who this VM is: again and again, for a minute at most.

    Args:
        client: who is asked.
        config: what is not asked for.
        clock: what time it is.
        stop: ends the asking.
        is_remembered: the state file tells who this VM was; then ten seconds are
            enough, and whether the disk is a clone of another's is not known.

    Returns:
        The identity, overridden by ``[identity]``; None if it is not to be had and
        the configuration does not say enough either.
    """
    given = Identity().overridden(config)
    patience = _HURRY if is_remembered else _PATIENCE
    deadline, wait = clock.monotonic() + patience, _FIRST_WAIT
    while not stop.is_set():
        try:
            return Identity.from_metadata(await client.instance()).overridden(config)
        except MetadataError as error:
            if config.is_complete:
                return given
            if clock.monotonic() + wait > deadline:
                text = _UNCHECKED if is_remembered else _UNKNOWN
                log.warning(text, extra={"fault": str(error)})
                break
            if wait == _FIRST_WAIT:
                log.info("asking who this VM is", extra={"fault": str(error)})
        await clock.wait(stop, wait)
        wait = min(2 * wait, _LONGEST_WAIT)
    return given if given.is_known else None


@dataclass(frozen=True, slots=True)
class Origin:
    """Who tells: what goes into the teller."""

    identity: Identity
    source: str


async def settle(
    database: Database, identity: Identity | None, configured_source: str
) -> Origin:
    """Decide on identity and source, and remember both.

    Args:
        database: the state file.
        identity: as learned; None when it is not known.
        configured_source: ``events.source``; "" = not configured.
    """
    identity = _completed(identity or Identity(), await remembered(database))
    last = await database.run(lambda db: load(db, _SOURCE))
    source = configured_source or identity.source or (last.decode() if last else "")
    if not source:
        source = f"urn:sebridge:{quote(platform.node().lower() or 'unknown', safe='')}"
        log.warning(
            "no resource group is known: the source names this host",
            extra={"source": source},
        )
    values = {_SOURCE: source.encode(), _IDENTITY: msgspec.json.encode(identity)}
    if source.startswith("urn:sebridge:"):
        del values[_SOURCE]  # a makeshift: what is learned later is better
    await database.run(lambda db: save(db, values))
    return Origin(identity, source)


def _completed(identity: Identity, last: Identity | None) -> Identity:
    """Fill in from the last life what only instance metadata could have said.

    Metadata always names a subscription, so without one it has not answered; what
    it leaves out when it answers is not so any more.
    """
    if last is None or identity.subscription_id is not None:
        return identity
    known = {key: value for key, value in asdict(identity).items() if value}
    return Identity(**{**asdict(last), **known})


async def remembered(database: Database) -> Identity | None:
    """Return the identity that the last life of this bridge knew."""
    body = await database.run(lambda db: load(db, _IDENTITY))
    return None if body is None else msgspec.json.decode(body, type=Identity)


async def is_remembered(path: Path) -> bool:
    """Whether a state file tells who this VM is, as instance metadata once said it.

    It is only looked at: one that is missing, damaged or of another version tells
    what it can, and whoever opens it deals with that.
    """
    return await asyncio.to_thread(_is_remembered, path)


def _is_remembered(path: Path) -> bool:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)) as db:
            body, source = load(db, _IDENTITY), load(db, _SOURCE)
    except sqlite3.Error:
        return False
    try:
        last = msgspec.json.decode(body or b"", type=Identity)
    except (TypeError, ValueError):  # msgspec's errors are the latter
        return False
    return bool(source) and last.subscription_id is not None
