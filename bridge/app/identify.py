"""Finding out who this VM is.

Instance metadata is asked patiently; what it does not say comes from the last life
of this bridge, and in the end there is a name that says that nothing is known.

    meet ──an answer, or [identity] says all──▶ settle
      └──no answer──▶ provisional, while introduce asks for a minute ──▶ settle
"""

import asyncio
import logging
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Protocol
from urllib.parse import quote

import msgspec

from bridge.events.identity import Identity, IdentityConfig
from bridge.foundation.clock import Clock
from bridge.foundation.errors import MetadataError
from bridge.outbox.statements import load, save
from bridge.outbox.storage.database import Database

log = logging.getLogger(__name__)

PATIENCE = 60.0
_FIRST_TIMEOUT = 1.0
_LEAST_TIMEOUT = 0.5
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 5.0
IDENTITY = "identity"
_SOURCE = "source"


class Instance(Protocol):
    """Who can be asked who this VM is."""

    async def instance(
        self,
        timeout: float,  # noqa: ASYNC109 - how long the request may take
    ) -> Mapping[str, object]:
        """Return the ``compute`` object of instance metadata.

        Raises:
            MetadataError: it cannot be had now.
        """
        ...


async def meet(client: Instance, config: IdentityConfig) -> Identity | None:
    """Ask instance metadata once who this VM is, for a second at most.

    Returns:
        The identity, overridden by ``[identity]``; None if metadata does not answer
        and the configuration does not say all that matters.
    """
    try:
        return await _asked(client, config, _FIRST_TIMEOUT)
    except MetadataError as error:
        if config.is_complete:
            return Identity().overridden(config)
        log.info("asking who this VM is", extra={"fault": str(error)})
        return None


async def introduce(
    client: Instance,
    config: IdentityConfig,
    clock: Clock,
    stop: asyncio.Event,
    patience: float = PATIENCE,
) -> Identity | None:
    """Ask instance metadata who this VM is again and again, while patience lasts.

    Its requests are short at first: while one is on its way, the document cannot be
    read.

    Returns:
        The identity, overridden by ``[identity]``; None if it is not to be had and
        the configuration does not say enough either.
    """
    deadline = clock.monotonic() + patience
    timeout, wait = _FIRST_TIMEOUT, _FIRST_WAIT
    while not await clock.wait(stop, wait):
        left = max(deadline - clock.monotonic(), _LEAST_TIMEOUT)
        try:
            return await _asked(client, config, min(timeout, left))
        except MetadataError as error:
            timeout, wait = 2 * timeout, min(2 * wait, _LONGEST_WAIT)
            if clock.monotonic() + wait > deadline:
                log.warning("who this VM is cannot be had", extra={"fault": str(error)})
                break
    given = Identity().overridden(config)
    return given if given.is_known else None


async def _asked(
    client: Instance,
    config: IdentityConfig,
    timeout: float,  # noqa: ASYNC109 - how long the request may take
) -> Identity:
    compute = await client.instance(timeout)
    return Identity.from_metadata(compute).overridden(config)


@dataclass(frozen=True, slots=True)
class Origin:
    """Who tells: what goes into the event_context."""

    identity: Identity
    source: str


async def provisional(
    database: Database, config: IdentityConfig, configured_source: str
) -> Origin:
    """Return who tells of what cannot wait until this VM is known.

    Only what is configured is taken for its identity: the disk may be a copy of another
    VM's, and who takes himself for that one keeps silent about what is his. Where the
    name is not configured, ``affectsThisVm`` is null and every scope lets events pass.

    Args:
        database: the state file.
        config: ``[identity]``.
        configured_source: ``events.source``; "" = not configured.
    """
    identity = Identity().overridden(config)
    source = await _source(database, identity, configured_source)
    return Origin(identity, source or makeshift_source())


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
    source = await _source(database, identity, configured_source)
    if not source:
        source = makeshift_source()
        log.warning(
            "no resource group is known: the source names this host",
            extra={"source": source},
        )
    values = {_SOURCE: source.encode(), IDENTITY: msgspec.json.encode(identity)}
    if source.startswith("urn:sebridge:"):
        del values[_SOURCE]  # a makeshift: what is learned later is better
    await database.run(lambda db: save(db, values))
    return Origin(identity, source)


async def _source(database: Database, identity: Identity, configured: str) -> str:
    """Return the source as far as it is known; "" where it is not."""
    last = await database.run(lambda db: load(db, _SOURCE))
    return (
        configured or identity.source or (last.decode(errors="replace") if last else "")
    )


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
    body = await database.run(lambda db: load(db, IDENTITY))
    if body is None:
        return None
    try:
        return msgspec.json.decode(body, type=Identity)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fault = {"fault": f"{type(error).__name__}: {error}"}
        log.error("who this VM was cannot be read", extra=fault)  # noqa: TRY400 - the text says it all
        return None
