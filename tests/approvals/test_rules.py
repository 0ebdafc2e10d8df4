"""``[[approvals.rules]]``: their decisions about events, and their faults."""

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.approvals.config import ApprovalsConfig
from bridge.approvals.rules import Action, Rule, Ruling, content_of, judge
from bridge.configuration.load import parse
from bridge.events.document import ScheduledEvent
from bridge.foundation.sections import Reader
from bridge.foundation.values import Duration
from tests.support.builders import imds_event, not_before
from tests.support.fakes import START

EXAMPLE = Path(__file__).parents[2] / "config" / "bridge.example.toml"
ANY: tuple[Action, ...] = ("allow", "deny", "auto-approve")
APPROVED: tuple[Action, ...] = ("allow", "auto-approve")


def event(**fields: object) -> ScheduledEvent:
    raw = imds_event(**fields)  # type: ignore[arg-type]  # a test's own words
    return ScheduledEvent(event_id=str(raw["EventId"]), raw=raw)


def read(*tables: dict[str, object]) -> tuple[Rule, ...]:
    """Parse rules as from a file."""
    reader = Reader("f.toml")
    table = {"namespace": "n.example.net", "queue": "q", "rules": list(tables)}
    config = reader.section(ApprovalsConfig, table, "approvals")
    assert config is not None, reader.faults
    return config.rules


def judged(
    rules: tuple[Rule, ...], what: ScheduledEvent, *, age: float = 0.0
) -> Ruling:
    return judge(rules, what, age=age, now=START)


def fits(what: ScheduledEvent, action: Action = "deny", **limits: object) -> bool:
    (rule,) = read({"action": action, **limits})
    return judged((rule,), what).rule is not None


UNREAD: list[tuple[dict[str, object], dict[str, object]]] = [
    ({"resources": ["db-*"]}, {"Resources": None}),
    ({"resources": ["db-*"]}, {"Resources": "web-1"}),
    ({"resources": ["db-*"]}, {"Resources": {"db-1": 1}}),
    ({"resources": ["web-*"]}, {"Resources": ["web-1", 5]}),
    ({"event_types": ["Freeze"]}, {"EventType": 5}),
    ({"event_types": ["Freeze"]}, {"EventType": None}),
    ({"event_sources": ["Platform"]}, {"EventSource": None}),
    ({"max_duration": "30d"}, {"DurationInSeconds": None}),
    ({"max_duration": "30d"}, {"DurationInSeconds": "5"}),
    ({"notice_below": "30d"}, {"NotBefore": ""}),
    ({"notice_below": "30d"}, {"NotBefore": "soon"}),
]


@pytest.mark.parametrize(("limits", "fields"), UNREAD)
def test_unreadable_value_fits_only_deny_rules(
    limits: dict[str, object], fields: dict[str, object]
) -> None:
    what = event(**fields)

    assert fits(what, "deny", **limits)
    assert not fits(what, "allow", **limits)
    assert not fits(what, "auto-approve", **limits)


@pytest.mark.parametrize(
    ("key", "limits"),
    [
        ("Resources", {"resources": ["db-*"]}),
        ("EventType", {"event_types": ["Freeze"]}),
        ("EventSource", {"event_sources": ["Platform"]}),
        ("DurationInSeconds", {"max_duration": "30d"}),
        ("NotBefore", {"notice_below": "30d"}),
    ],
)
def test_missing_value_fits_only_deny_rules(
    key: str, limits: dict[str, object]
) -> None:
    raw = {name: value for name, value in event().raw.items() if name != key}
    what = ScheduledEvent(event_id=event().event_id, raw=raw)

    assert fits(what, "deny", **limits)
    assert not fits(what, "allow", **limits)
    assert not fits(what, "auto-approve", **limits)


