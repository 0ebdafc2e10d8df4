"""The rules of IMDS for requests, and the form of its document."""

import pytest

from bridge.simulator.errors import SimulatorError
from bridge.simulator.imds.document import VERSIONS
from bridge.simulator.imds.lifecycle import EventLife
from bridge.simulator.imds.scenario import load
from bridge.simulator.imds.server import ImdsSimulator
from bridge.simulator.imds.state import ImdsOptions
from tests.simulator.imds_client import EVENTS, METADATA, life, vm

NEWEST_PATH = f"{EVENTS}?api-version=2020-07-01"
ALL_FIELDS = [
    "EventId",
    "EventStatus",
    "EventType",
    "ResourceType",
    "Resources",
    "NotBefore",
    "Description",
    "EventSource",
    "DurationInSeconds",
]


async def test_document_is_empty_at_first() -> None:
    async with vm() as it:
        assert await it.document() == {"DocumentIncarnation": 1, "Events": []}


async def test_document_is_the_documented_one() -> None:
    """The whole document is equal to the example of the documentation."""
    async with vm() as it:
        it.imds.schedule(
            EventLife(
                event_type="Freeze",
                resources=("WestNO_0", "WestNO_1"),
                event_id="C7061BAC-AFDC-4513-B24B-AA5F13A16123",
                description="Virtual machine is being paused because of a "
                "memory-preserving Live Migration operation.",
                duration_seconds=5,
                notice_seconds=900,
            )
        )

        assert await it.document() == load("documents-live-migration").documents[1]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", [NEWEST_PATH, "/metadata/versions"])
@pytest.mark.parametrize("headers", [{}, {"Metadata": "false"}])
async def test_request_without_metadata_header_is_refused(
    method: str, path: str, headers: dict[str, str]
) -> None:
    async with vm() as it:
        reply = await it.http.send(method, path, headers=headers)

        assert reply.status == 400
        assert "Required metadata header not specified" in reply.json["error"]


async def test_forwarded_request_is_refused() -> None:
    async with vm() as it:
        assert (await it.get(**{"X-Forwarded-For": "10.0.0.5"})).status == 400


async def test_repeated_query_parameter_is_refused() -> None:
    async with vm() as it:
        path = NEWEST_PATH + "&api-version=2019-08-01"

        assert (await it.http.send("GET", path, headers=METADATA)).status == 400


async def test_missing_api_version_is_answered_with_the_newest() -> None:
    async with vm() as it:
        reply = await it.http.send("GET", EVENTS, headers=METADATA)

        assert reply.status == 400
        assert "api-version was not specified" in reply.json["error"]
        assert reply.json["newest-versions"] == [
            "2020-07-01",
            "2019-08-01",
            "2019-04-01",
        ]


@pytest.mark.parametrize("version", ["", "2020-07-02", "latest"])
async def test_wrong_api_version_is_answered_with_the_newest(version: str) -> None:
    async with vm() as it:
        reply = await it.get(version)

        assert reply.status == 400
        assert reply.json["newest-versions"][0] == "2020-07-01"


async def test_post_needs_a_version_too() -> None:
    async with vm() as it:
        assert (await it.post({"StartRequests": []}, "2016-01-01")).status == 400


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD"])
async def test_other_methods_are_not_allowed(method: str) -> None:
    async with vm() as it:
        reply = await it.http.send(method, NEWEST_PATH, headers=METADATA)

        assert reply.status == 405


async def test_path_of_the_first_preview_is_gone() -> None:
    async with vm() as it:
        path = "/metadata/latest/scheduledevents"

        assert (await it.http.send("GET", path, headers=METADATA)).status == 404


