"""Status for the command line: from the running forwarder, else from its state file."""

from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec
import orjson

from bridge import checkpoint
from bridge.clock import Clock
from bridge.config import Settings
from bridge.errors import OutboxError
from bridge.events import rfc3339
from bridge.identity import Identity
from bridge.introduction import remembered
from bridge.outbox.database import Database
from bridge.outbox.records import CHECKPOINT, REPLIES
from bridge.outbox.store import Outbox
from bridge.routing import Router
from bridge.statefile import is_there
from bridge.status import document_of, replies_of, sink_of, vm_of
from bridge.transitions import Watch

_PATIENCE = 2.0
_RECENT = 10
_KEYS = {"vm", "document", "imds", "sinks", "approvals"}
_NOT_OURS = (
    aiohttp.ClientError,
    TimeoutError,
    OSError,
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
)


async def status(
    config: Settings, sinks: Sequence[str], clock: Clock
) -> dict[str, object]:
    """Return what is known, in the shape of ``/status``.

    Args:
        config: of the forwarder.
        sinks: the names of its sinks.
        clock: what time it is.

    Raises:
        OutboxError: nobody answers and there is no state file that can be read.
    """
    answer = await running(config)
    return await _stored(config, sinks, clock) if answer is None else answer


async def running(config: Settings) -> dict[str, object] | None:
    """Ask the forwarder of this configuration; None if none answers."""
    if not config.http.listen:
        return None
    host, port = config.http.address
    token = config.http.token
    headers = {"Authorization": f"Bearer {token.reveal()}"} if token else {}
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - asked, not listened on  # nosec B104
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/status"
    timeout = aiohttp.ClientTimeout(total=_PATIENCE)
    try:
        async with (
            aiohttp.ClientSession(trust_env=False, timeout=timeout) as session,
            session.get(url, headers=headers, allow_redirects=False) as response,
        ):
            answer = msgspec.json.decode(await response.read(), type=dict[str, object])
            is_ours = response.status == 200 and answer.keys() >= _KEYS
            return answer if is_ours else None
    except _NOT_OURS:
        return None


def _existing(path: Path) -> Path:
    if not is_there(path):
        raise OutboxError(
            f"no forwarder answers, and there is no state file {path}: "
            "has it ever run with this configuration?"
        )
    return path


async def _stored(
    config: Settings, sinks: Sequence[str], clock: Clock
) -> dict[str, object]:
    path = _existing(Path(config.state.path))
    async with Database.open(path) as database:
        identity = await remembered(database) or Identity()
        router = Router(routes={}, scope="all", identity=identity)
        outbox = Outbox(database, router)
        body = await outbox.load(CHECKPOINT)
        watch = checkpoint.decode(body) if body else Watch()
        tallies = await outbox.tallies()
        now = clock.now().timestamp()
        # Without a port to ask, it may well be running.
        state = "not answering" if config.http.listen else "unknown"
        return {
            "vm": vm_of(identity),
            "document": document_of(watch),
            "imds": {
                "lastSuccess": rfc3339(watch.seen.at) if watch.seen else None,
                "state": state,
            },
            "sinks": [sink_of(sink, state, tallies.get(sink), now) for sink in sinks],
            "approvals": [
                orjson.loads(body) for body in await outbox.recent_outcomes(_RECENT)
            ],
            "replies": replies_of(tallies.get(REPLIES)),
        }
