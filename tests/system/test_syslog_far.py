"""The syslog sink and a receiver that is not around the corner."""

import asyncio
import json
import sys
from statistics import median

import pytest

from tests.system import far
from tests.system.processes import started

pytestmark = pytest.mark.integration


async def test_message_does_not_wait_for_what_was_sent_after_it() -> None:
    """Something is always on its way here, for a second: each has its own end."""
    if why := await asyncio.to_thread(far.why_not):
        pytest.skip(f"no network of one's own: {why}")
    process = await started(
        *("unshare", "-rn", sys.executable, "-m", far.__name__),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    found = json.loads(output)

    took = [done - began for began, done in found["alone"] + found["stream"]]
    assert min(took) >= far.ROUND_TRIP  # it is far, and acknowledgements are waited for
    began, done = zip(*found["stream"], strict=True)
    late = far.COUNT // 2  # half a second
    assert all(d < b for d, b in zip(done, began[late:], strict=False))
    assert median(took) < late * far.EVERY