@pytest.mark.parametrize(
    ("version", "hidden"),
    [
        ("2017-08-01", {"Description", "EventSource", "DurationInSeconds"}),
        ("2019-01-01", {"Description", "EventSource", "DurationInSeconds"}),
        ("2019-04-01", {"EventSource", "DurationInSeconds"}),
        ("2019-08-01", {"DurationInSeconds"}),
        ("2020-07-01", set()),
    ],
)
async def test_old_version_lacks_later_fields(version: str, hidden: set[str]) -> None:
    async with vm() as it:
        it.imds.schedule(life())

        event = await it.event(version)

        assert list(event) == [name for name in ALL_FIELDS if name not in hidden]


async def test_preview_writes_names_with_an_underscore() -> None:
    async with vm() as it:
        it.imds.schedule(life("Reboot", "vm-1", "vm-2"))

        assert (await it.event("2017-03-01"))["Resources"] == ["_vm-1", "_vm-2"]
        assert (await it.event("2017-08-01"))["Resources"] == ["vm-1", "vm-2"]


@pytest.mark.parametrize(
    ("event_type", "since"), [("Preempt", "2017-11-01"), ("Terminate", "2019-01-01")]
)
async def test_event_type_is_hidden_from_versions_before_it(
    event_type: str, since: str
) -> None:
    async with vm() as it:
        it.imds.schedule(life(event_type))

        for version in VERSIONS:
            is_shown = bool((await it.document(version))["Events"])
            assert is_shown == (version >= since)


async def test_date_header_has_the_simulated_time() -> None:
    async with vm() as it:
        reply = await it.get()

        assert reply.headers["Date"] == "Mon, 11 Apr 2022 22:11:58 GMT"
        assert reply.headers["Content-Type"] == "application/json; charset=utf-8"


async def test_etag_is_off_unless_switched_on() -> None:
    async with vm() as it:
        reply = await it.get(**{"If-None-Match": "1"})

        assert reply.status == 200
        assert "ETag" not in reply.headers


@pytest.mark.parametrize("form", ["1", '"1"', 'W/"1"'])
async def test_known_etag_is_answered_with_304(form: str) -> None:
    async with vm(options=ImdsOptions(etag=True)) as it:
        assert (await it.get()).headers["ETag"] == "1"

        reply = await it.get(**{"If-None-Match": form})

        assert (reply.status, reply.body) == (304, b"")


async def test_etag_of_before_a_change_brings_the_new_document() -> None:
    async with vm(options=ImdsOptions(etag=True)) as it:
        it.imds.schedule(life())

        reply = await it.get(**{"If-None-Match": "1"})

        assert (reply.status, reply.headers["ETag"]) == (200, "2")


async def test_first_call_may_take_long_and_the_second_does_not() -> None:
    async with vm(options=ImdsOptions(first_call_delay=120)) as it:
        await it.get()
        await it.get()

        assert it.clock.waits == [120]


async def test_sixth_request_within_a_second_is_throttled() -> None:
    async with vm(options=ImdsOptions(rate_limit=True)) as it:
        statuses = [(await it.get()).status for _ in range(6)]
        it.clock.at += 1

        assert statuses == [200] * 5 + [429]
        assert (await it.get()).status == 200


async def test_any_rate_is_taken_unless_switched_on() -> None:
    async with vm() as it:
        assert {(await it.get()).status for _ in range(12)} == {200}


async def test_requests_are_kept_as_they_came() -> None:
    async with vm() as it:
        await it.post({"StartRequests": []})

        (request,) = it.imds.requests
        assert (request.method, request.path) == ("POST", EVENTS)
        assert request.query == {"api-version": "2020-07-01"}
        assert request.headers["Metadata"] == "true"
        assert request.body == '{"StartRequests":[]}'
        assert request.at == it.clock.at


async def test_port_in_use_is_reported_in_one_sentence() -> None:
    async with ImdsSimulator() as first:
        port = int(first.url.rpartition(":")[2])

        with pytest.raises(SimulatorError, match=rf"^the IMDS cannot .*:{port}: Addr"):
            async with ImdsSimulator(port=port):
                pass
