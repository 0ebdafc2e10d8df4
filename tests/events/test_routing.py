"""Which sink gets what: each key of `[sinks.when]`, the scopes, and an event's end."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.events.document import ScheduledEvent, resources_of
from bridge.events.identity import Identity
from bridge.events.routing import Route, Router, Scope, Subject, When
from bridge.foundation.sections import Reader
from tests.support.builders import EVENT_ID, imds_event
from tests.support.strategies import events

A, B = "a", "b"


def subject(
    *events: dict[str, object],
    transition: str | None = "scheduled",
    is_lifecycle: bool = False,
) -> Subject:
    return Subject(
        transition=transition,
        events=tuple(map(seen, events)),
        is_lifecycle=is_lifecycle,
    )


def seen(raw: dict[str, object]) -> ScheduledEvent:
    return ScheduledEvent(event_id=EVENT_ID, raw=raw)


def is_sent(  # noqa: PLR0913 - each is one thing that decides
    about: Subject,
    when: When | None = None,
    *,
    scope: Scope = "all",
    default: Scope = "all",
    me: str | None = "web-1",
    lifecycle: bool = True,
    follows: bool = False,
) -> bool:
    route = Route(when=when or When(), scope=scope, lifecycle=lifecycle)
    router = Router(routes={A: route}, scope=default, identity=Identity(vm_name=me))
    return router.sinks(about, frozenset({A} if follows else ())) == (A,)


EVENT = imds_event(Resources=["web-1", "db-1"])


def test_sink_without_limits_gets_everything() -> None:
    assert is_sent(subject(EVENT))
    assert is_sent(subject(is_lifecycle=True, transition=None))
    assert is_sent(subject(transition=None))


@pytest.mark.parametrize(
    ("wanted", "is_wanted"), [(("scheduled", "started"), True), (("completed",), False)]
)
def test_transitions_limit_the_steps(
    wanted: tuple[str, ...], *, is_wanted: bool
) -> None:
    when = When(transitions=wanted)  # type: ignore[arg-type]  # literals
    assert is_sent(subject(EVENT), when) is is_wanted


def test_transitions_do_not_concern_approvals_and_lifecycle() -> None:
    when = When(transitions=("completed",))

    assert is_sent(subject(EVENT, transition=None), when)
    assert is_sent(subject(is_lifecycle=True, transition=None), when)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("event_types", ("reboot", "FREEZE"), ("Reboot",)),
        ("event_sources", ("platform",), ("User",)),
        ("resources", ("WEB-*",), ("api-*",)),
        ("resources", ("nobody", "db-?"), ("web", "db-", "*x")),
    ],
)
def test_key_limits_what_is_sent(
    key: str, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    assert is_sent(subject(EVENT), When(**{key: good}))  # type: ignore[arg-type]  # fields of When
    assert not is_sent(subject(EVENT), When(**{key: bad}))  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("key", ["EventType", "EventSource", "Resources"])
@pytest.mark.parametrize("value", [None, 7, {}, []])
def test_field_that_is_absent_or_odd_matches_no_limit(key: str, value: object) -> None:
    limits = {
        "EventType": When(event_types=("Freeze",)),
        "EventSource": When(event_sources=("Platform",)),
        "Resources": When(resources=("*",)),
    }

    assert not is_sent(subject({**EVENT, key: value}), limits[key])


def test_all_limits_must_hold() -> None:
    when = When(event_types=("Freeze",), event_sources=("User",))

    assert not is_sent(subject(EVENT), when)
    assert is_sent(subject(EVENT | {"EventSource": "User"}), when)


def test_all_limits_must_hold_of_the_same_look() -> None:
    """A Freeze of the platform that was a Reboot of a user is not a user's Freeze."""
    when = When(event_types=("Freeze",), event_sources=("User",))
    was = EVENT | {"EventType": "Reboot", "EventSource": "User"}

    assert not is_sent(subject(EVENT, was), when)


def test_event_that_no_longer_fits_is_sent_by_what_it_was() -> None:
    when = When(event_types=("Reboot",))

    assert is_sent(subject(EVENT, EVENT | {"EventType": "Reboot"}), when)


