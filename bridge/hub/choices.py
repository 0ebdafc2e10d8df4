"""What people may decide, on events or on keys: as they ask, as they are told. Pure."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from bridge.hub.access import Person
from bridge.hub.answers import (
    LONGEST_ADDRESS,
    LONGEST_CURSOR,
    Action,
    List,
    Listed,
    Text,
    Via,
    Word,
)
from bridge.hub.pins import Doubt
from bridge.hub.targets import Verdict
from bridge.hub.view_rows import PAGE, Count, Row, Time


class AddressRow(Row, frozen=True, kw_only=True):
    """Where an approval may be sent.

    Attributes:
        machines: the names of the machines whose bridges take approvals there.
        answers: a bridge there is alive, or may be.
        in_resources: a bridge there is on a machine in Resources.
        older: named by bridges that made no offer.
        contested: why it is not known whose it is.
        refusal: why a bridge there would refuse.
        best: the hub sends to it by itself.
    """

    id: str
    entity: str
    session: str | None
    prefix: str
    machines: tuple[str, ...]
    answers: bool
    in_resources: bool
    older: bool
    contested: str | None
    refusal: str | None
    best: bool


class OfferRow(Row, frozen=True, kw_only=True):
    """An offer of the last day, in the name of a machine of the event."""

    id: str
    vm_name: str
    vm_id: str
    first_heard: Time | None
    last_heard: Time | None
    answer: Verdict
    why: str | None


class BridgeOptions(Row, frozen=True, kw_only=True):
    """Whether a bridge can be asked.

    Attributes:
        why: why not.
        contested: if a person chooses the address.
        refused: if a person overrides a bridge that would refuse.
    """

    why: str | None
    contested: bool
    refused: bool


class ArmOptions(Row, frozen=True, kw_only=True):
    """Whether Azure Resource Manager can be asked.

    Attributes:
        why: why not.
        more_persons: how many people more that takes.
        offers: those that count for it.
    """

    why: str | None
    more_persons: Count
    offers: tuple[OfferRow, ...]


class Options(Row, frozen=True, kw_only=True):
    """Which decisions are possible.

    Attributes:
        closed: why nothing can be decided.
        addresses: the best one first.
    """

    closed: str | None
    bridge: BridgeOptions
    addresses: tuple[AddressRow, ...]
    arm: ArmOptions


NO_OPTIONS = Options(
    closed=None,
    bridge=BridgeOptions(why=None, contested=False, refused=False),
    addresses=(),
    arm=ArmOptions(why=None, more_persons=0, offers=()),
)


class Approval(Row, frozen=True, kw_only=True):
    """A vote, or another decision.

    Attributes:
        content: the content of the event, as it was shown.
        about: the vmId to set aside, or the id of the offer to drop.
        address: the id of the address to send to, if it is contested.
        override: send it although a bridge would refuse it.
    """

    decision: Action
    content: Annotated[str, Meta(min_length=1)]
    via: Via = "bridge"
    reason: Word = ""
    about: Annotated[str, Meta(max_length=LONGEST_CURSOR)] = ""
    address: Annotated[str, Meta(max_length=LONGEST_ADDRESS)] = ""
    override: bool = False


class VoteRequest(Struct, frozen=True, kw_only=True):
    """What one person asks.

    Attributes:
        key: the EventId in capitals.
        asked: a vote, or another decision.
        id: the id of the decision, if this vote completes one.
    """

    key: str
    asked: Approval
    person: Person
    id: str


class VoteResult(Struct, frozen=True, kw_only=True):
    """The result of a vote or a refusal.

    Attributes:
        status: an HTTP status: 200 decided, 202 counted, or 403, 404, 409 refused.
        words: why it was refused; "" = it was not.
        is_changed: whether the event has changed since it was shown.
        id: the id of the decision.
        missing: how many more people must approve.
        needs: what the request lacks: "address" = a contested address must be chosen;
            "override" = a bridge would refuse it; "" = nothing.
    """

    status: int
    words: str = ""
    needs: str = ""
    is_changed: bool = False
    id: str | None = None
    missing: int = 0


class BridgeAsked(Row, frozen=True, kw_only=True):
    """A bridge that is gone: it is forgotten until it is heard again."""

    decision: Literal["forget"]
    vm_id: Annotated[str, Meta(min_length=1, max_length=LONGEST_CURSOR)]


class BridgeDecided(Row, frozen=True, kw_only=True):
    """The bridge that is forgotten."""

    vm_id: str


class Decided(Row, frozen=True, kw_only=True):
    """The result of a vote.

    Attributes:
        missing: how many more people must approve.
        id: of the decision.
    """

    state: Literal["decided", "counted"]
    missing: Count
    id: str | None


# -- keys of bridges ------------------------------------------------------------------


KeyState = Literal["waiting", "accepted"]
ACCEPTED: KeyState = "accepted"
KEY_STATES: tuple[KeyState, KeyState] = ("waiting", ACCEPTED)
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


class KeysListed(Listed, frozen=True, kw_only=True):
    """Which keys are listed.

    Attributes:
        state: waiting: they are not pinned; accepted: people have accepted them.
        match: only of machines whose resource id fits a glob.
    """

    state: KeyState = "waiting"
    match: Text = ""


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
