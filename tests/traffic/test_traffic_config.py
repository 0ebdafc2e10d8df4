"""``[traffic]``: its defaults, and its faults with their reasons."""

from collections.abc import Mapping

import pytest

from bridge.configuration.config import Config
from bridge.configuration.load import parse
from bridge.foundation.errors import ConfigError
from bridge.foundation.values import Duration
from bridge.traffic.config import TrafficConfig


def read(traffic: Mapping[str, object]) -> Config:
    return parse({"traffic": traffic}, file="here", environ={})


def faults(traffic: Mapping[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(traffic)
    return [str(fault) for fault in caught.value.faults]


def test_defaults_are_the_documented_ones() -> None:
    found = read({}).traffic

    assert found == TrafficConfig()
    assert found is not None
    assert found.listen == "0.0.0.0:9466"
    assert [at.port for at in found.addresses] == [9466]
    times = (found.lead, found.resume_after, found.settle, found.app_timeout)
    assert [float(seconds) for seconds in times] == [300, 30, 15, 2]
    assert found.event_types == ("Reboot", "Redeploy", "Preempt", "Terminate")
    assert (found.app, found.on_unknown) == ("", "in")


def test_there_is_no_probe_unless_it_is_configured() -> None:
    assert parse({}, file="here", environ={}).traffic is None


def test_environment_overrides_the_file() -> None:
    environ = {"SEBRIDGE__TRAFFIC__LEAD": "90s"}
    found = parse({"traffic": {"lead": "1s"}}, file="here", environ=environ).traffic

    assert found == TrafficConfig(lead=Duration(90))


@pytest.mark.parametrize(
    ("traffic", "words"),
    [
        ({"listen": "9466"}, "here: traffic.listen: must be host:port"),
        ({"listen": ""}, "here: traffic.listen: must be host:port"),
        ({"listen": []}, "here: traffic.listen: must name an address"),
        ({"listen": ["[::]:1", "9466"]}, "here: traffic.listen[1]: must be host:port"),
        ({"listen": ["[::]:1", "[::]:1"]}, "here: traffic.listen[1]: is listed twice"),
        (
            {"listen": ["10.0.0.4:1", "[::]:9465"]},
            "here: traffic.listen: must not be that of http.listen",
        ),
        ({"listen": "0.0.0.0:70000"}, "here: traffic.listen: must be host:port"),
        ({"event_types": []}, "here: traffic.event_types: must name a type"),
        ({"app": "ftp://x"}, "here: traffic.app: must be an http:// or https:// URL"),
        ({"app": "http://169.254.169.254/"}, "here: traffic.app: "),
        ({"app_timeout": "0s"}, "here: traffic.app_timeout: must be from 100ms to 1m"),
        ({"app_timeout": "2m"}, "here: traffic.app_timeout: must be from 100ms to 1m"),
        ({"on_unknown": "maybe"}, 'traffic.on_unknown: must be one of "in", "out"'),
        ({"led": "5m"}, "traffic.led: unknown key; did you mean 'lead'?"),
        (
            {"app": "http://localhost:9466/"},
            "here: traffic.app: must not be traffic.listen",
        ),
        (
            {"listen": "10.0.0.4:80", "app": "http://10.0.0.4/"},
            "here: traffic.app: must not be traffic.listen",
        ),
        (
            {"listen": "10.0.0.4:443", "app": "https://10.0.0.4/"},
            "here: traffic.app: must not be traffic.listen",
        ),
        (
            {"listen": "0.0.0.0:9465"},
            "here: traffic.listen: must not be that of http.listen",
        ),
        (
            {"listen": "127.0.0.1:9465"},
            "here: traffic.listen: must not be that of http.listen",
        ),
    ],
)
def test_fault_names_its_place_and_what_is_allowed(
    traffic: dict[str, object], words: str
) -> None:
    (found,) = faults(traffic)

    assert words in found


def test_invalid_listen_causes_no_fault_of_app() -> None:
    assert len(faults({"listen": "nowhere", "app": "http://localhost:8080/"})) == 1


@pytest.mark.parametrize(
    "tables",
    [
        {"traffic": {"listen": "10.0.0.4:9465"}},
        {"traffic": {"listen": "0.0.0.0:9465"}, "http": {"listen": ""}},
        {"traffic": {"listen": "127.0.0.1:0"}, "http": {"listen": "127.0.0.1:0"}},
        {"traffic": {"app": "http://10.0.0.4:8080/health"}},
    ],
)
def test_different_addresses_are_accepted(tables: dict[str, object]) -> None:
    assert parse(tables, file="here", environ={}).traffic is not None


def test_event_type_that_no_event_has_is_a_warning() -> None:
    (warning,) = (
        w for w in read({"event_types": ["Rebot"]}).warnings() if "traffic" in w
    )

    assert warning.startswith("traffic.event_types: ")
    assert "'Reboot'" in warning