def test_resource_names_are_compared_without_the_old_underscore() -> None:
    event = imds_event(Resources=["_Web-1"])

    assert is_sent(subject(event), When(resources=("web-*",)))
    assert is_sent(subject(event), When(resources=("_web-*",)))


@pytest.mark.parametrize(
    ("scope", "me", "is_wanted"),
    [
        ("all", "other", True),
        ("own", "WEB-1", True),
        ("own", "other", False),
        ("own", None, True),
        ("first", "db-1", True),
        ("first", "web-1", False),
        ("first", "other", False),
        ("first", None, True),
    ],
)
def test_scope_decides_by_the_vms_own_name(
    scope: Scope, me: str | None, *, is_wanted: bool
) -> None:
    assert is_sent(subject(EVENT), scope=scope, me=me) is is_wanted
    assert is_sent(subject(EVENT), default=scope, me=me) is is_wanted


def test_first_of_resources_is_found_without_case() -> None:
    event = imds_event(Resources=["alpha", "_Aa", "BETA"])

    assert is_sent(subject(event), scope="first", me="AA")


@pytest.mark.parametrize("scope", ["own", "first"])
def test_event_without_resources_is_nobodys_own(scope: Scope) -> None:
    assert not is_sent(subject(imds_event(Resources=[])), scope=scope)


def test_sink_that_got_an_event_gets_its_end() -> None:
    event = imds_event(Resources=["other"], EventType="Freeze")
    when = When(event_types=("Reboot",), resources=("web-*",))
    about = subject(event, transition="completed")

    assert not is_sent(about, when, scope="own", default="own")
    assert is_sent(about, when, scope="own", default="own", follows=True)


def test_sink_that_follows_still_hears_only_the_steps_it_wants() -> None:
    about = subject(EVENT, transition="updated")

    assert not is_sent(about, When(transitions=("scheduled",)), follows=True)


def test_approval_follows_its_event() -> None:
    about = subject(EVENT, transition=None)

    assert is_sent(about, When(event_types=("Freeze",)))
    assert not is_sent(about, When(event_types=("Reboot",)))
    assert not is_sent(about, scope="own", me="other")


def test_approval_without_an_event_goes_to_all() -> None:
    about = subject(transition=None)
    when = When(event_types=("Reboot",), resources=("x",), transitions=("ended",))

    assert is_sent(about, when, scope="own", default="own", lifecycle=False, me="other")


def test_lifecycle_is_sent_only_where_it_is_wanted() -> None:
    about = subject(transition=None, is_lifecycle=True)
    when = When(event_types=("Reboot",))

    assert is_sent(about, when, scope="own")
    assert not is_sent(about, lifecycle=False)
    assert not is_sent(about, lifecycle=False, follows=True)


def test_each_sink_is_asked_for_itself_in_the_order_configured() -> None:
    freeze = Route(when=When(event_types=("Freeze",)), scope="all", lifecycle=True)
    reboot = Route(when=When(event_types=("Reboot",)), scope="all", lifecycle=True)
    router = Router(
        routes={"z": freeze, B: reboot, A: freeze}, scope="all", identity=Identity()
    )

    assert router.sinks(subject(EVENT), frozenset()) == ("z", A)
    assert router.sinks(subject(EVENT), frozenset({B})) == ("z", B, A)


# -- why not -----------------------------------------------------------------------


def why_not(about: Subject, *, follows: bool = False, **keys: Any) -> list[str]:
    when = When(**keys)
    route = Route(when=when, scope=when.scope or "own", lifecycle=True)
    me = Identity(vm_name="web-1")
    router = Router(routes={A: route}, scope="all", identity=me)
    return [str(one) for one in router.obstacles(A, about, follows=follows)]


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (
            {"transitions": ("started", "completed")},
            "when.transitions wants started or completed; this is scheduled",
        ),
        (
            {"event_types": ("Reboot", "Redeploy")},
            "when.event_types wants Reboot or Redeploy; EventType is Freeze",
        ),
        (
            {"event_sources": ("User",)},
            "when.event_sources wants User; EventSource is Platform",
        ),
        (
            {"resources": ("api-*",)},
            "when.resources wants api-*; Resources: web-1, db-1",
        ),
        (
            {"scope": "first"},
            (
                "when.scope wants this VM, web-1, as the first of Resources; "
                "Resources: web-1, db-1"
            ),
        ),
    ],
)
def test_condition_that_does_not_hold_is_named(
    keys: dict[str, Any], reason: str
) -> None:
    assert why_not(subject(EVENT), **keys) == [reason]


