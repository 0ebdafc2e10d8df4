"""The description of the API: rules for generators, and every answer of a running hub.

``HubWorld.ask`` compares each answer with the description, in all tests of the hub. So
a test here only has to ask.
"""

import asyncio
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.foundation.values import Address
from bridge.hub.api import Api, document
from bridge.hub.config import HubConfig
from bridge.hub.decisions import ACTIONS
from bridge.hub.store.kept_facts import Incoming
from bridge.hub.store.store import Store, open_store
from bridge.hub.view_rows import PAGE
from tests.support.builders import EVENT_ID
from tests.support.fleet import azure, event, outcome, step, vm
from tests.support.hub import (
    DESCRIBED,
    HubWorld,
    access,
    beat,
    config,
    grid,
    offer,
    received,
)

DOCUMENT = document()
OPERATIONS = {
    (method, path): operation
    for path, item in DOCUMENT["paths"].items()
    for method, operation in item.items()
}


def parts_of(schema: Any, name: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object of the description, with its place."""
    if isinstance(schema, list):
        for number, below in enumerate(schema):
            yield from parts_of(below, f"{name}/{number}")
    elif isinstance(schema, dict):
        yield name, schema
        for key, below in schema.items():
            yield from parts_of(below, f"{name}/{key}")


# -- rules that generators need ----------------------------------------------------


def test_each_route_of_the_api_is_described() -> None:
    nothing: Any = None  # the routes need no store
    api = Api(nothing, HubConfig(), nothing)
    served = {
        (one.method.lower(), re.sub(r":[^}]+}", "}", one.path)) for one in api.routes()
    }

    assert served == set(OPERATIONS)


def test_operations_have_names_of_their_own_and_all_answers() -> None:
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len({*names}) == len(names)
    for operation in OPERATIONS.values():
        answers = operation["responses"]
        assert {"200", "401", "403", "421", "503"} <= {*answers}
        for status, found in answers.items():
            if status >= "4":
                schema = found["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/Error"}


def test_each_schema_has_a_type_and_each_object_a_name() -> None:
    for name, part in parts_of(DOCUMENT):
        if {"enum", "const", "pattern", "maximum"} & {*part}:
            assert "type" in part, name
        if isinstance(part.get("properties"), dict) and "type" in part:
            assert name.count("/") == 3, f"{name} has no name of its own"
            assert "required" in part, name
            assert {*part["required"]} <= {*part["properties"]}, name
        if target := part.get("$ref"):
            assert target.rpartition("/")[2] in DOCUMENT["components"]["schemas"], name


def test_each_parameter_that_is_a_time_says_in_which_form() -> None:
    times = [
        one["description"]
        for operation in OPERATIONS.values()
        for one in operation.get("parameters", [])
        if one["name"] in {"since", "until", "from", "to"}
    ]

    assert len(times) == 8
    assert [words for words in times if "RFC 3339, or a day" not in words] == []


def test_parameters_have_types_and_bounds() -> None:
    given = {
        one["name"]: one["schema"]
        for operation in OPERATIONS.values()
        for one in operation.get("parameters", [])
    }
    assert given["limit"]["type"] == "integer"
    assert (given["limit"]["minimum"], given["limit"]["maximum"]) == (1, PAGE)
    assert given["open"]["type"] == "boolean"
    assert "maxLength" in given["cursor"]
    assert "400" in OPERATIONS["get", "/api/v1/decisions.csv"]["responses"]
    version = DOCUMENT["components"]["schemas"]["Event"]["properties"]["version"]
    assert (version["type"], version["format"]) == ("integer", "int64")


def test_described_answer_without_a_member_or_with_another_is_a_fault() -> None:
    """What the other tests rely on."""
    schema = {"$ref": "#/components/schemas/Decided"}
    good = {"state": "decided", "missing": 0, "id": None}
    assert DESCRIBED.faults(schema, good) == []
    assert DESCRIBED.faults(schema, {**good, "more": 1})
    assert DESCRIBED.faults(schema, {**good, "state": "done"})
    assert DESCRIBED.faults(schema, {"state": "decided"})


# -- every answer of a running hub -------------------------------------------------

_IDS = st.sampled_from([EVENT_ID, EVENT_ID.lower(), "E-2", "nobody", "a/b", "{x}", "%"])
_RAW = st.fixed_dictionaries(
    {},
    optional={
        "NotBefore": st.sampled_from(["", "soon", "Mon, 02 Mar 2026 12:15:00 GMT"]),
        "Resources": st.lists(st.sampled_from(["web-0", "_web-1", "db"]), max_size=3),
        "EventType": st.sampled_from(["Freeze", "Reboot", "Ärger", ""]),
        "EventSource": st.sampled_from(["User", "Platform"]),
        "EventStatus": st.sampled_from(["Scheduled", "Started", "Canceled", "Odd"]),
        "DurationInSeconds": st.integers(-1, 2**40),
        "NewField": st.just([1, {"a": None}]),
    },
)
_KINDS = ["scheduled", "started", "updated", "completed", "cancelled", "ended"]
_OUTCOMES = ["relayed", "denied", "expired", "already-started"]


@st.composite
def messages(draw: st.DrawFn) -> Incoming:
    """Return a message of a bridge or of Azure."""
    name = draw(st.sampled_from([EVENT_ID, "E-2"]))
    raw, seconds = event(name, **draw(_RAW)), draw(st.integers(0, 900))
    what = draw(st.sampled_from(["step", "step", "outcome", "azure", "beat"]))
    if what == "beat":
        rules = [{"name": "r", "eventTypes": ["Freeze"]}]
        approvals = draw(st.sampled_from([None, offer(), offer(*rules)]))
        return beat(draw(st.integers(0, 2)), seconds, approvals, pending=1, dead=0)
    if what == "azure":
        status = draw(st.sampled_from(["Scheduled", "Started", "Completed", "Odd"]))
        return grid(azure(status, raw, seconds=seconds), seconds)
    if what == "outcome":
        word, number = draw(st.sampled_from(_OUTCOMES)), draw(st.sampled_from("01"))
        return received(outcome(word, f"m-{number}", raw, seconds=seconds), seconds)
    who = vm(draw(st.integers(0, 2)))
    return received(step(draw(st.sampled_from(_KINDS)), raw, seconds=seconds, who=who))


_WORDS = st.sampled_from(
    ["", "0", "1", "2", "200", "201", "-1", "x", "²", "true", "false", "scheduled"]
) | st.text(max_size=20)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, dict[str, str], bytes | None]:
    """Return a request for anything that is described, good or bad."""
    method, path = draw(st.sampled_from(sorted(OPERATIONS)))
    given = OPERATIONS[method, path].get("parameters", [])
    asked = path.replace("{id}", quote(draw(_IDS), safe=""))
    names = [one["name"] for one in given if one["in"] == "query"] or ["limt"]
    chosen = draw(st.dictionaries(st.sampled_from(names), _WORDS, max_size=3))
    pairs = [f"{name}={quote(value)}" for name, value in chosen.items()]
    asked += "?" + "&".join(pairs)
    headers = {"User": draw(st.sampled_from(["ann", "bob", "eve", ""]))}
    if method == "get":
        return "GET", asked, headers, None
    headers |= {
        "Content-Type": draw(
            st.sampled_from(["application/json"] * 4 + ["text/plain"])
        ),
        "X-Sebridge": draw(st.sampled_from(["1", "1", "1", "2"])),
    }
    return "POST", asked, headers, draw(bodies())


def bodies() -> st.SearchStrategy[bytes]:
    """Return a vote, or what is none."""
    vote = st.fixed_dictionaries(
        {"decision": st.sampled_from([*ACTIONS, "maybe"])},
        optional={
            "content": st.sampled_from(["$content", "old", ""]),
            "via": st.sampled_from(["bridge", "arm", "mail"]),
            "reason": st.text(max_size=5),
            "reporter": st.sampled_from([str(vm(0).vm_id), "x"]),
            "offer": st.just("x"),
            "override": st.booleans(),
        },
    )
    odd = st.sampled_from([b"", b"{", b"[]", b"x" * (64 * 1024 + 1)])
    return vote.map(lambda found: json.dumps(found).encode()) | odd


@pytest.mark.slow
@given(kept=st.lists(messages(), max_size=12), asked=st.lists(requests(), min_size=4))
@settings(max_examples=25, deadline=None)
def test_every_answer_is_as_it_is_described(
    kept: list[Incoming], asked: list[tuple[str, str, dict[str, str], bytes | None]]
) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as name:
            path = Address(f"sqlite:{Path(name) / 'hub.db'}", {})
            async with open_store(HubConfig(store=path)) as store:
                await _play(store, kept, asked)

    asyncio.run(play())


async def _play(store: Store, kept: list[Incoming], asked: Any) -> None:
    async with HubWorld(store, config(access=access(2))).open() as world:
        await store.keep(kept)
        for method, path, headers, body in asked:
            data = body and body.replace(b"$content", await _content(world, path))
            await world.ask(method, path, headers, data)
        for method, path in sorted(OPERATIONS):  # and all as it is now
            if method == "get":
                shown = path.replace("{id}", EVENT_ID)
                await world.ask("GET", shown, {"User": "ann"})


async def _content(world: HubWorld, path: str) -> bytes:
    found = await world.get(path.removesuffix("/approval"))
    return str(found.get("content", "x")).encode()