@pytest.mark.parametrize("action", ANY)
@pytest.mark.parametrize(
    ("limits", "fields", "expected"),
    [
        ({}, {}, True),
        ({"event_types": ["freeze"]}, {}, True),
        ({"event_types": ["Reboot", "Freeze"]}, {}, True),
        ({"event_types": ["Reboot"]}, {}, False),
        ({"event_sources": ["platform"]}, {}, True),
        ({"event_sources": ["User"]}, {}, False),
        # Both limits are included.
        ({"max_duration": 5}, {}, True),
        ({"max_duration": "4s"}, {}, False),
        ({"max_duration": 0}, {"DurationInSeconds": 0}, True),
        ({"min_duration": 5}, {}, True),
        ({"min_duration": "6s"}, {}, False),
        ({"min_duration": 0, "max_duration": 8}, {"DurationInSeconds": 8}, True),
        ({"min_duration": 0, "max_duration": 8}, {"DurationInSeconds": 9}, False),
        # An unknown duration is longer than any limit, and never short.
        ({"max_duration": "30d"}, {"DurationInSeconds": -1}, False),
        ({"min_duration": "30d"}, {"DurationInSeconds": -1}, True),
        ({"min_duration": 0, "max_duration": 8}, {"DurationInSeconds": -1}, False),
        # NotBefore is nearer than the limit.
        ({"notice_below": "901s"}, {}, True),
        ({"notice_below": "15m"}, {}, False),
        ({"notice_below": "1s"}, {"NotBefore": not_before(-60)}, True),
        # All given conditions must be met.
        ({"event_types": ["Freeze"], "max_duration": 4}, {}, False),
        ({"event_types": ["Reboot"], "max_duration": 8}, {}, False),
    ],
)
def test_rule_fits_if_all_its_conditions_are_met(
    action: Action,
    limits: dict[str, object],
    fields: dict[str, object],
    *,
    expected: bool,
) -> None:
    assert fits(event(**fields), action, **limits) is expected


@pytest.mark.parametrize(
    ("globs", "resources", "is_any", "is_every"),
    [
        (["web-*"], ["web-1", "web-2"], True, True),
        (["WEB-?"], ["web-1", "Web-2"], True, True),
        (["web-*"], ["_web-1"], True, True),
        (["web-*", "db-1"], ["db-1", "web-2"], True, True),
        (["web-*"], ["web-1", "db-1"], True, False),
        (["web-*"], ["db-1"], False, False),
        (["*"], [], False, False),  # it names no resources
    ],
)
def test_deny_needs_one_resource_and_approval_every_one(
    globs: list[str], resources: object, *, is_any: bool, is_every: bool
) -> None:
    what = event(Resources=resources)

    assert fits(what, "deny", resources=globs) is is_any
    assert fits(what, "allow", resources=globs) is is_every
    assert fits(what, "auto-approve", resources=globs) is is_every


REBOOT: dict[str, object] = {"event_types": ["Reboot"]}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], Ruling(action="allow")),
        ([{**REBOOT, "action": "deny"}], Ruling(action="allow")),
        ([{**REBOOT, "action": "auto-approve"}], Ruling(action="allow")),
        ([{**REBOOT, "action": "allow"}], Ruling(action="deny")),
        (
            [{**REBOOT, "action": "auto-approve"}, {**REBOOT, "action": "allow"}],
            Ruling(action="deny"),
        ),
        (
            [{"action": "auto-approve"}, {"action": "deny"}],
            Ruling(action="auto-approve", rule="rules[0]"),
        ),
        (
            [{"action": "deny", "name": "never"}, {"action": "auto-approve"}],
            Ruling(action="deny", rule="never"),
        ),
        (
            [{**REBOOT, "action": "deny"}, {"action": "allow"}],
            Ruling(action="allow", rule="rules[1]"),
        ),
    ],
)
def test_first_rule_that_fits_decides(
    rules: list[dict[str, object]], expected: Ruling
) -> None:
    assert judged(read(*rules), event()) == expected


@pytest.mark.parametrize(
    ("age", "left"), [(0.0, 300.0), (299.0, 1.0), (300.0, 0.0), (9e9, 0.0), (-5, 305)]
)
@pytest.mark.parametrize("action", APPROVED)
def test_delay_is_counted_from_the_age_of_the_event(
    action: Action, age: float, left: float
) -> None:
    (rule,) = read({"action": action, "delay": "5m"})

    assert judged((rule,), event(), age=age).left == left


