"""One round from its beginning to its verdict, for a process of its own."""

import asyncio
import pickle
import shutil
import traceback
from pathlib import Path

from tests.chaos.oracle import Verdict, judge
from tests.chaos.world import play


def played(given: tuple[Path, int, int]) -> tuple[int, Verdict]:
    """Play and judge one round; keep what it left if it failed."""
    keep, seed, kills = given
    folder = keep / f"seed-{seed}"
    folder.mkdir(parents=True)
    try:
        history = asyncio.run(play(folder, seed, kills))
    except Exception:  # noqa: BLE001 - the other rounds go on
        failure = traceback.format_exc()
        (folder / "failure.txt").write_text(failure)
        return seed, Verdict(0, [f"the round itself failed: ...{failure[-400:]}"])
    (folder / "history.pickle").write_bytes(pickle.dumps(history))
    verdict = judge(history)
    if not verdict.faults:
        shutil.rmtree(folder)
    return seed, verdict
