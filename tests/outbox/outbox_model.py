"""What an outbox must do, in plain lists: the machine compares the outbox with it.

Where the promises leave a choice, the model says what must be and what may be: a clock
that was set forward may make a delivery due early, and what only memory had when the
forwarder was killed may be lost.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.support.outbox_door import SINKS

_BEFORE_NOTICE, _AFTER_START = 900.0, 300.0
_NEARLY = 60.0  # what is urgent so soon may count as urgent already
Window = tuple[float, float]


def window_of(now: float, notice: float | None, *, is_started: bool) -> Window | None:
    """Return when an event is urgent; ``notice`` = seconds until NotBefore."""
    if is_started:
        return now, now + _AFTER_START
    return None if notice is None else (now + notice - _BEFORE_NOTICE, now + notice)


@dataclass(eq=False)
class Step:
    """One event on its way to one sink.

    Attributes:
        number: its place in the order of commits.
        line: what shares its order.
        window: when it is urgent by itself.
        due, early: when it is due, and when it may be due at the earliest; monotonic.
        state: as in the file.
        is_from_memory: whether it was committed while the disk failed.
        is_marked: the same, also after the disk has got it: it may say so for good.
        at_failure: its state when the disk failed; None = it was not there.
    """

    number: int
    name: str
    sink: str
    line: str
    window: Window | None
    due: float
    early: float
    state: str = "pending"
    is_from_memory: bool = False
    is_marked: bool = False
    at_failure: str | None = None


@dataclass
class Model:
    """All steps, and what is known of the disk.

    Attributes:
        room: how many events memory may hold alone.
        checkpoints: the last checkpoint, after those that a kill may bring back.
        is_failing: whether the disk fails.
        ids: the id of each step that was seen.
    """

    room: int
    steps: list[Step] = field(default_factory=list)
    checkpoints: list[bytes | None] = field(default_factory=lambda: [None])
    is_failing: bool = False
    ids: dict[tuple[str, str], int] = field(default_factory=dict)
    _count: int = 0
    _back: float = 0.0  # how far the clock was set back while the disk failed

    def commit(
        self, name: str, key: str | None, now: float, wall: Window | None
    ) -> None:
        """Add an event for each sink; ``now`` is monotonic."""
        self._count += 1
        line = key or f"none {name}"
        self.steps += [
            Step(
                self._count, name, sink, line, wall, now, now,
                is_from_memory=self.is_failing, is_marked=self.is_failing,
            )
            for sink in SINKS
        ]  # fmt: skip

    def of(self, sink: str, name: str) -> Step:
        """Return a step by its name."""
        return next(s for s in self.steps if (s.sink, s.name) == (sink, name))

    def pending(self, sink: str) -> list[Step]:
        """Return what waits, in order."""
        return [s for s in self.steps if s.sink == sink and s.state == "pending"]

    def heads(self, sink: str) -> list[Step]:
        """Return the first of each line."""
        found = dict[str, Step]()
        for step in self.pending(sink):
            found.setdefault(step.line, step)
        return [*found.values()]

    # -- the disk --------------------------------------------------------------

    def fails(self) -> None:
        """Note that the disk takes nothing from now on."""
        if self.is_failing:
            return
        self.is_failing, self._back = True, 0.0
        for step in self.steps:
            step.at_failure, step.is_from_memory = step.state, False

    def heals(self) -> None:
        """Note that the disk has everything again."""
        self.is_failing = False
        self.checkpoints = self.checkpoints[-1:]
        for step in self.steps:
            step.is_from_memory = False

    def in_memory(self) -> Iterator[str]:
        """Yield the names of events that take up room."""
        for step in self.steps:
            if step.is_from_memory and step.state != "delivered":
                yield step.name

    def may_refuse(self, count: int) -> bool:
        """Whether there may be no room for so many more events."""
        return self.is_failing and len({*self.in_memory()}) + count > self.room

    def must_refuse(self, count: int) -> bool:
        """Whether there is surely no room; a dead letter may take some or none."""
        waiting = {s.name for s in self.steps if s.is_from_memory and _waits(s)}
        return self.is_failing and len(waiting) + count > self.room

    def killed(self, states: Mapping[tuple[str, str], str]) -> None:
        """Compare what a kill has left, and go on with that."""
        lost = list[Step]()
        for step in self.steps:
            left = states.get((step.sink, step.name))
            if step.is_from_memory and left is None:
                lost.append(step)
                continue
            before = step.state if not self.is_failing else step.at_failure
            allowed = {step.state, before} if before else {step.state, "pending"}
            assert left in allowed, (
                f"{step.name} for {step.sink}: {left}, not {allowed}"
            )
            if step.is_from_memory:
                assert not lost, f"{step.name} is on the disk, {lost[0].name} before it"
            step.state = str(left)
        unknown = states.keys() - {(s.sink, s.name) for s in self.steps}
        assert not unknown, f"nobody committed {unknown}"
        for gone in lost:
            self.steps.remove(gone)
            self.ids.pop((gone.sink, gone.name), None)
        self.is_failing = False
        for step in self.steps:
            step.early, step.is_from_memory = float("-inf"), False
            step.due = step.due + self._back

    # -- what others do --------------------------------------------------------

    def retry(self, sink: str, now: float) -> tuple[list[str], list[str]]:
        """Send dead letters anew, unless a later step was delivered."""
        sent, late = list[str](), list[str]()
        for step in self.steps:
            if step.sink != sink or step.state not in {"dead", "pending"}:
                continue
            if step.state == "pending":
                step.due = min(step.due, now)
                step.early = min(step.early, step.due)
            elif self._is_late(step):
                late.append(step.name)
            else:
                step.state = "pending"
                step.due = step.early = now
                sent.append(step.name)
        return sent, late

    def _is_late(self, step: Step) -> bool:
        return any(
            later.number > step.number and later.state == "delivered"
            for later in self.steps
            if (later.sink, later.line) == (step.sink, step.line)
        )

    def discard(self, sink: str, line: str) -> list[str]:
        """Give up a whole line."""
        gone = [
            s
            for s in self.steps
            if (s.sink, s.line) == (sink, line) and s.state in {"pending", "dead"}
        ]
        for step in gone:
            step.state = "discarded"
        return [step.name for step in gone]

    def set_clock(self, seconds: float) -> None:
        """Note that the wall clock was put right: forward makes due early.

        Back makes nothing due late, but a kill loses what was not written of that.
        """
        if self.is_failing:
            self._back += max(-seconds, 0.0)
        for step in self.steps:
            step.early -= max(seconds, 0.0)

    # -- what is asked ---------------------------------------------------------

    def judge_due(self, sink: str, found: list[str], now: float, wall: float) -> None:
        """Compare what is offered: the heads that are due, in their order."""
        heads = {step.name: step for step in self.heads(sink)}
        assert len(set(found)) == len(found), f"offered twice: {found}"
        assert set(found) <= heads.keys(), f"no first of its line: {found}"
        for name, step in heads.items():
            if name in found:
                assert step.early <= now, f"{name} is not due"
            else:
                assert now < step.due, f"{name} is due, and not in {found}"
        given = [heads[name] for name in found]
        for index, first in enumerate(given):
            for second in given[index + 1 :]:
                self._judge_pair(first, second, wall)

    def _judge_pair(self, first: Step, second: Step, wall: float) -> None:
        one, two = self._urgency(first, wall), self._urgency(second, wall)
        if two is True and one is False:
            raise AssertionError(f"{second.name} is urgent, {first.name} is not")
        if one is two is False:
            later = (first.early, first.number) > (second.due, second.number)
            assert not later, f"{first.name} before {second.name}"

    def _urgency(self, step: Step, wall: float) -> bool | None:
        """Return whether a step, or one behind it, is urgent; None = it may be."""
        waiting = [
            s
            for s in self.pending(step.sink)
            if s.line == step.line and s.number >= step.number
        ]
        if any(_is_within(s.window, wall, 0.0) for s in waiting):
            return True
        return (
            None if any(_is_within(s.window, wall, _NEARLY) for s in waiting) else False
        )


def _waits(step: Step) -> bool:
    return step.state == "pending"


def _is_within(window: Window | None, wall: float, margin: float) -> bool:
    return window is not None and window[0] - margin <= wall < window[1] + margin