def drawn_rules() -> st.SearchStrategy[Rule]:
    names = st.none() | st.lists(
        st.sampled_from(["Freeze", "Reboot", "Redeploy"]), min_size=1
    ).map(tuple)
    seconds = st.none() | st.integers(0, 10).map(Duration)
    return st.builds(
        Rule,
        action=st.sampled_from(ANY),
        event_types=names,
        max_duration=seconds,
        min_duration=seconds,
        resources=st.none() | st.sampled_from([("a",), ("b*",), ("*",)]),
    )


def drawn_events() -> st.SearchStrategy[ScheduledEvent]:
    return st.builds(
        event,
        EventType=st.sampled_from(["Freeze", "Reboot", "Melt"]),
        DurationInSeconds=st.integers(-1, 11),
        Resources=st.lists(st.sampled_from(["a", "b1", "c"]), max_size=3),
    )


@given(st.lists(drawn_rules(), max_size=6), drawn_events())
def test_rules_after_the_deciding_rule_change_nothing(
    rules: list[Rule], what: ScheduledEvent
) -> None:
    """And no rule before it fits the event if it is the only rule."""
    ruling = judged(tuple(rules), what)
    alone = [judged((rule,), what).rule is not None for rule in rules]

    if ruling.rule is None:
        assert not any(alone)
        is_strict = any(rule.action == "allow" for rule in rules)
        assert ruling.action == ("deny" if is_strict else "allow")
    else:
        first = alone.index(True)
        assert ruling.rule == f"rules[{first}]"
        assert ruling.action == rules[first].action
        assert judged(tuple(rules[: first + 1]), what) == ruling


def test_content_changes_exactly_with_the_event() -> None:
    names = ["b", "a"]

    assert content_of(event(Resources=names)) == content_of(
        event(Resources=names[::-1])
    )
    assert content_of(event()) == content_of(event(EventId=imds_event()["EventId"]))
    changed = [event(NotBefore=not_before(60)), event(More=1), event(Description="")]
    assert len({content_of(what) for what in [event(), *changed]}) == 4


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ({}, "rules[0].action: is missing"),
        ("deny", "rules[0]: must be a table, not a string"),
        ({"action": "refuse"}, 'rules[0].action: must be one of "allow", "deny'),
        ({"action": "deny", "event_type": ["Freeze"]}, "did you mean 'event_types'?"),
        ({"action": "deny", "event_types": []}, "rules[0].event_types: must not be "),
        ({"action": "deny", "event_types": "Freeze"}, "rules[0].event_types: must be "),
        ({"action": "deny", "event_sources": []}, "rules[0].event_sources: must not"),
        ({"action": "deny", "resources": []}, "rules[0].resources: must not be empty"),
        ({"action": "deny", "max_duration": -1}, "rules[0].max_duration: must be a "),
        ({"action": "deny", "notice_below": 0}, "rules[0].notice_below: must be more"),
        ({"action": "deny", "delay": "1m"}, 'rules[0].delay: goes with "allow" and'),
        ({"action": "allow", "delay": "1 year"}, "rules[0].delay: must be a number of"),
        ({"action": "deny", "name": "a b"}, "rules[0].name: must be 1 to 63 letters"),
        (
            {"action": "deny", "event_types": ["Frieze"]},
            "fits no event: 'Frieze' is not documented by Azure; did you me",
        ),
        (
            {"action": "deny", "event_sources": ["Us"]},
            "rules[0].event_sources: fits no event: 'Us' is not documented",
        ),
        (
            {"action": "deny", "min_duration": 9, "max_duration": 8},
            "rules[0].min_duration: must not be more than max_duration",
        ),
    ],
)
def test_fault_names_its_place(rule: object, fault: str) -> None:
    reader = Reader("f.toml")
    table = {"namespace": "n.example.net", "queue": "q", "rules": [rule]}

    assert reader.section(ApprovalsConfig, table, "approvals") is None
    (found,) = reader.faults
    assert fault in found


def test_all_faults_of_all_rules_are_reported_at_once() -> None:
    reader = Reader("f.toml")
    table = {
        "namespace": "n.example.net",
        "rules": [
            {"name": "a", "action": "deny"},
            {"name": "a", "action": "allow"},
            {"acton": "deny"},
            {"action": "deny", "resources": [], "delay": 5},
        ],
    }

    reader.section(ApprovalsConfig, table, "approvals")

    places = sorted(fault.split(": ")[1] for fault in reader.faults)
    assert places == [
        "approvals.queue",
        "approvals.rules[1].name",
        "approvals.rules[2].action",
        "approvals.rules[2].acton",
        "approvals.rules[3].delay",
        "approvals.rules[3].resources",
    ]


