"""Each target of the fuzzer runs, on what it begins with and on a few mutations."""

import random
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("azure.functions") is None, reason="no Azure Functions for this Python"
)
if find_spec("azure.functions") is not None:
    from tests.fuzz.targets import TARGETS
else:
    TARGETS = {}

MUTATIONS = 30
LARGEST = 20_000  # what is larger is only run as it is


def mutated(seed: bytes, chance: random.Random) -> bytes:
    """Return a seed with some bytes changed, cut out or repeated."""
    found = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) + 1)
        end = min(len(found), at + chance.randint(0, 8))
        found[at:end] = chance.choice(
            [b"", found[at:end] * 2, chance.randbytes(2), b'"', b"[", b"}", b"\xff"]
        )
    return bytes(found)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_their_mutations_are_read_or_refused(name: str) -> None:
    chance = random.Random(name)  # noqa: S311  the same at each run
    target = TARGETS[name]
    for seed in target.seeds:
        target.run(seed)
        if len(seed) <= LARGEST:
            for _ in range(MUTATIONS):
                target.run(mutated(seed, chance))
