"""The tables; the first step of ``migrations`` creates them as they are here.

Times are microseconds since 1970 in UTC. JSON and bodies are bytes: each database
refuses some texts, and no query looks into them. ``version`` counts changes of events.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Sequence,
    String,
    Table,
)

metadata = MetaData()

event_versions = Sequence("event_versions", metadata=metadata)  # only in PostgreSQL

# SQLite generates values only for a primary key of the type INTEGER.
_Serial = BigInteger().with_variant(Integer, "sqlite")


def _text(name: str, *, key: bool = False) -> Column[str]:
    return Column(name, String, primary_key=key, nullable=False)


def _texts(*names: str, key: bool = False) -> list[Column[str]]:
    return [_text(name, key=key) for name in names]


def _moment(name: str, *, may_be_none: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=may_be_none)


_REPORT = ("source", "id", "vm_id", "content")  # see ``Fact.report``

meta = Table("meta", metadata, _text("name", key=True), _text("value"))

messages = Table(
    "messages",
    metadata,
    Column("seq", _Serial, primary_key=True, autoincrement=True),
    *_texts("event_key", "source", "id"),
    _moment("time"),
    _text("vm_id"),
    _text("content"),  # the fingerprint of what it reports, see ``facts.sealed``
    _text("digest"),  # the fingerprint of the body
    _text("kind"),
    _text("origin"),  # the name of the hub's source
    Column("reply_to", String),
    Column("session", String),
    _moment("heard"),
    Column("fact", LargeBinary, nullable=False),  # without IMDS objects, as JSON
    Column("body", LargeBinary, nullable=False),
    Index("messages_once", "event_key", *_REPORT, unique=True),
)

events = Table(
    "events",
    metadata,
    _text("event_key", key=True),
    Column("version", BigInteger, nullable=False),
    Column("xid", BigInteger, nullable=False),  # transaction id in PostgreSQL; else 0
    *_texts("event_id", "status"),
    Column("is_open", Boolean, nullable=False),
    *_texts("event_type", "event_source", "subscription", "group"),
    _text("content"),  # the fingerprint of the event, see ``vote_rules.digest``
    Column("has_bridge", Boolean, nullable=False),
    Column("lives", Integer, nullable=False),
    Column("lives_before", Integer, nullable=False),  # without messages
    _moment("before_until", may_be_none=True),  # their last message was enqueued then
    Column("dropped", Integer, nullable=False),  # messages that are not kept
    _text("named"),  # the fingerprint of its machines
    _moment("said_until", may_be_none=True),  # an end by others counts from then on
    _moment("as_of"),  # the moment of its state
    _moment("not_before", may_be_none=True),
    _moment("opened"),
    _moment("started", may_be_none=True),
    _moment("ended", may_be_none=True),
    Column("notice", BigInteger),  # from the first message to its NotBefore
    _moment("decided", may_be_none=True),  # the first approval that a bridge told of
    _text("decided_by"),  # its MessageId; "" = a rule of a bridge, or none
    _moment("told"),
    _moment("heard"),
    _moment("azure_received", may_be_none=True),
    _moment("azure_seen", may_be_none=True),
    Column("summary", LargeBinary, nullable=False),  # of the state, what lists show
    Column("state", LargeBinary, nullable=False),
    Column("details", LargeBinary, nullable=False),  # what the rules need, as JSON
    Index("events_version", "version"),
    Index("events_open", "is_open", "not_before"),
    Index("events_told", "told"),
    Index("events_opened", "opened"),
    Index("events_said", "said_until"),
)

machines = Table(
    "machines",
    metadata,
    *_texts("event_key", "subscription", "group", "name", key=True),
    Index("machines_name", "name"),
)

bridges = Table(
    "bridges",
    metadata,
    _text("vm_id", key=True),
    *_texts("origin", "subscription", "group", "name"),
    _text("resource"),  # the resource id in lower case; "" = not known
    _moment("heard"),
    _moment("first_heard"),
    _moment("stopped", may_be_none=True),  # when its last word that it stops was heard
    _moment("forgotten", may_be_none=True),  # when a person declared it gone
    Column("was_silent", Boolean, nullable=False),
    Column("has_beats", Boolean, nullable=False),  # whether it sends heartbeats
    Column("reported", LargeBinary, nullable=False),  # a BridgeState as JSON
    Index("bridges_name", "name"),
    Index("bridges_resource", "resource"),
)

offers = Table(
    "offers",
    metadata,
    _text("id", key=True),
    *_texts(
        "vm_id",
        "subscription",
        "group",
        "name",
        "origin",
        "prefix",
        "entity",
        "session",
        "digest",
    ),
    _moment("first_heard"),
    _moment("heard"),  # the last time that the bridge has repeated it, or its digest
    _moment("dropped", may_be_none=True),  # when a person said that it does not count
    Column("offer", LargeBinary, nullable=False),
    Index("offers_vm", "vm_id", "digest"),
    Index("offers_name", "name"),
    Index("offers_session", "session"),
    Index("offers_heard", "heard"),
)

runs = Table(
    *("runs", metadata, _text("vm_id", key=True), _moment("heard")),
    Column("body", LargeBinary, nullable=False),  # ``pins.Runs`` as JSON
)

pins = Table(
    *("pins", metadata, _text("id", key=True)),
    Column("body", LargeBinary, nullable=False),  # ``pins.Pin`` as JSON
    Column("is_listed", Boolean, nullable=False),  # in ``[hub] keys``
    _moment("until", may_be_none=True),
    Index("pins_until", "until"),
)

told_keys = Table(
    "told_keys",
    metadata,
    _text("id", key=True),
    _text("key"),  # the thumbprint
    _text("resource"),  # the resource id in lower case
    _moment("first_heard"),
    _moment("heard"),
    Column("body", LargeBinary, nullable=False),  # ``accepting.ToldKey`` as JSON
    Index("told_keys_key", "key"),
    Index("told_keys_resource", "resource"),
    Index("told_keys_heard", "heard"),
)

notes = Table(
    "notes",
    metadata,
    _text("id", key=True),
    _text("kind"),  # health | annotation | window | silent | stopped | paused
    *_texts("subscription", "group"),
    _text("name"),  # "" = all machines of the subscription
    _text("event_key"),  # "" = none
    _moment("time"),
    _moment("until", may_be_none=True),
    Column("data", LargeBinary, nullable=False),
    Index("notes_machine", "name", "subscription", "group", "kind", "time"),
    Index("notes_time", "time"),
)

unreadable = Table(
    "unreadable",
    metadata,
    Column("seq", _Serial, primary_key=True, autoincrement=True),
    _text("origin"),
    _moment("heard"),
    _text("reason"),
    Column("body", LargeBinary, nullable=False),
    Column("reply_to", String),
    Column("session", String),
    Column("is_slow", Boolean, nullable=False),  # tried again once an hour
)

votes = Table(
    "votes",
    metadata,
    _text("event_key", key=True),
    Column("life", Integer, primary_key=True, nullable=False),
    *_texts("via", "person", key=True),
    _moment("time"),
    _text("reason"),
    _text("entry"),  # the entry of ``approvers`` that it counts by
    Column("seen", LargeBinary, nullable=False),  # the IMDS object at that time
)

decisions = Table(
    "decisions",
    metadata,
    _text("id", key=True),
    *_texts("event_key", "event_id"),
    Column("life", Integer, nullable=False),
    _text("action"),  # approve | refuse | set-aside | drop-offer
    _text("about"),  # the vmId that is set aside, or the offer that is dropped
    _text("via"),  # bridge | arm
    *_texts("content", "rule", "reason"),
    Column("persons", LargeBinary, nullable=False),
    _moment("time"),
    _moment("expires", may_be_none=True),
    *_texts("origin", "entity", "session"),
    _text("chosen"),  # the id of the address that a person has chosen; "" = none
    Column("is_overridden", Boolean, nullable=False),  # sent although a bridge refuses
    Column("tried", LargeBinary, nullable=False),  # the addresses of all attempts
    Column("message", LargeBinary, nullable=False),
    _text("state"),  # decided | sending | sent | done | failed | void | refused
    *_texts("outcome", "outcome_reason"),
    _moment("sent", may_be_none=True),
    _moment("closed", may_be_none=True),
    Column("attempts", Integer, nullable=False),
    _moment("due", may_be_none=True),  # when the dispatcher handles it next
    Index("decisions_event", "event_key"),
    Index("decisions_due", "due"),
    Index("decisions_state", "state"),
    Index("decisions_time", "time"),
)

trail = Table(
    "audit",
    metadata,
    Column("seq", _Serial, primary_key=True, autoincrement=True),
    _moment("time"),
    *_texts("event_key", "event_id"),
    Column("life", Integer, nullable=False),
    _text("decision"),  # the id of the decision; "" = there is none yet
    *_texts("what", "via", "person", "detail", "content"),
    Index("audit_event", "event_key"),
    Index("audit_time", "time"),
)

alarms = Table(
    "alarms",
    metadata,
    _text("id", key=True),
    _text("kind"),
    _moment("time"),
    Column("data", LargeBinary, nullable=False),
    _moment("handed", may_be_none=True),
    Index("alarms_handed", "handed"),
)