def test_every_condition_that_does_not_hold_is_named() -> None:
    about = subject({"EventType": 7, "EventSource": "", "Resources": []})

    assert why_not(about, event_types=("Freeze",), event_sources=("User",)) == [
        "when.event_types wants Freeze; EventType is not given",
        'when.event_sources wants User; EventSource is ""',
        (
            "when.scope wants this VM, web-1, in Resources by default; "
            "Resources is empty"
        ),
    ]


def test_only_the_first_of_many_resources_are_named() -> None:
    about = subject(imds_event(Resources=[f"vm-{n}" for n in range(12)]))

    (reason,) = why_not(about, scope="own")

    assert reason.endswith("vm-8, vm-9 and 2 more")


def test_what_the_house_leaves_out_is_named() -> None:
    route = Route(when=When(), scope="all", lifecycle=True)
    me = Identity(vm_name="other")
    router = Router(routes={A: route}, scope="own", identity=me)

    (obstacle,) = router.obstacles(A, subject(EVENT), follows=False)

    assert obstacle.key == "events.scope"


def test_event_that_never_fitted_is_sent_as_it_is_and_as_it_was() -> None:
    was = EVENT | {"EventType": "Reboot", "EventSource": "User"}
    keys: dict[str, Any] = {"event_types": ("Freeze",), "event_sources": ("User",)}

    assert why_not(subject(EVENT, was), **keys) == [
        "when.event_sources wants User; EventSource is Platform",
        "when.event_types wants Freeze; before the change, EventType is Reboot",
    ]
    assert len(why_not(subject(EVENT, EVENT), **keys)) == 1


@pytest.mark.parametrize(
    ("keys", "wants"),
    [({"lifecycle": False}, "events"), ({}, "events by default")],
)
def test_sink_without_lifecycle_says_so(keys: dict[str, Any], wants: str) -> None:
    about = subject(transition=None, is_lifecycle=True)

    route = Route(when=When(**keys), scope="all", lifecycle=False)
    router = Router(routes={A: route}, scope="all", identity=Identity())

    (obstacle,) = router.obstacles(A, about, follows=False)

    assert str(obstacle) == (
        f"when.lifecycle wants no bridge.* and document.* {wants}; this is one"
    )


def test_sink_that_follows_is_kept_only_by_the_kind_of_step() -> None:
    keys: dict[str, Any] = {"transitions": ("started",), "event_types": ("Reboot",)}

    assert len(why_not(subject(EVENT), **keys)) == 2
    assert len(why_not(subject(EVENT), follows=True, **keys)) == 1


NAMES = st.sampled_from(["a", "B", "_c", "D", "web-1"])
TEXTS = st.sampled_from(["freeze", "Reboot", "Platform", "user", ""])


