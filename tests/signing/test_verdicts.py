"""One table: what each reader says of a message that is not as its signer sent it.

The readers are ``sebridge verify`` on a copy, a bridge with ``signed_by``, and a hub
with ``keys``.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import orjson
import pytest

from bridge.events.cloudevent import CloudEvent
from bridge.foundation.errors import MalformedApprovalError
from bridge.foundation.values import PublicKeys
from bridge.hub.facts import Reporter, Trust
from bridge.hub.pins import Pins, Runs, listed
from bridge.signing.approval import Approvers
from bridge.signing.archive import Tally, examined
from bridge.signing.own_key import EventSigner
from tests.approvals.test_signed import SOURCE
from tests.approvals.test_signed import body as approval
from tests.signing.test_dsse import KEY, KEYS, OTHER
from tests.support.fakes import START
from tests.support.fleet import step, vm


def made(key: object = KEY) -> bytes:
    """Return an event as web-0 signs it."""
    signer = EventSigner([key], "run-1")  # type: ignore[list-item]  # a key
    return signer.signed(CloudEvent.from_json(step("scheduled")), 1).to_json()


def altered(body: bytes) -> bytes:
    whole = json.loads(body)
    whole["data"]["more"] = 1
    return orjson.dumps(whole)


Change = Callable[[bytes], bytes]
TABLE: list[tuple[str, Change, str, str, Trust, bool]] = [
    # what was done, how, verify, bridge, hub: trust, and whether it is fresh
    ("nothing", lambda body: body, "holds", "", Trust.PINNED, True),
    ("replayed", lambda body: body, "holds", "", Trust.PINNED, False),
    ("altered", altered, "changed", "WrongSignature", Trust.DOUBTFUL, False),
    ("cut", lambda body: body[:-30], "no event", "invalid", Trust.DOUBTFUL, False),
    (
        "re-serialised",
        lambda body: json.dumps(json.loads(body), indent=1).encode(),
        "re-serialised, holds",
        "WrongSignature",
        Trust.DOUBTFUL,
        False,
    ),
    (
        "foreign key",
        lambda body: made(OTHER) if b"StartRequests" not in body else approval(OTHER),
        "unknown key",
        "WrongSignature",
        Trust.DOUBTFUL,
        False,
    ),
    (
        "signature taken off",
        lambda body: orjson.dumps({**json.loads(body), "dssematerial": ""}),
        "unsigned",
        "Unsigned",
        Trust.DOUBTFUL,
        False,
    ),
]


@pytest.mark.parametrize(
    ("what", "change", "verify", "bridge", "trust", "is_fresh"),
    TABLE,
    ids=[row[0] for row in TABLE],
)
def test_message_has_its_verdict(  # noqa: PLR0913, PLR0917 - the columns
    tmp_path: Path,
    what: str,
    change: Change,
    verify: str,
    bridge: str,
    trust: Trust,
    is_fresh: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    event, runs = change(made()), Runs()
    if what == "replayed":
        assert is_fresh_in(runs, pins(), made())
    found = [one.opinion.verdict.value for one in examined([event], KEYS, Tally())]
    assert found == ([] if verify == "no event" else [verify])

    assert answer(tmp_path, change(approval())) == bridge

    known = pins()
    keys, _ = known.proof(event, "")
    assert known.trust(web_0(), keys, START) is trust
    assert is_fresh_in(runs, known, event) is is_fresh


def web_0() -> Reporter:
    who = vm(0)
    return Reporter(
        vm_id=str(who.vm_id),
        name=str(who.vm_name),
        resource_id=str(who.resource_id),
    )


def pins() -> Pins:
    ids = {"vmId": web_0().vm_id, "resourceId": web_0().resource_id}
    return Pins.of(listed(json.dumps({"keys": [{**KEY.public.jwk, **ids}]})))


def is_fresh_in(runs: Runs, known: Pins, body: bytes) -> bool:
    """Whether a hub takes a message for a sign of life."""
    keys, mark = known.proof(body, "")
    if known.trust(web_0(), keys, START) is not Trust.PINNED or mark is None:
        return False
    return runs.take(mark, (START + timedelta(seconds=9)).timestamp())


def answer(folder: Path, body: bytes) -> str:
    """Return why a bridge denies an approval; "" = it does not."""
    path = folder / "approvers.jwks"
    path.write_text(json.dumps({"keys": [KEY.public.jwk]}))
    approvers = Approvers([PublicKeys(f"file:{path}", {})])
    try:
        json.loads(body)
        found = approvers.check(body, SOURCE, START)
    except (ValueError, MalformedApprovalError):
        return "invalid"
    assert found is not None
    return found.reason
