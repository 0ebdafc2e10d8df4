"""The line on the terminal that shows what a command is waiting for."""

import asyncio
import io

import pytest

from bridge.cli.long_running import shown
from bridge.foundation.waiting import Waits, waiting_for
from tests.support.fakes import FakeClock, turns


class Terminal(io.StringIO):
    """A fake terminal that keeps the output."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        """Return the successive contents of the line."""
        return self.getvalue().split("\r\x1b[K")[1:]


async def hang(until: asyncio.Event) -> str:
    async def one(what: str, wait: asyncio.Event | None) -> None:
        with waiting_for(what):
            if wait is not None:
                await wait.wait()

    await asyncio.gather(one("sinks.quick", None), one("sinks.a", until))
    return "done"


@pytest.fixture(autouse=True)
def ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


async def test_running_step_is_shown_each_second(clock: FakeClock) -> None:
    terminal, until = Terminal(), asyncio.Event()
    task = asyncio.create_task(shown(hang(until), clock, terminal))

    await clock.advance(0.9)
    assert terminal.lines == []
    await clock.advance(2)
    assert terminal.lines == [
        "waiting for sinks.a (1 s)",
        "waiting for sinks.a (2 s)",
    ]

    until.set()
    assert await task == "done"
    assert terminal.lines[-1] == ""  # the line is cleared at the end


async def test_fast_step_is_not_shown(clock: FakeClock) -> None:
    terminal, until = Terminal(), asyncio.Event()
    until.set()

    assert await shown(hang(until), clock, terminal) == "done"

    assert terminal.lines == [""]


async def test_line_is_no_longer_than_the_terminal(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "12")
    terminal, until = Terminal(), asyncio.Event()
    task = asyncio.create_task(shown(hang(until), clock, terminal))

    await clock.advance(1)
    until.set()
    await task

    assert terminal.lines[0] == "waiting for"


@pytest.mark.parametrize("term", ["dumb", None])
async def test_nothing_is_written_without_a_terminal(
    term: str | None, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, until = (Terminal() if term else io.StringIO()), asyncio.Event()
    monkeypatch.setenv("TERM", term or "xterm")
    task = asyncio.create_task(shown(hang(until), clock, stream))

    await clock.advance(3)
    until.set()

    assert await task == "done"
    assert stream.getvalue() == ""


async def test_line_is_cleared_if_the_work_fails(clock: FakeClock) -> None:
    async def fail() -> None:
        with waiting_for("imds"):
            await turns()
            raise ValueError("no such place")

    terminal = Terminal()
    with pytest.raises(ValueError, match="no such place"):
        await shown(fail(), clock, terminal)

    assert terminal.lines == [""]


def test_longest_wait_is_named_first(clock: FakeClock) -> None:
    waits = Waits(clock)
    with waits.of("a"):
        clock.pass_by(2)
        with waits.of("b"):
            clock.pass_by(1)
            assert [*waits.seconds().items()] == [("a", 3), ("b", 1)]
    assert [*waits.seconds()] == []
