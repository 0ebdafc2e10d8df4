"""What the API asks and answers about keys of bridges. Pure."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta

from bridge.hub.answers import LONGEST_ADDRESS, List
from bridge.hub.pins import Doubt
from bridge.hub.view_rows import PAGE, Count, Row, Time

WAITING, ACCEPTED = KEY_STATES = ("waiting", "accepted")
ACCEPT, WITHDRAW = "accept", "withdraw"
_Id = Annotated[str, Meta(max_length=LONGEST_ADDRESS)]


class KeyRow(Row, frozen=True, kw_only=True):
    """A key that a bridge has told: it waits, or people have accepted it.

    Attributes:
        id: the same for the same key, vmId and resource id.
        key: its thumbprint.
        jwk: the public key, as hub.keys takes it.
        first_heard: when the broker enqueued the first message that has told it; null:
            it waits no more.
        last_heard: the last one.
        why: why it waits. new-machine: nothing contradicts it; new-key: the vmId is
            pinned to another key, or tells one; second-vm-id: another vmId has, or
            tells, the same machine; shared-key: another vmId has, or tells, the same
            key.
        persons: who has accepted it, or the key that it has replaced.
        since: from when on it counts; null: it waits.
    """

    id: str
    vm_id: str
    vm_name: str | None
    resource_id: str
    key: str
    jwk: Mapping[str, str]
    first_heard: Time | None
    last_heard: Time | None
    why: Doubt | None
    persons: tuple[str, ...]
    since: Time | None


class KeyList(List, frozen=True, kw_only=True):
    """Keys, by their ids, and the cursor of the next answer.

    Attributes:
        is_full: 2,000 keys wait, and further ones are refused.
        wanted: how many people must accept a key.
    """

    keys: tuple[KeyRow, ...]
    is_full: bool
    wanted: Count


class KeyAsked(Row, frozen=True, kw_only=True):
    """A key, as it was shown.

    Attributes:
        id: of the key.
        why: why it waits, as it was shown; to withdraw it, nothing.
    """

    id: _Id
    why: Annotated[str, Meta(max_length=LONGEST_ADDRESS)] = ""


class KeysAsked(Row, frozen=True, kw_only=True):
    """Keys that a person accepts or withdraws."""

    decision: Literal["accept", "withdraw"]
    keys: Annotated[tuple[KeyAsked, ...], Meta(min_length=1, max_length=PAGE)]


class KeyRefused(Row, frozen=True, kw_only=True):
    """A key that cannot be accepted or withdrawn, and why."""

    id: str
    why: str


class KeysDecided(Row, frozen=True, kw_only=True):
    """What became of keys.

    Attributes:
        done: the ids of the keys that are accepted or withdrawn now.
        counted: of those that wait for more people.
        missing: how many more people they need.
        refused: the others.
    """

    done: tuple[str, ...]
    counted: tuple[str, ...]
    missing: Count
    refused: tuple[KeyRefused, ...]
