"""Signed events: what a sink writes still holds, or is unsigned, and never wrong."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from bridge.cli.main import main
from bridge.events.cloudevent import MAX_BYTES, SIGNATURE, CloudEvent
from bridge.outbox.store import Outbox
from bridge.signing.archive import Tally, events_in, examined
from bridge.signing.dsse import ATTRIBUTE, SignedEvent, Verdict, judge
from bridge.signing.keys import PrivateKey
from bridge.signing.own_key import EventSigner, own_keys
from bridge.sinks.servicebus.sink import render as render_bus
from bridge.sinks.syslog.format import smaller
from bridge.sinks.webhook.presets import elastic, eventhubs, sentinel, splunk_hec
from bridge.sinks.webhook.presets.preset import RENDER
from bridge.sinks.webhook.template import load
from tests.signing.test_dsse import KEY, KEYS, OTHER
from tests.support.book import sent_to
from tests.support.builders import SINK, outgoing, patient_outbox, router
from tests.support.sink_fixtures import cloud_event

NOW = 1_800_000_000.0
RUN = "0123456789abcdef"


def signer() -> EventSigner:
    return EventSigner([KEY], RUN)


EVENT = cloud_event(noticeSeconds=None, more={"z": 1.5e300, "a": -0.0, "é": "ü\u2028"})
SIGNED = signer().signed(EVENT, 7)


def verdict(body: bytes) -> Verdict:
    return judge(SignedEvent.parse(body), KEYS).verdict


def test_signed_event_holds_and_is_in_a_chain() -> None:
    assert verdict(SIGNED.to_json()) is Verdict.HOLDS
    assert SIGNED.data["chain"] == {"key": KEY.key_id, "run": RUN, "n": 7}
    assert SIGNATURE == ATTRIBUTE


def bodies() -> Iterator[tuple[str, bytes]]:
    """Yield what receivers get of an event that was read from the state file."""
    event = CloudEvent.from_json(SIGNED.to_json())
    for mode in ("structured", "batch", "array"):
        yield mode, RENDER[mode](event)[1]
    yield "bus", render_bus(event, session="event", vm_id="vm", approvals=None).body
    yield "elastic", elastic.render(event)[1]
    yield "event hubs", eventhubs.entry(event)
    yield "splunk", splunk_hec.render(event)[1]
    yield "sentinel", sentinel.render(event)[1]


@pytest.mark.parametrize(("what", "body"), [*bodies()])
def test_event_holds_at_a_receiver(what: str, body: bytes) -> None:
    (found,) = [one for line in body.splitlines() for one in events_in(line)]

    assert verdict(found) is Verdict.HOLDS, what


def test_event_in_binary_mode_holds() -> None:
    """Its data has the same bytes, and the signature is a header."""
    headers, body = RENDER["binary"](CloudEvent.from_json(SIGNED.to_json()))
    attributes = {
        name.removeprefix("ce-"): value
        for name, value in headers.items()
        if name.startswith("ce-")
    }
    attributes["datacontenttype"] = headers["Content-Type"]

    event = SignedEvent(attributes=attributes, data=body)
    assert judge(event, KEYS).verdict is Verdict.HOLDS


def test_what_a_template_writes_is_unsigned() -> None:
    body = load("{{ event | tojson }}", "application/json").render(SIGNED)[1]

    assert verdict(body) is Verdict.UNSIGNED


def test_syslog_leaves_the_signature_out_before_anything_else() -> None:
    whole, *shorter = smaller(replace(SIGNED, data={**SIGNED.data, "previous": {}}))

    assert SIGNATURE in whole.extensions
    assert shorter
    assert all(SIGNATURE not in one.extensions for one in shorter)


def test_limit_of_an_event_holds_with_its_signature_and_the_copy() -> None:
    large = cloud_event(previous={"x": "y" * (MAX_BYTES - 2500)})

    found = signer().signed(large, 1)

    copy = len(str(found.extensions[SIGNATURE]))
    assert len(found.to_json()) + copy <= MAX_BYTES
    assert found.data["truncated"] == ["previous"]
    assert verdict(found.to_json()) is Verdict.HOLDS


def test_what_cannot_be_signed_goes_out_unsigned_and_counted() -> None:
    one = signer()
    odd = replace(EVENT, time="never")

    assert one.signed(odd, 1) == odd
    assert one.unsigned == 1
    assert one.fault

    counted = list[None]()
    bare = EventSigner((), RUN, fault="no key", count=lambda: counted.append(None))
    assert bare.signed(EVENT, 1) == EVENT
    assert (bare.fault, len(counted)) == ("no key", 1)


# -- the outbox -----------------------------------------------------------------------


async def stored(outbox: Outbox) -> list[CloudEvent]:
    found = await outbox.database.read(lambda db: sent_to(db, SINK))
    return [CloudEvent.from_json(one.body) for one in found]


async def test_events_are_signed_in_the_commit_and_counted_over_restarts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.db"
    for names in (("a", "b"), ("c",)):
        async with patient_outbox(path, router()) as outbox:
            outbox.sign = signer().signed
            await outbox.commit([outgoing(name) for name in names], now=NOW)

    async with patient_outbox(path, router()) as outbox:
        events = await stored(outbox)
    assert {verdict(one.to_json()) for one in events} == {Verdict.HOLDS}
    chains = [one.data["chain"] for one in events]
    assert [one["n"] for one in chains] == [1, 2, 3]  # type: ignore[index]  # JSON


async def test_row_keeps_its_signature_over_another_key(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with patient_outbox(path, router()) as outbox:
        outbox.sign = signer().signed
        await outbox.commit([outgoing("a")], now=NOW)
        outbox.sign = EventSigner([OTHER], RUN).signed
        await outbox.commit([outgoing("b")], now=NOW)
        first, second = await stored(outbox)

    assert verdict(first.to_json()) is Verdict.HOLDS
    assert verdict(second.to_json()) is Verdict.UNKNOWN_KEY


# -- the key --------------------------------------------------------------------------


def test_key_is_made_once_for_this_account_alone(tmp_path: Path) -> None:
    state = tmp_path / "state.db"
    (first,) = own_keys(state, "vm-1")
    (again,) = own_keys(state, "vm-1")

    assert first.key_id == again.key_id
    path = tmp_path / "state.db.key"
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
    shown = CliRunner().invoke(main, ["key", "show", str(path)])
    assert [one["kid"] for one in json.loads(shown.output)["keys"]] == [first.key_id]


def test_clone_of_a_vm_gets_a_key_of_its_own(tmp_path: Path) -> None:
    state = tmp_path / "state.db"
    (first,) = own_keys(state, "vm-1")
    (other,) = own_keys(state, "vm-2")

    assert first.key_id != other.key_id
    assert (tmp_path / "state.db.key.vm-1").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"vmId": "vm-1", "keys": []}'])
def test_damaged_key_is_an_error_and_stays(tmp_path: Path, content: str) -> None:
    """A new key in its place would be unknown to all: a person decides."""
    path = tmp_path / "state.db.key"
    path.write_text(content)

    with pytest.raises(ValueError, match="key"):
        own_keys(tmp_path / "state.db", "vm-1")
    assert path.read_text() == content


def test_key_needs_a_vm_id_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vmId"):
        own_keys(tmp_path / "state.db", "")
    with pytest.raises(ValueError, match="No such file"):
        own_keys(tmp_path / "none" / "state.db", "vm-1")


def test_half_written_key_is_written_anew(tmp_path: Path) -> None:
    """As after a power loss while the first one was made."""
    (tmp_path / "state.db.key.new").write_text("{")

    assert own_keys(tmp_path / "state.db", "vm-1")


def test_key_is_replaced_in_two_steps(tmp_path: Path) -> None:
    """Both sign meanwhile, and either one proves what they have signed."""
    state, path = tmp_path / "state.db", str(tmp_path / "state.db.key")
    (old,) = own_keys(state, "vm-1", "/subscriptions/s")
    assert command("retire", path) == (2, f"{path}: has one key only")
    assert command("rotate", path)[0] == 0
    assert command("rotate", path)[1].endswith("has two keys: retire the older one")
    new, same = own_keys(state, "vm-1")
    assert same.key_id == old.key_id
    event = SignedEvent.parse(EventSigner([new, same], RUN).signed(EVENT, 1).to_json())
    for one in (new, same):
        assert isinstance(one, PrivateKey)
        found = judge(event, {one.key_id: one.public})
        assert (found.verdict, found.keys) == (Verdict.HOLDS, (one.key_id,))
    assert command("retire", path)[0] == 0
    assert [one.key_id for one in own_keys(state, "vm-1")] == [new.key_id]
    shown = json.loads(command("show", path)[1])["keys"]
    assert [(one["vmId"], one["resourceId"]) for one in shown] == [
        ("vm-1", "/subscriptions/s")
    ]
    if os.name == "posix":
        assert Path(path).stat().st_mode & 0o777 == 0o600


def test_key_that_is_not_made_yet_is_not_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "state.db.key")
    assert command("rotate", path)[1].endswith("the first start makes it")
    Path(path).write_text("[]")
    assert command("retire", path)[1].endswith("is no file of a key")


def command(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(main, ["key", *arguments])
    return found.exit_code, found.output.strip().removeprefix("sebridge: ")


# -- a receiver's copy ----------------------------------------------------------------


def changed(**members: object) -> bytes:
    whole = json.loads(SIGNED.to_json())
    return orjson.dumps({**whole, **members})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (SIGNED.to_json(), [Verdict.HOLDS]),
        (
            b"[" + SIGNED.to_json() + b"," + EVENT.to_json() + b"]",
            ["holds", "unsigned"],
        ),
        (orjson.dumps({"event": orjson.Fragment(SIGNED.to_json())}), ["holds"]),
        (orjson.dumps({"result": {"_raw": SIGNED.to_json().decode()}}), ["holds"]),
        (
            orjson.dumps(
                {"_source": {"event": {"original": SIGNED.to_json().decode()}}}
            ),
            ["holds"],
        ),
        (json.dumps(json.loads(SIGNED.to_json())).encode(), ["re-serialised, holds"]),
        (changed(subject="x"), ["changed"]),
        (changed(dssematerial="x"), ["wrong"]),
        (EventSigner([OTHER], RUN).signed(EVENT, 1).to_json(), ["unknown key"]),
        (b"2026-03-02 something else", []),
        (b'{"event": 5}', []),
        (b'{"event":' * 50 + b"1" + b"}" * 50, []),
        (SIGNED.to_json()[:-9], []),
        (b"[" * 100_000, []),
        (b'{"specversion":"1.0","data_base64":"?"}', ["wrong"]),
    ],
)
def test_copy_has_its_verdict(line: bytes, expected: list[str]) -> None:
    tally = Tally()
    found = [one.opinion.verdict for one in examined([line], KEYS, tally)]

    assert found == expected
    assert tally.no_event == (not expected)
    assert tally.is_good == (
        bool(found) and set(found) <= {"holds", "re-serialised, holds"}
    )


def invoked(tmp_path: Path, content: bytes, *more: str) -> tuple[int, str]:
    copy, keys = tmp_path / "copy.ndjson", tmp_path / "bridges.jwks"
    copy.write_bytes(content)
    keys.write_text(json.dumps({"keys": [KEY.public.jwk]}))
    arguments = ["verify", str(copy), "--keys", str(keys), *more]
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output


def test_command_counts_what_holds(tmp_path: Path) -> None:
    lines = SIGNED.to_json() + b"\n" + SIGNED.to_json() + b"\n\n"

    assert invoked(tmp_path, lines) == (0, "2 holds\n")
    assert invoked(tmp_path, lines, "--json") == (
        0,
        '{"verdicts": {"holds": 2}, "linesWithoutEvent": 0}\n',
    )


def test_command_names_what_does_not_hold(tmp_path: Path) -> None:
    code, text = invoked(tmp_path, SIGNED.to_json() + b"\n" + changed(id="x") + b"\n?")

    assert code == 1
    assert f"copy.ndjson:2: x: changed ({KEY.key_id})" in text
    assert "1 changed, 1 holds, 1 lines without an event" in text


def test_command_reads_one_document_of_several_lines(tmp_path: Path) -> None:
    whole = json.dumps([json.loads(SIGNED.to_json())], indent=2).encode()

    assert invoked(tmp_path, whole) == (0, "1 re-serialised, holds\n")


def test_command_without_events_or_files_fails(tmp_path: Path) -> None:
    assert invoked(tmp_path, b"") == (1, "no events\n")
    missing = CliRunner().invoke(main, ["verify", "none", "--keys", "none"])
    assert missing.exit_code == 2
