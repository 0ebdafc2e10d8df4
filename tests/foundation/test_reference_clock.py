"""The clock that follows the Date of IMDS: what moves it, and what must not."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import FrameType

from hypothesis import given
from hypothesis import strategies as st

from bridge.foundation.clock import ReferenceClock, is_settled, own_time
from tests.support.fakes import START, FakeClock

NEAR = 2.0  # seconds: whole seconds, and a Date that a server keeps for a second
HOURS = 3600.0


@dataclass
class Scene:
    """A machine whose clock is wrong, a server that knows the time, and a network.

    Attributes:
        ahead: how many seconds the machine's clock is ahead.
        paused: seconds in which the machine's monotonic clock stood.
    """

    ahead: float = 0.0
    machine: FakeClock = field(init=False)
    clock: ReferenceClock = field(init=False)
    paused: float = 0.0

    def __post_init__(self) -> None:
        self.machine = FakeClock(START + timedelta(seconds=self.ahead))
        self.clock = ReferenceClock(self.machine)

    @property
    def truth(self) -> datetime:
        gone = self.machine.monotonic() - 1000.0 + self.paused
        return START + timedelta(seconds=gone)

    @property
    def error(self) -> float:
        """How wrong the corrected time is, in seconds."""
        return (self.clock.now() - self.truth).total_seconds()

    def poll(self, *, odd: float = 0.0, there: float = 0.1, back: float = 0.1) -> None:
        """Send a request; the Date of its answer is ``odd`` seconds too late."""
        self.machine.pass_by(1.0)
        sent = self.machine.monotonic()
        self.machine.pass_by(there)
        date = (self.truth + timedelta(seconds=odd)).replace(microsecond=0)
        self.machine.pass_by(back)
        self.clock.note(date, sent)

    def polls(self, count: int) -> None:
        for _ in range(count):
            self.poll()


def scenes() -> st.SearchStrategy[Scene]:
    wrong = st.floats(-48 * HOURS, 48 * HOURS) | st.floats(-5, 5) | st.just(0.0)
    return wrong.map(Scene)


def errors(scene: Scene, seconds: int) -> Iterator[float]:
    """Yield the error over some polls."""
    for _ in range(seconds):
        scene.poll()
        yield scene.error


def test_without_a_date_the_time_is_that_of_the_machine() -> None:
    scene = Scene(ahead=7200)

    assert scene.clock.now() == scene.machine.now()
    assert scene.clock.ahead is None
    assert not is_settled(scene.clock)
    scene.clock.note(None, 0.0)
    assert is_settled(scene.clock)
    assert scene.clock.now() == scene.machine.now()


def test_server_that_never_answers_leaves_the_machines_clock() -> None:
    scene = Scene(ahead=7200)
    scene.machine.pass_by(301)

    assert is_settled(scene.clock)
    assert scene.clock.now() == scene.machine.now()


@given(scenes(), st.floats(0, 4), st.floats(0, 4))
def test_one_date_is_enough_to_know_the_time(
    scene: Scene, there: float, back: float
) -> None:
    scene.poll(there=there, back=back)

    assert abs(scene.error) <= NEAR + there + back + 1


@given(st.floats(-0.4, 1.9), st.floats(0, 5), st.floats(0, 5), st.integers(1, 20))
def test_right_clock_is_never_touched(
    wrong: float, there: float, back: float, count: int
) -> None:
    """What whole seconds and a round trip explain is no difference."""
    scene = Scene(ahead=wrong)
    for _ in range(count):
        scene.poll(there=there, back=back)

        assert scene.clock.now() == scene.machine.now()
        assert scene.clock.ahead == 0.0
        assert is_settled(scene.clock)


@given(scenes())
def test_wrong_clock_is_corrected_and_does_not_jitter(scene: Scene) -> None:
    scene.polls(2)
    assert is_settled(scene.clock)
    found = list(errors(scene, 30))

    assert max(map(abs, found)) <= NEAR + 2
    assert max(found) - min(found) <= 1e-3 or abs(scene.ahead) < 5
    assert scene.clock.ahead is not None
    assert abs(scene.clock.ahead - scene.ahead) <= NEAR + 2


@given(
    # Between 1 and 5 seconds, later Dates decide whether the clock is right.
    scenes().filter(lambda scene: not 1 < abs(scene.ahead) < 5),
    st.integers(2, 10),
    st.floats(-1e9, 1e9).filter(lambda odd: abs(odd) > 5),
)
def test_one_odd_date_moves_nothing(scene: Scene, before: int, odd: float) -> None:
    scene.polls(before)
    error = scene.error

    scene.poll(odd=odd)
    assert abs(scene.error - error) < 0.001
    for found in errors(scene, 10):
        assert abs(found - error) < 1.1


@given(st.floats(-1e9, 1e9).filter(lambda odd: abs(odd) > 5))
def test_first_date_that_is_odd_is_forgotten_at_the_second(odd: float) -> None:
    scene = Scene()
    scene.poll(odd=odd)
    assert not is_settled(scene.clock)

    scene.poll()
    assert is_settled(scene.clock)
    assert scene.clock.now() == scene.machine.now()


@given(scenes(), st.floats(-48 * HOURS, 48 * HOURS))
def test_jump_of_the_machines_clock_moves_nothing(scene: Scene, by: float) -> None:
    scene.polls(5)
    error = scene.error

    scene.machine.jump(by)
    assert abs(scene.error - error) <= 1.001
    for found in errors(scene, 10):
        assert abs(found) <= NEAR + 3


@given(st.floats(2, 300))
def test_pause_of_the_machine_is_known_with_the_first_date_after_it(
    seconds: float,
) -> None:
    """The monotonic clock stood; the wall clock was then set right."""
    scene = Scene()
    scene.polls(5)
    scene.paused += seconds
    scene.machine.jump(seconds)

    scene.poll()
    assert scene.clock.now() == scene.machine.now()


@given(scenes(), st.floats(-HOURS, HOURS))
def test_servers_time_that_changes_for_good_is_followed(
    scene: Scene, by: float
) -> None:
    """As when the VM moves to another host."""
    scene.polls(5)
    for _ in range(3):
        scene.poll(odd=by)

    assert abs(scene.error - by) <= NEAR + 3


def test_date_that_cannot_be_is_none() -> None:
    scene = Scene()
    for year in (1601, 1970, 2101, 9999):
        scene.clock.note(datetime(year, 1, 1, tzinfo=UTC), scene.machine.monotonic())

    assert scene.clock.now() == scene.machine.now()
    scene.polls(1)
    assert scene.clock.ahead == 0.0


def test_own_time_is_that_of_the_machine() -> None:
    scene = Scene(ahead=7200)
    scene.polls(3)

    assert own_time(scene.clock) == own_time(scene.machine) == scene.machine.now()
    assert scene.clock.now() != scene.machine.now()


def test_date_that_fits_costs_few_calls() -> None:
    scene = Scene()
    scene.polls(10)
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        scene.poll()
    finally:
        sys.setprofile(before)

    assert calls.count("include") <= 6
    assert "meet" not in calls
