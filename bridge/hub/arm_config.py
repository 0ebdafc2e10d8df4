"""``[hub.arm]``: approving through Azure Resource Manager, where no bridge answers."""

import re
from collections.abc import Iterator
from typing import Literal
from urllib.parse import urlsplit

from bridge.foundation.sections import Section
from bridge.foundation.values import Duration
from bridge.health.config import is_loopback
from bridge.net.addresses import url_fault

_VERSION = re.compile(r"\d{4}-\d\d-\d\d(-preview)?")


class ArmConfig(Section, frozen=True, kw_only=True):
    """``[hub.arm]``: approving through Azure, for events that no bridge answers for.

    Attributes:
        endpoint: the URL of Azure Resource Manager. Example:
            ``"https://management.azure.com"``.
        api_version: the API version of Microsoft.Maintenance. Example:
            ``"2025-11-01"``.
        credential: how the hub authenticates to Azure; "none" sends no token, and is
            allowed only for an endpoint on loopback.
        client_id: the id of a user-assigned managed identity; "" is the system-assigned
            one. Example: ``"00001111-aaaa-2222-bbbb-3333cccc4444"``.
        unknown_rules: whether an event may be approved if the rules of the bridge of
            one of its machines are not known.
        seen_within: an event can be approved this way only if Azure published it at
            most this long ago.
    """

    endpoint: str = "https://management.azure.com"
    api_version: str = "2025-11-01"
    credential: Literal["managed-identity", "default", "workload-identity", "none"] = (
        "managed-identity"
    )
    client_id: str = ""
    unknown_rules: Literal["deny", "allow"] = "deny"
    seen_within: Duration = Duration(60)

    @property
    def is_local(self) -> bool:
        """Whether the endpoint is on this machine."""
        return is_loopback(urlsplit(self.endpoint).hostname or "")

    def faults(self) -> Iterator[tuple[str, ...]]:
        """Check the endpoint, and that tokens are sent, and only over TLS."""
        if what := url_fault(self.endpoint):
            yield "endpoint", what
            return
        if urlsplit(self.endpoint).scheme != "https" and not self.is_local:
            yield "endpoint", "must begin with https:// unless it is on loopback"
        if self.credential == "none" and not self.is_local:
            words = '"none" is for an endpoint on loopback alone: the simulator'
            yield "credential", words, "endpoint"
        if self.credential == "none" and self.client_id:
            yield "client_id", "is for a credential"
        if not _VERSION.fullmatch(self.api_version):
            yield "api_version", 'must be a date, such as "2025-11-01"'
