"""``[imds]``: where IMDS is, and how often it is polled."""

from collections.abc import Iterator
from typing import Literal

from bridge.foundation.sections import Section
from bridge.foundation.values import Duration
from bridge.net.addresses import url_fault

LEAST_INTERVAL = 0.25  # seconds from one request to the next
COUNTED_VERSION = "2017-03-01"  # a StartRequest names the DocumentIncarnation


class ImdsConfig(Section, frozen=True, kw_only=True):
    """``[imds]``: where and how often the document is read.

    Attributes:
        endpoint: the URL of IMDS. It differs for VMs outside a virtual network and for
            the simulator. Example: ``"http://169.254.169.254"``.
        api_version: the version of the document to read. Use the same on all VMs of a
            group, because event ids depend on it.
        poll_interval: how often to read the document; at least 250ms, because IMDS
            allows 5 requests per second to the whole VM.
        request_timeout: how long one request may take before it is given up and tried
            again.
        first_request_timeout: how long the first request may take. It enables scheduled
            events for the VM, which takes up to two minutes.
    """

    endpoint: str = "http://169.254.169.254"
    api_version: Literal[
        "2017-03-01",
        "2017-08-01",
        "2017-11-01",
        "2019-01-01",
        "2019-04-01",
        "2019-08-01",
        "2020-07-01",
    ] = "2020-07-01"
    poll_interval: Duration = Duration(1)
    request_timeout: Duration = Duration(5)
    first_request_timeout: Duration = Duration(130)

    def faults(self) -> Iterator[tuple[str, str]]:
        """Check the bounds that the service sets."""
        if what := url_fault(self.endpoint, "a URL such as http://169.254.169.254"):
            yield "endpoint", what
        if self.poll_interval < LEAST_INTERVAL:
            yield (
                "poll_interval",
                (
                    "must be at least 250ms: IMDS allows 5 requests a second to the "
                    "whole VM"
                ),
            )
        for key in ("request_timeout", "first_request_timeout"):
            if not getattr(self, key):
                yield key, "must be more than 0"
