"""Slack's rate limits. Pure: the caller passes the time.

Each key has a bucket: a full bucket allows a burst, and it fills at a constant rate.

Source:  docs.slack.dev/apis/web-api/rate-limits: posting is a message a second for
         each channel, with bursts allowed for short times (of unknown size);
         the other methods have tiers of 20, 50 and 100 calls a minute
"""

import math
from typing import Final

from msgspec import Struct, field

_MOST_BUCKETS: Final = 10_000
_ROUNDING: Final = 1e-6


class Rate(Struct, frozen=True):
    """Calls per second, and the largest burst."""

    per_second: float
    burst: int


POSTS: Final = Rate(1.0, 3)
TIER_2: Final = Rate(20 / 60, 20)
TIER_3: Final = Rate(50 / 60, 50)
TIER_4: Final = Rate(100 / 60, 100)


class Limiter(Struct):
    """The buckets, by their keys."""

    _left: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, key: str, rate: Rate, now: float) -> int:
        """Return 0 if a call may pass, else the seconds to wait.

        Args:
            key: the bucket.
            rate: the limit.
            now: seconds since the epoch.
        """
        left, at = self._left.pop(key, (float(rate.burst), now))
        left = min(rate.burst, left + max(0.0, now - at) * rate.per_second)
        is_free = left > 1 - _ROUNDING
        self._left[key] = (left - 1 if is_free else left, now)
        while len(self._left) > _MOST_BUCKETS:
            del self._left[next(iter(self._left))]
        return 0 if is_free else max(1, math.ceil((1 - left) / rate.per_second))