def test_rule_that_approves_every_event_is_a_warning() -> None:
    bus = {"namespace": "n.example.net", "queue": "q"}
    rules = [
        {"action": "auto-approve", "event_sources": ["User"]},
        {"action": "deny", "event_types": ["Preempt"]},
        {"action": "auto-approve", "delay": "1h"},
    ]

    found = parse({"approvals": {**bus, "rules": rules}}, file="f", environ={})

    warned = [text for text in found.warnings() if "approvals" in text]
    assert warned == ["approvals.rules[2]: approves every event, whatever its impact"]


def test_unreachable_rule_is_a_warning() -> None:
    bus = {"namespace": "n.example.net", "queue": "q"}
    rules = [
        {"action": "deny", "event_types": ["Preempt"]},
        {"action": "allow", "delay": "1h"},
        {"action": "auto-approve"},
        {"action": "deny", "resources": ["db-*"]},
    ]

    found = parse({"approvals": {**bus, "rules": rules}}, file="f", environ={})

    warned = [text for text in found.warnings() if "approvals" in text]
    never = "is never reached: rules[1] fits every event"
    assert warned == [f"approvals.rules[{index}]: {never}" for index in (2, 3)]


@pytest.mark.parametrize(
    ("host", "names"),
    [("n.example.net", ["Q", "events", "a b"]), ("m.example.net", ["Q", "a b"])],
)
def test_entity_that_never_gets_a_reply_is_a_warning(
    host: str, names: list[str]
) -> None:
    allowed = ["replies", "Q", "events", "e*", "a b"]
    bus = {"namespace": "n.example.net", "queue": "q", "reply_to": allowed}
    sink = {"name": "bus", "type": "servicebus", "namespace": host, "topic": "events"}

    found = parse({"approvals": bus, "sinks": [sink]}, file="f", environ={})

    warned = [text for text in found.warnings() if "approvals" in text]
    assert [text.split(":")[1] for text in warned] == [
        f" no reply is ever sent to {name!r}" for name in names
    ]


@pytest.mark.parametrize(
    ("keys", "entity"),
    [({"queue": "q"}, "q"), ({"topic": "t", "subscription": "s"}, "t/s")],
)
def test_assumption_about_the_approval_entity_is_a_note(
    keys: dict[str, str], entity: str
) -> None:
    bus = {"namespace": "n.example.net", **keys, "max_delivery_count": 4}

    (note,) = parse({"approvals": bus}, file="f", environ={}).notes()

    assert note.startswith(
        f"approvals.max_delivery_count: the bridge assumes that {entity} has "
        "MaxDeliveryCount 4:"
    )
    assert not parse({}, file="f", environ={}).notes()


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"EventType": "Reboot", "EventSource": "User"}, "user-made"),
        ({"EventType": "Freeze", "DurationInSeconds": 0}, "short-freeze"),
        ({"EventType": "Freeze", "DurationInSeconds": 8}, "short-freeze"),
        ({"EventType": "Freeze", "DurationInSeconds": 9}, None),
        ({"EventType": "Freeze", "DurationInSeconds": -1}, None),
        ({"EventType": "Freeze", "DurationInSeconds": None}, None),
        ({"EventType": "Reboot", "DurationInSeconds": 5}, None),
    ],
)
def test_presets_approve_the_same_as_microsofts_sample(
    fields: dict[str, object], rule: str | None
) -> None:
    text = EXAMPLE.read_text(encoding="utf-8").partition("# What Microsoft's sample")[2]
    lines = re.findall(r"(?m)^# (\[\[.*|\w+ = .*)$", text)
    presets = tomllib.loads("\n".join(lines))["approvals"]["rules"]

    ruling = judged(read(*presets), event(**fields))

    assert ruling.rule == rule
    assert ruling.action == ("auto-approve" if rule else "allow")


def test_presets_are_off_by_default() -> None:
    approvals = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))["approvals"]

    assert "rules" not in approvals
