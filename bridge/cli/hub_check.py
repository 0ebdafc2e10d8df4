"""``check --connect`` for a hub: tests its store and sources, finds other approvers.

Nothing is sent, received or written.
"""

from collections.abc import Iterator

from bridge.diagnostics.finding import Finding
from bridge.events.build import rfc3339
from bridge.foundation.clock import Clock
from bridge.foundation.errors import ApprovalQueueError, HubStoreError
from bridge.hub.config import HubConfig, SourceConfig
from bridge.hub.store.lists import OtherApprover, other_approvers
from bridge.hub.store.store import glance
from bridge.servicebus.receiver import open_queue

_MOST_NAMED = 5
_ADVICE = (
    "let only one hub or app decide for an approval entity: each counts only its own "
    "votes"
)


async def examine(config: HubConfig, clock: Clock) -> list[Finding]:
    """Test the store and all sources of a hub."""
    found = await _of_store(config)
    return [*found, *[await _of_source(one, clock) for one in config.sources]]


async def _of_store(config: HubConfig) -> list[Finding]:
    try:
        others = await glance(config, other_approvers)
    except HubStoreError as error:
        path = config.sqlite_file
        is_new = path is not None and path.parent.is_dir() and not path.exists()
        return [Finding(is_good=is_new, text=str(error), is_warning=is_new)]
    return [Finding(is_good=True, text="the store answers"), *_of_others(others)]


def _of_others(others: list[OtherApprover]) -> Iterator[Finding]:
    """Yield a warning for each approver who does not use this hub's store."""
    for one in others[:_MOST_NAMED]:
        who, heard = one.name or "an approver without a name", rfc3339(one.heard)
        text = f"{who} approved {one.event_id} without this hub, reported at {heard}"
        yield Finding(is_good=True, is_warning=True, text=text, advice=_ADVICE)


async def _of_source(source: SourceConfig, clock: Clock) -> Finding:
    name = f"hub.sources {source.name}: {source.origin}"
    async with open_queue(source, source.origin, clock) as queue:
        try:
            await queue.reach()
        except ApprovalQueueError as error:
            return Finding(is_good=False, text=f"{name}: {error}")
    return Finding(is_good=True, text=f"{name} can be read")
