"""Who is told of what: each key of `[sinks.when]`, the scopes, and to the end."""

import pytest

from bridge.identity import Identity
from bridge.options import Reader
from bridge.routing import Route, Router, Scope, Subject, When, resources_of
from tests.builders import imds_event

A, B = "a", "b"


def subject(
    *events: dict[str, object],
    transition: str | None = "scheduled",
    is_lifecycle: bool = False,
) -> Subject:
    return Subject(transition=transition, events=events, is_lifecycle=is_lifecycle)


def is_told(  # noqa: PLR0913 - each is one thing that decides
    about: Subject,
    when: When | None = None,
    *,
    scope: Scope = "all",
    house: Scope = "all",
    me: str | None = "web-1",
    lifecycle: bool = True,
    follows: bool = False,
) -> bool:
    route = Route(when=when or When(), scope=scope, lifecycle=lifecycle)
    router = Router(routes={A: route}, scope=house, identity=Identity(vm_name=me))
    return router.sinks(about, frozenset({A} if follows else ())) == (A,)


EVENT = imds_event(Resources=["web-1", "db-1"])


def test_sink_without_limits_is_told_everything() -> None:
    assert is_told(subject(EVENT))
    assert is_told(subject(is_lifecycle=True, transition=None))
    assert is_told(subject(transition=None))


@pytest.mark.parametrize(
    ("wanted", "told"), [(("scheduled", "started"), True), (("completed",), False)]
)
def test_transitions_limit_the_steps(wanted: tuple[str, ...], *, told: bool) -> None:
    when = When(transitions=wanted)  # type: ignore[arg-type]  # literals
    assert is_told(subject(EVENT), when) is told


def test_transitions_do_not_concern_approvals_and_lifecycle() -> None:
    when = When(transitions=("completed",))

    assert is_told(subject(EVENT, transition=None), when)
    assert is_told(subject(is_lifecycle=True, transition=None), when)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("event_types", ("reboot", "FREEZE"), ("Reboot",)),
        ("event_sources", ("platform",), ("User",)),
        ("resources", ("WEB-*",), ("api-*",)),
        ("resources", ("nobody", "db-?"), ("web", "db-", "*x")),
    ],
)
def test_key_limits_what_is_told(
    key: str, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    assert is_told(subject(EVENT), When(**{key: good}))  # type: ignore[arg-type]  # fields of When
    assert not is_told(subject(EVENT), When(**{key: bad}))  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("key", ["EventType", "EventSource", "Resources"])
@pytest.mark.parametrize("value", [None, 7, {}, []])
def test_field_that_is_absent_or_odd_matches_no_limit(key: str, value: object) -> None:
    limits = {
        "EventType": When(event_types=("Freeze",)),
        "EventSource": When(event_sources=("Platform",)),
        "Resources": When(resources=("*",)),
    }

    assert not is_told(subject({**EVENT, key: value}), limits[key])


def test_all_limits_must_hold() -> None:
    when = When(event_types=("Freeze",), event_sources=("User",))

    assert not is_told(subject(EVENT), when)
    assert is_told(subject(EVENT | {"EventSource": "User"}), when)


def test_all_limits_must_hold_of_the_same_look() -> None:
    """A Freeze of the platform that was a Reboot of a user is not a user's Freeze."""
    when = When(event_types=("Freeze",), event_sources=("User",))
    was = EVENT | {"EventType": "Reboot", "EventSource": "User"}

    assert not is_told(subject(EVENT, was), when)


def test_event_that_no_longer_fits_is_told_by_what_it_was() -> None:
    when = When(event_types=("Reboot",))

    assert is_told(subject(EVENT, EVENT | {"EventType": "Reboot"}), when)


def test_resource_names_are_compared_without_the_old_underscore() -> None:
    event = imds_event(Resources=["_Web-1"])

    assert is_told(subject(event), When(resources=("web-*",)))
    assert is_told(subject(event), When(resources=("_web-*",)))


@pytest.mark.parametrize(
    ("scope", "me", "told"),
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
    scope: Scope, me: str | None, *, told: bool
) -> None:
    assert is_told(subject(EVENT), scope=scope, me=me) is told
    assert is_told(subject(EVENT), house=scope, me=me) is told


def test_first_of_resources_is_found_without_case() -> None:
    event = imds_event(Resources=["alpha", "_Aa", "BETA"])

    assert is_told(subject(event), scope="first", me="AA")


@pytest.mark.parametrize("scope", ["own", "first"])
def test_event_without_resources_is_nobodys_own(scope: Scope) -> None:
    assert not is_told(subject(imds_event(Resources=[])), scope=scope)


def test_sink_that_was_told_is_told_to_the_end() -> None:
    event = imds_event(Resources=["other"], EventType="Freeze")
    when = When(event_types=("Reboot",), resources=("web-*",))
    about = subject(event, transition="completed")

    assert not is_told(about, when, scope="own", house="own")
    assert is_told(about, when, scope="own", house="own", follows=True)


def test_sink_that_follows_still_hears_only_the_steps_it_wants() -> None:
    about = subject(EVENT, transition="updated")

    assert not is_told(about, When(transitions=("scheduled",)), follows=True)


def test_approval_follows_its_event() -> None:
    about = subject(EVENT, transition=None)

    assert is_told(about, When(event_types=("Freeze",)))
    assert not is_told(about, When(event_types=("Reboot",)))
    assert not is_told(about, scope="own", me="other")


def test_approval_without_an_event_goes_to_all() -> None:
    about = subject(transition=None)
    when = When(event_types=("Reboot",), resources=("x",), transitions=("ended",))

    assert is_told(about, when, scope="own", house="own", lifecycle=False, me="other")


def test_lifecycle_is_told_only_where_it_is_wanted() -> None:
    about = subject(transition=None, is_lifecycle=True)
    when = When(event_types=("Reboot",))

    assert is_told(about, when, scope="own")
    assert not is_told(about, lifecycle=False)
    assert not is_told(about, lifecycle=False, follows=True)


def test_each_sink_is_asked_for_itself_in_the_order_configured() -> None:
    freeze = Route(when=When(event_types=("Freeze",)), scope="all", lifecycle=True)
    reboot = Route(when=When(event_types=("Reboot",)), scope="all", lifecycle=True)
    router = Router(
        routes={"z": freeze, B: reboot, A: freeze}, scope="all", identity=Identity()
    )

    assert router.sinks(subject(EVENT), frozenset()) == ("z", A)
    assert router.sinks(subject(EVENT), frozenset({B})) == ("z", B, A)


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
