"""The form of logs, and metrics that stand at 0 from the start."""

import asyncio
import gc
import io
import json
import logging
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from bridge.events.vocabulary import TransitionKind
from bridge.foundation.values import Secret
from bridge.telemetry.metrics import (
    FAILURES,
    OUTCOMES,
    TYPES,
    LogConfig,
    Metrics,
    configure_logging,
    log_unseen_errors,
    type_label,
)

Form = Literal["json", "text"]

log = logging.getLogger("bridge.somewhere")
CONTROLS = st.text(st.characters(categories=["Cc", "Cs", "Zl"]))
ODDITIES = st.text() | CONTROLS | st.integers() | st.binary() | st.floats()


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Logging belongs to the process: put it back."""
    loggers = [logging.getLogger(name) for name in ("", "azure", "asyncio")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


def logging_to(config: LogConfig) -> io.StringIO:
    stream = io.StringIO()
    configure_logging(config, stream)
    return stream


# -- logs ----------------------------------------------------------------------


def test_line_is_one_json_object_with_its_fields() -> None:
    stream = logging_to(LogConfig())

    log.warning("delivery postponed", extra={"sink": "siem", "seconds": 1.5})

    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert record.pop("time").startswith("20")
    assert record == {
        "level": "WARNING",
        "logger": "bridge.somewhere",
        "message": "delivery postponed",
        "sink": "siem",
        "seconds": 1.5,
    }


@pytest.mark.parametrize(
    ("zone", "offset"), [("UTC0", "+00:00"), ("IST-5:30", "+05:30"), ("BRT3", "-03:00")]
)
def test_time_in_the_log_is_rfc_3339(
    zone: str, offset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offset of RFC 3339 has a colon."""
    stream = logging_to(LogConfig())
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        log.warning("x")
    time.tzset()

    said = json.loads(stream.getvalue())["time"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", said)
    assert said.endswith(offset)
    age = datetime.now(UTC) - datetime.fromisoformat(said)
    assert abs(age) < timedelta(minutes=10)


@pytest.mark.parametrize("form", ["json", "text"])
@given(value=ODDITIES)
def test_whatever_is_logged_takes_one_line(form: Form, value: object) -> None:
    """EventIds and faults hold what strangers wrote; a line of theirs is forged."""
    stream = logging_to(LogConfig(format=form))

    log.warning("x", extra={"eventId": value, "list": [value]})

    line = stream.getvalue().removesuffix("\n")
    assert line
    assert not set(line) & {"\n", "\r", "\x1b"}
    if form == "json":
        assert json.loads(line)["message"] == "x"


@pytest.mark.parametrize("value", [Path("a"), {1}, Secret("S3CR3T", {}), object()])
def test_value_that_json_does_not_know_is_reported_as_text(value: object) -> None:
    stream = logging_to(LogConfig())

    log.warning("x", extra={"value": value})

    record = json.loads(stream.getvalue())
    assert record["value"]
    assert "S3CR3T" not in stream.getvalue()


def test_text_form_is_a_line_for_people() -> None:
    stream = logging_to(LogConfig(format="text"))

    log.error("sink parked", extra={"sink": "ops", "fault": "answered 403"})

    assert stream.getvalue().endswith(
        " ERROR   sink parked sink=ops fault=answered 403\n"
    )


def test_fields_stand_in_the_line_and_not_behind_a_traceback() -> None:
    stream = logging_to(LogConfig(format="text"))

    try:
        int("no")
    except ValueError:
        log.exception("sink failed", extra={"sink": "ops"})

    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("sink failed sink=ops")
    assert rest[-1].startswith("ValueError: ")


def test_traceback_is_part_of_the_json_object() -> None:
    stream = logging_to(LogConfig())

    try:
        int("no")
    except ValueError:
        log.exception("sink failed")

    (line,) = stream.getvalue().splitlines()
    assert "ValueError: " in json.loads(line)["exc_info"]


@pytest.mark.parametrize(
    ("level", "seen"),
    [
        ("debug", ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ("info", ["INFO", "WARNING", "ERROR"]),
        ("warning", ["WARNING", "ERROR"]),
        ("error", ["ERROR"]),
    ],
)
def test_level_says_how_much_is_logged(
    level: Literal["debug", "info", "warning", "error"], seen: list[str]
) -> None:
    stream = logging_to(LogConfig(level=level))

    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)("x")

    lines = stream.getvalue().splitlines()
    assert [json.loads(line)["level"] for line in lines] == seen


def test_sdk_and_asyncio_stay_quiet_when_the_bridge_is_told_to_say_everything() -> None:
    stream = logging_to(LogConfig(level="debug"))

    logging.getLogger("azure.servicebus").error("with its traceback")
    logging.getLogger("asyncio").info("Using selector")

    assert stream.getvalue() == ""


def test_log_goes_to_what_standard_error_is_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And not to what it was when the module was loaded."""
    configure_logging(LogConfig())

    log.warning("x")

    assert json.loads(capsys.readouterr().err)["message"] == "x"


def test_configured_again_nothing_is_logged_twice() -> None:
    first = logging_to(LogConfig())
    second = logging_to(LogConfig())

    log.warning("x")

    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1


# -- metrics -------------------------------------------------------------------


def exposed(metrics: Metrics) -> str:
    return generate_latest(metrics.registry).decode()


def test_series_stand_at_their_start_from_the_start() -> None:
    wanted = {
        'sebridge_imds_requests_total{method="GET",outcome="ok"} 0.0',
        'sebridge_imds_requests_total{method="POST",outcome="ok"} 0.0',
        *(
            f'sebridge_transitions_total{{event_type="{event_type}",'
            f'transition="{kind}"}} 0.0'
            for kind in TransitionKind
            for event_type in TYPES
        ),
        *(
            f'sebridge_deliveries_total{{outcome="{outcome}",sink="{sink}"}} 0.0'
            for outcome in ("delivered", "postponed", "dead", "discarded")
            for sink in ("bus", "ops")
        ),
        *(
            f'sebridge_delivery_failures_total{{reason="{reason}",sink="{sink}"}} 0.0'
            for reason in FAILURES
            for sink in ("bus", "ops")
        ),
        'sebridge_deliveries_late_total{sink="bus"} 0.0',
        'sebridge_outbox_pending{sink="ops"} 0.0',
        'sebridge_outbox_dead{sink="ops"} 0.0',
        'sebridge_outbox_oldest_seconds{sink="ops"} 0.0',
        'sebridge_sink_parked{sink="ops"} 0.0',
        'sebridge_delivery_seconds_count{sink="ops"} 0.0',
        *(
            f'sebridge_start_requests_total{{outcome="{outcome}"}} 0.0'
            for outcome in OUTCOMES
        ),
        "sebridge_state_degraded 0.0",
        'sebridge_build_info{version="1.2.3"} 1.0',
    }

    shown = exposed(Metrics(["bus", "ops"], "1.2.3")).splitlines()
    assert wanted - set(shown) == set()


def test_two_forwarders_in_one_process_share_no_metric() -> None:
    first, second = Metrics(["a"], "1"), Metrics(["a"], "1")

    first.state_degraded.set(1)

    assert "sebridge_state_degraded 0.0" in exposed(second).splitlines()


@pytest.mark.parametrize("event_type", ["Freeze", "Terminate"])
def test_known_event_type_labels_itself(event_type: str) -> None:
    assert type_label(event_type) == event_type


@pytest.mark.parametrize("event_type", [None, "", "freeze", "Melt", "other"])
def test_any_other_event_type_is_other(event_type: str | None) -> None:
    """Whatever IMDS may say, it makes no new series."""
    assert type_label(event_type) == "other"


# -- lines of libraries ------------------------------------------------------------

library = logging.getLogger("asyncio")


def say(text: str, at: float, error: Exception | None = None) -> None:
    """Log as a library does, at seconds of some day."""
    info = (type(error), error, None) if error else None
    record = library.makeRecord(
        "asyncio", logging.ERROR, "f", 1, text, (), info, func=None
    )
    record.created = at
    library.handle(record)


def lines_of(stream: io.StringIO) -> list[tuple[str, object]]:
    found = map(json.loads, stream.getvalue().splitlines())
    return [(one["message"], one.get("repeated")) for one in found]


ACCEPT = "socket.accept() out of system resource\nsocket: <socket {}>"
FIRST = "socket.accept() out of system resource"


def test_lines_of_libraries_that_repeat_are_summed_up_once_a_minute() -> None:
    """A thousand tracebacks a second, as where no file descriptor is left."""
    stream = logging_to(LogConfig())

    for number in range(1500):
        say(ACCEPT.format(number), 1000 + number / 10, OSError("too many open files"))

    found = lines_of(stream)
    assert [repeated for _, repeated in found] == [None, 599, None, 599, None]
    assert {text.partition("\n")[0] for text, _ in found} == {FIRST}
    assert len(stream.getvalue()) < 2000


def test_sum_of_what_has_ended_is_reported_with_the_next_line_of_anybody() -> None:
    stream = logging_to(LogConfig())
    for _ in range(3):
        say("x", 1000)

    log.warning("own")

    assert lines_of(stream) == [("x", None), ("x", 2), ("own", None)]


def test_lines_that_differ_are_not_summed_up() -> None:
    stream = logging_to(LogConfig())

    for text, error in (("x", None), ("y", None), ("x", OSError()), ("x", KeyError())):
        say(text, 1000, error)

    assert [text for text, _ in lines_of(stream)] == ["x", "y", "x", "x"]


def test_own_lines_are_all_written() -> None:
    stream = logging_to(LogConfig())

    for _ in range(3):
        log.warning("own")

    assert lines_of(stream) == [("own", None)] * 3


def test_clock_that_is_set_back_silences_nobody() -> None:
    stream = logging_to(LogConfig())

    say("x", 1000)
    say("x", 900)

    assert lines_of(stream) == [("x", None), ("x", None)]


def test_sums_do_not_grow_without_bound() -> None:
    stream = logging_to(LogConfig())

    say("0", 1000)
    say("0", 1000)
    for number in range(1, 300):
        say(str(number), 1000)

    found = lines_of(stream)
    assert ("0", 1) in found
    assert len(found) == 301


async def test_error_that_nobody_waits_for_is_logged_without_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """aiohttp's errors name the proxy with its password."""
    loop = asyncio.get_running_loop()
    log_unseen_errors(loop)

    async def fail() -> None:
        raise OSError("http://user:secret@proxy")

    task = asyncio.create_task(fail(), name="link")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del task
    gc.collect()

    (record,) = caplog.records
    assert "secret" not in str(vars(record))
    assert (record.message, vars(record)["kind"], vars(record)["task"]) == (
        "unhandled error",
        "OSError",
        "link",
    )
    assert vars(record)["where"][0].endswith(" fail")


async def test_equal_errors_that_nobody_waits_for_are_one_line_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """asyncio reports each accept() without a free file descriptor."""
    loop = asyncio.get_running_loop()
    log_unseen_errors(loop)

    for _ in range(1500):
        loop.call_exception_handler({"exception": OSError(24, "too many open files")})
    loop.call_exception_handler({"exception": KeyError("a")})

    kinds = [vars(record)["kind"] for record in caplog.records]
    assert kinds == ["OSError", "KeyError"]


async def test_trouble_of_the_loop_without_an_error_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    log_unseen_errors(loop)

    loop.call_exception_handler({"message": "secret"})

    (record,) = caplog.records
    assert "secret" not in str(vars(record))
    assert (vars(record)["kind"], vars(record)["task"]) == (None, None)
