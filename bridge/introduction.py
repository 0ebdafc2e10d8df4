"""Finding out who this VM is, before the first event is told.

Instance metadata is asked patiently; what it does not say comes from the last life
of this bridge, and in the end there is a name that says that nothing is known.
"""

import asyncio
import logging
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 5.0
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
    client: Instance, config: IdentityConfig, clock: Clock, stop: asyncio.Event
) -> Identity | None:
    """Ask instance metadata who this VM is, for a minute at most.

    Returns:
        The identity, overridden by ``[identity]``; None if it is not to be had and
        the configuration does not say enough either.
    """
    given = Identity().overridden(config)
    deadline, wait = clock.monotonic() + _PATIENCE, _FIRST_WAIT
    while not stop.is_set():
        try:
            return Identity.from_metadata(await client.instance()).overridden(config)
        except MetadataError as error:
            if config.is_complete:
                return given
            if clock.monotonic() + wait > deadline:
                log.warning("who this VM is cannot be had", extra={"fault": str(error)})
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
        source = makeshift_source()
        log.warning(
            "no resource group is known: the source names this host",
            extra={"source": source},
        )
    values = {_SOURCE: source.encode(), _IDENTITY: msgspec.json.encode(identity)}
    if source.startswith("urn:sebridge:"):
        del values[_SOURCE]  # a makeshift: what is learned later is better
    await database.run(lambda db: save(db, values))
    return Origin(identity, source)


def makeshift_source() -> str:
    """Return the source of events where no resource group is known: this host."""
    return f"urn:sebridge:{quote(platform.node().lower() or 'unknown', safe='')}"


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
