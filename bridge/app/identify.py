"""Finds out the identity of this VM.

The values come from instance metadata. If metadata does not answer, the values that
were stored before the restart are used. If nothing is known, the source names this
host.

    ask_once ──answer, or [identity] is complete──▶ settle
      └──no answer──▶ provisional, while ask_repeatedly asks for a minute ──▶ settle
            └──still no answer──▶ ask_slowly, until there is one ──▶ settle anew
"""

import asyncio
import logging
import platform
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from bridge.events.identity import Identity, IdentityConfig
from bridge.foundation.clock import Clock
from bridge.foundation.errors import MetadataError
from bridge.outbox.storage.database import Database
from bridge.outbox.storage.journal import load

log = logging.getLogger(__name__)

PATIENCE = 60.0
_FIRST_TIMEOUT = 1.0
_LEAST_TIMEOUT = 0.5
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 5.0
_LATE_TIMEOUT = 5.0
_LATE_WAITS = 10  # times the patience: every 10 min
IDENTITY = "identity"
_SOURCE = "source"


class Instance(Protocol):
    """Reads instance metadata."""

    async def instance(
        self,
        timeout: float,  # noqa: ASYNC109 - how long the request may take
    ) -> Mapping[str, object]:
        """Return the ``compute`` object of instance metadata.

        Raises:
            MetadataError: instance metadata cannot be read now.
        """
        ...


async def ask_once(client: Instance, config: IdentityConfig) -> Identity | None:
    """Read instance metadata once, for at most a second.

    Returns:
        The identity, with the values of ``[identity]`` where given; None if metadata
        does not answer and ``[identity]`` is not complete.
    """
    try:
        return await _asked(client, config, _FIRST_TIMEOUT)
    except MetadataError as error:
        if config.is_complete:
            return Identity().overridden(config)
        log.info("asking who this VM is", extra={"fault": str(error)})
        return None


async def ask_repeatedly(
    client: Instance,
    config: IdentityConfig,
    clock: Clock,
    stop: asyncio.Event,
    patience: float = PATIENCE,
) -> Identity | None:
    """Read instance metadata again and again, for at most ``patience`` seconds.

    The first requests have a short timeout, because the document cannot be read during
    a request.

    Returns:
        The identity, with the values of ``[identity]`` where given; None if metadata
        does not answer.
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
                fault = {"fault": str(error)}
                log.warning("identity of this VM cannot be read", extra=fault)
                break
    return None


async def ask_slowly(
    client: Instance,
    config: IdentityConfig,
    clock: Clock,
    stop: asyncio.Event,
    patience: float = PATIENCE,
) -> Identity | None:
    """Read instance metadata now and then, until it answers.

    Args:
        client: reads instance metadata.
        config: ``[identity]``.
        clock: measures the waits.
        stop: ends the asking.
        patience: the first wait, in seconds; each wait is twice as long as the one
            before, up to ten times the first.

    Returns:
        The identity, with the values of ``[identity]`` where given; None = stopped.
    """
    wait = patience
    while not await clock.wait(stop, wait):
        try:
            return await _asked(client, config, _LATE_TIMEOUT)
        except MetadataError:
            wait = min(2 * wait, _LATE_WAITS * patience)
    return None


async def _asked(
    client: Instance,
    config: IdentityConfig,
    timeout: float,  # noqa: ASYNC109 - how long the request may take
) -> Identity:
    compute = await client.instance(timeout)
    return Identity.from_metadata(compute).overridden(config)


class Origin(Struct, frozen=True):
    """The identity and the source for the EventContext."""

    identity: Identity
    source: str


async def provisional(
    database: Database, identity: Identity, configured_source: str
) -> Origin:
    """Return identity and source for events that cannot wait for the identity.

    The identity contains only configured values, not stored ones: the disk may be a
    copy of another VM's, and with the wrong name this VM's own events would be left
    out. Without a name, ``affectsThisVm`` is null, and every scope lets events through.

    Args:
        database: the state file.
        identity: the values of ``[identity]``.
        configured_source: ``events.source``; "" = not configured.
    """
    source = await _source(database, identity, configured_source)
    return Origin(identity, source or makeshift_source())


async def settle(
    database: Database, identity: Identity, configured_source: str
) -> Origin:
    """Decide on identity and source, and store both.

    Args:
        database: the state file.
        identity: from instance metadata and ``[identity]``, as far as known.
        configured_source: ``events.source``; "" = not configured.
    """
    identity = _completed(identity, await remembered(database))
    source = await _source(database, identity, configured_source)
    if not source:
        source = makeshift_source()
        log.warning(
            "no resource group is known: the source names this host",
            extra={"source": source},
        )
    values = {_SOURCE: source.encode(), IDENTITY: msgspec.json.encode(identity)}
    if source.startswith("urn:sebridge:"):
        del values[_SOURCE]  # only a substitute: do not use it after a restart
    database.put({("meta", (name,)): (value,) for name, value in values.items()})
    return Origin(identity, source)


async def _source(database: Database, identity: Identity, configured: str) -> str:
    """Return the source: configured, from the identity, or stored; "" if unknown."""
    last = await database.read(lambda db: load(db, _SOURCE))
    return (
        configured or identity.source or (last.decode(errors="replace") if last else "")
    )


def makeshift_source() -> str:
    """Return the source of events if no resource group is known: it names this host."""
    return f"urn:sebridge:{quote(platform.node().lower() or 'unknown', safe='')}"


def _completed(identity: Identity, last: Identity | None) -> Identity:
    """Add the stored values, if instance metadata has not answered.

    Metadata always contains a subscription: an identity without one means that metadata
    has not answered. If it has answered, stored values that it leaves out are obsolete.
    """
    if last is None or identity.subscription_id is not None:
        return identity
    known = {key: value for key, value in asdict(identity).items() if value}
    return Identity(**{**asdict(last), **known})


async def remembered(database: Database) -> Identity | None:
    """Return the identity that was stored before the restart; None if there is none."""
    return decoded(await database.read(lambda db: load(db, IDENTITY)))


def decoded(body: bytes | None) -> Identity | None:
    """Return the identity in the value ``IDENTITY``; None = none, or it is damaged."""
    if body is None:
        return None
    try:
        return msgspec.json.decode(body, type=Identity)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fault = {"fault": f"{type(error).__name__}: {error}"}
        log.error("stored identity of this VM is damaged", extra=fault)  # noqa: TRY400 - a traceback would not help
        return None
