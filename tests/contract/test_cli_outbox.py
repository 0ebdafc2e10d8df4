"""``sebridge outbox`` beyond its lists: what is shown, and what is tried at once."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bridge.cli import main
from bridge.errors import Reason
from bridge.outbox.ledger import Ledger, Selection
from bridge.outbox.rows import Delivery
from bridge.outbox.store import Outbox
from tests.builders import SINK, router, told
from tests.disks import hide

NOW = 1_800_000_000.0
CONFIG = """
[imds]
endpoint = "http://127.0.0.1:9"
[state]
path = "{state}"
[[sinks]]
name = "siem"
type = "webhook"
url = "http://127.0.0.1:9/"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration whose outbox holds two waiting and a dead delivery."""
    path = tmp_path / "bridge.toml"
    path.write_text(CONFIG.format(state=(tmp_path / "state.db").as_posix()))

    async def fill() -> None:
        async with Outbox.open(tmp_path / "state.db", router()) as outbox:
            events = [told("1", key="K"), told("2", key="K"), told("3", key="L")]
            await outbox.commit(events, now=NOW)
            first, _, third = await Ledger(outbox.database).find(Selection())
            await outbox.postpone(
                first, due=NOW * 2, error="busy", reason=Reason.SERVER
            )
            await outbox.bury(third, now=NOW, error="bad", reason=Reason.REJECTED)

    asyncio.run(fill())
    return path


def outbox(command: str, config: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(
        main, ["outbox", command, "-c", str(config), *arguments]
    )
    assert result.exit_code == 0, result.stderr
    return result


def deliveries(config: Path) -> list[Delivery]:
    async def find() -> list[Delivery]:
        async with Outbox.open(config.with_name("state.db"), router()) as opened:
            return await Ledger(opened.database).find(Selection())

    return asyncio.run(find())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["1", "2", "3"]),
        (("--event", "k"), ["1", "2"]),
        (("--state", "dead"), ["3"]),
        (("--sink", "nobody"), []),
        (("--json", "--sink", SINK, "--event", "L"), ["3"]),
    ],
)
def test_deliveries_that_are_meant_are_shown_whole(
    arguments: tuple[str, ...], expected: list[str], config: Path
) -> None:
    shown = json.loads(outbox("show", config, *arguments).stdout)

    assert [one["event"]["id"] for one in shown] == expected


def test_retry_tries_what_waits_at_once_too(config: Path) -> None:
    outbox("retry", config, "--event", "K")

    assert next(one.due for one in deliveries(config)) < NOW * 2


def test_retry_leaves_what_was_not_meant_waiting(config: Path) -> None:
    outbox("retry", config, "--event", "L")

    assert next(one.due for one in deliveries(config)) == NOW * 2


@pytest.mark.parametrize("command", ["outbox list", "events", "status"])
def test_who_only_looks_needs_no_secret_of_the_service(
    command: str, config: Path
) -> None:
    secret = 'headers = { authorization = "env:ONLY_THE_SERVICE_HAS_IT" }'
    config.write_text(config.read_text() + f"{secret}\n[http]\nlisten = ''\n")

    result = CliRunner().invoke(main, [*command.split(), "-c", str(config), "--json"])

    assert result.exit_code == 0, result.stderr
    assert SINK in result.stdout


# -- events ----------------------------------------------------------------------


def events(config: Path, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["events", "-c", str(config), *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_events_tell_what_was_observed_and_where_it_went(config: Path) -> None:
    found = json.loads(events(config, "--json"))

    assert [one["event"]["id"] for one in found] == ["1", "2", "3"]
    assert found[0]["deliveries"] == [
        {"sink": SINK, "state": "pending", "attempts": 1, "lastError": "busy"}
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--last", "2"), ["2", "3"]),
        (("--last", "0"), []),
        (("--event", "k"), ["1", "2"]),
        (("--event", "nobody's"), []),
    ],
)
def test_events_are_those_that_are_asked_for(
    arguments: tuple[str, ...], expected: list[str], config: Path
) -> None:
    found = json.loads(events(config, "--json", *arguments))

    assert [one["event"]["id"] for one in found] == expected


def test_events_for_people_say_what_is_not_delivered_and_why(config: Path) -> None:
    lines = events(config).splitlines()

    assert len(lines) == 5
    assert lines[0].endswith("siem: pending")
    assert lines[1].strip() == "siem: busy"
    assert lines[4].strip() == "siem: bad"


def test_events_that_went_to_nobody_say_so(tmp_path: Path) -> None:
    path = tmp_path / "bridge.toml"
    path.write_text(CONFIG.format(state=(tmp_path / "state.db").as_posix()))

    async def fill() -> None:
        async with Outbox.open(tmp_path / "state.db", router({})) as outbox:
            await outbox.commit([told("1")], now=NOW)

    asyncio.run(fill())

    assert events(path).rstrip().endswith("to nobody")


def test_events_are_followed_until_ctrl_c(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps = list[float]()

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise KeyboardInterrupt
        async with Outbox.open(config.with_name("state.db"), router()) as outbox:
            await outbox.commit([told(f"new-{len(naps)}")], now=NOW)

    monkeypatch.setattr("bridge.cli_events.asyncio.sleep", nap)

    lines = events(config, "--follow", "--json", "--last", "1").splitlines()

    ids = [json.loads(line)["event"]["id"] for line in lines]
    assert ids == ["3", "new-1", "new-2"]


def test_state_file_that_this_user_may_not_see_is_one_clear_error(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(config.with_name("state.db"), monkeypatch)
    result = CliRunner().invoke(main, ["outbox", "list", "-c", str(config)])

    assert result.exit_code == 1
    assert result.stderr.startswith("sebridge: the state file ")
    assert "as the user of the service" in result.stderr
