"""IMDS that is away for long: what appears meanwhile is told soon after its return."""

import pytest

from tests.imds.test_poller import (
    EMPTY,
    SCHEDULED,
    Rig,
    data_of,
    live,
    rig,
    running,
    unavailable,
)

__all__ = ["rig"]  # the fixture


@pytest.mark.parametrize(
    ("outcome", "seconds"),
    [("410", 70), ("429", 70), ("connection", 70), ("503", 3600)],
)
async def test_what_appears_while_imds_is_away_is_told_soon_after_its_return(
    outcome: str, seconds: int, rig: Rig
) -> None:
    rig.metadata.says(EMPTY)
    async with running(rig):
        await live(rig, 2, step=1)
        rig.metadata.fails(unavailable(outcome))
        await live(rig, seconds, step=10)
        rig.metadata.answers.clear()
        rig.metadata.says(SCHEDULED)
        await live(rig, 11, step=1)

        (delivery,) = await rig.deliveries()
        assert delivery.type.endswith(".scheduled.v1")
        gap = data_of(delivery)["unobservedSeconds"]
        assert isinstance(gap, int)
        assert seconds - 2 <= gap <= seconds + 11