def some(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.none() | st.lists(texts, min_size=1, max_size=3).map(tuple)


WHENS = st.builds(
    When,
    transitions=some(st.sampled_from(["scheduled", "started", "updated"])),
    event_types=some(TEXTS),
    event_sources=some(TEXTS),
    resources=some(NAMES | st.sampled_from(["*", "w*", "?"])),
)
SCOPES = st.sampled_from(["all", "own", "first"])
SUBJECTS = st.builds(
    Subject, transition=st.just(None), is_lifecycle=st.just(value=True)
) | st.builds(
    Subject,
    transition=st.sampled_from(["scheduled", "updated", None]),
    events=st.lists(events().map(seen), max_size=2).map(tuple),
)


@given(
    about=SUBJECTS,
    route=st.builds(Route, when=WHENS, scope=SCOPES, lifecycle=st.booleans()),
    default=SCOPES,
    me=st.none() | NAMES,
    follows=st.booleans(),
)
def test_there_is_an_obstacle_exactly_where_the_rules_say_so(
    about: Subject, route: Route, default: Scope, me: str | None, *, follows: bool
) -> None:
    router = Router(routes={A: route}, scope=default, identity=Identity(vm_name=me))
    is_sent = by_the_book(about, route, default, me, follows=follows)

    assert (not router.obstacles(A, about, follows=follows)) is is_sent
    assert bool(router.sinks(about, {A} if follows else set())) is is_sent


def by_the_book(
    about: Subject, route: Route, default: Scope, me: str | None, *, follows: bool
) -> bool:
    """What is promised of routing, written once more and without reasons."""
    if about.is_lifecycle:
        return route.lifecycle
    if about.transition and about.transition not in (
        route.when.transitions or (about.transition,)
    ):
        return False
    fits = [
        limited(look, route.when)
        and in_scope(look, route.scope, me)
        and in_scope(look, default, me)
        for look in (event.raw for event in about.events)
    ]
    return follows or not fits or any(fits)


def limited(look: Mapping[str, object], when: When) -> bool:
    for key, field in (("event_types", "EventType"), ("event_sources", "EventSource")):
        allowed, value = getattr(when, key), look.get(field)
        if allowed is not None and (
            not isinstance(value, str)
            or value.casefold() not in map(str.casefold, allowed)
        ):
            return False
    return when.resources is None or any(
        fnmatchcase(name, plain(glob))
        for name in bared(look)
        for glob in when.resources
    )


def in_scope(look: Mapping[str, object], scope: Scope, me: str | None) -> bool:
    names = bared(look)
    if me is None or scope == "all":
        return True
    return plain(me) in (sorted(names)[:1] if scope == "first" else names)


def bared(look: Mapping[str, object]) -> list[str]:
    names = look.get("Resources")
    found = names if isinstance(names, list) else []
    return [plain(name) for name in found if isinstance(name, str)]


def plain(name: str) -> str:
    return name.removeprefix("_").casefold()


@pytest.mark.parametrize(
    ("value", "names"),
    [(["a", 7, None, "b"], ("a", "b")), ("a", ()), (None, ()), ({"a": 1}, ())],
)
def test_resources_are_the_names_in_the_list(
    value: object, names: tuple[str, ...]
) -> None:
    assert resources_of({"Resources": value}) == names


@pytest.mark.parametrize(
    "key", ["transitions", "event_types", "event_sources", "resources"]
)
def test_empty_list_would_silence_the_sink_and_is_refused(key: str) -> None:
    reader = Reader("f")
    reader.section(When, {key: []}, "sinks.x.when")

    (fault,) = reader.faults
    assert fault.startswith(f"f: sinks.x.when.{key}: must not be empty")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("transitions", ["begun"], '"scheduled", "started", "updated", "completed"'),
        ("scope", "mine", '"all", "own", "first"'),
    ],
)
def test_word_that_is_not_known_is_refused_with_those_that_are(
    key: str, value: object, allowed: str
) -> None:
    reader = Reader("f")
    reader.section(When, {key: value}, "when")

    assert allowed in reader.faults[0]


HERE, AWAY = imds_event(Resources=["web-1"]), imds_event(Resources=["db-1"])


@pytest.mark.parametrize(
    ("looks", "transitions", "is_wanted"),
    [
        ((AWAY, HERE), ("scheduled", "updated"), True),
        ((AWAY, HERE), None, True),
        ((AWAY, HERE), ("scheduled", "completed"), False),
        ((AWAY, HERE), ("started",), True),
        ((HERE, HERE), ("scheduled", "updated"), False),
        ((AWAY, AWAY), ("scheduled", "updated"), False),
        ((AWAY,), ("scheduled", "updated"), False),
    ],
)
def test_start_that_names_this_vm_no_more_is_an_update_for_who_acts(
    looks: tuple[dict[str, object], ...], transitions: Any, *, is_wanted: bool
) -> None:
    """It has prepared for the event: it must get what undoes that."""
    route = Route(
        when=When(transitions=transitions),
        scope="own",
        lifecycle=False,
        is_for_steps=True,
    )
    started = subject(*looks, transition="started")
    router = Router(routes={A: route}, scope="all", identity=Identity(vm_name="web-1"))

    assert (router.sinks(started, {A}) == (A,)) is is_wanted


def test_start_is_a_start_for_a_sink_that_only_reports() -> None:
    when, started = (
        When(transitions=("updated",)),
        subject(AWAY, HERE, transition="started"),
    )

    assert not is_sent(started, when, scope="own", follows=True)
