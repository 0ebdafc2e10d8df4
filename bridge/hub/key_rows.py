"""The answers of the API about keys of bridges. Pure."""

from collections.abc import Mapping

from bridge.hub.pins import Doubt
from bridge.hub.view_rows import Row, Time


class KeyRow(Row, frozen=True, kw_only=True):
    """A key that a bridge has told, and that is not pinned to its machine.

    Attributes:
        id: the same for the same key, vmId and resource id.
        key: its thumbprint.
        jwk: the public key, as hub.keys takes it.
        first_heard: when the broker enqueued the first message that has told it.
        last_heard: the last one.
        why: new-machine: no pin contradicts it; new-key: the vmId is pinned to another
            key; second-vm-id: another vmId has, or tells, the same machine; shared-key:
            another vmId has, or tells, the same key.
    """

    id: str
    vm_id: str
    vm_name: str | None
    resource_id: str
    key: str
    jwk: Mapping[str, str]
    first_heard: Time
    last_heard: Time
    why: Doubt


class KeyList(Row, frozen=True, kw_only=True):
    """The keys that wait for acceptance, by resource id; at most 2,000.

    Attributes:
        is_full: further keys are refused.
    """

    keys: tuple[KeyRow, ...]
    is_full: bool
