"""What Teams, Entra ID and Microsoft Graph send to the Functions app.

Nothing here waits: the answers of others are given beforehand, so that a coroutine
runs to its end at once.
"""

import json
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from jwt.algorithms import RSAAlgorithm

from approver.announcements import Announcement
from approver.ballots import Ballot
from approver.errors import UnreadableError
from approver.people import is_object_id
from approver.polls import Refused, announced, cast
from approver.settings import Settings
from approver.teams import bot, invoke, web
from approver.teams.callers import Callers
from approver.teams.card import View, render
from approver.teams.config import TeamsConfig
from approver.teams.connector import Connector
from approver.teams.credential import Credential
from approver.teams.errors import StrangerError, TeamsError
from approver.teams.groups import Groups
from approver.teams.invoke import Invoke
from approver.teams.web import Ask, Web
from approver.vote_rules import Rules, digest
from bridge.simulator.teams.refusals import faults
from tests.fuzz.target import brief
from tests.support.builders import EVENT_ID, imds_event
from tests.support.fakes import START

APP_ID = "5eb41d6e-0000-4000-8000-00000000b07a"
TENANT = "72f988bf-0000-4000-8000-2d7cd011db47"
ALICE = "a11ce000-0000-4000-8000-000000000001"
GROUP = "6700f000-0000-4000-8000-000000000001"
URL = "https://smba.trafficmanager.net/emea/"
ISSUER = "https://api.botframework.com"
_ENVIRONMENT = {
    "SERVICEBUS__fullyQualifiedNamespace": "contoso.servicebus.windows.net",
    "APPROVERS": ALICE,
    "TEAMS_APP_ID": APP_ID,
    "TEAMS_TENANT": TENANT,
    "TEAMS_CONVERSATION": "19:a@thread.v2",
    "TEAMS_APP_SECRET": "s" * 40,
    "TEAMS_GROUPS": GROUP,
}
_SETTINGS = Settings.from_environment(_ENVIRONMENT)
_RULES: Rules = _SETTINGS.rules
_EVENT = imds_event(EVENT_ID)
_OTHERS = ("kid-2", None, 7)  # what else a token may name as its key


def _config() -> TeamsConfig:
    assert _SETTINGS.teams is not None
    return _SETTINGS.teams


def _ballot() -> Ballot:
    shown = Announcement(
        id="1",
        event_id=EVENT_ID,
        transition="scheduled",
        time=START,
        event=_EVENT,
        is_whole=True,
    )
    found = announced(None, shown)
    assert found is not None
    return found


_CONFIG, _BALLOT = _config(), _ballot()
_OWN = generate_private_key(public_exponent=65537, key_size=2048)
_PUBLISHED = {
    **RSAAlgorithm.to_jwk(_OWN.public_key(), as_dict=True),
    "kid": "kid-1",
    "endorsements": ["msteams"],
}
_METADATA = {"jwks_uri": f"{_CONFIG.keys}.well-known/keys"}
_KEYS = {"keys": [_PUBLISHED]}
_CLAIMS = {"iss": ISSUER, "aud": APP_ID, "serviceurl": URL, "nbf": 1, "exp": 2**32}
_ACTIVITY = {
    "type": "invoke",
    "id": "f:1",
    "name": invoke.NAME,
    "channelId": "msteams",
    "serviceUrl": URL,
    "from": {"id": "29:1", "name": "Alice Ndiaye", "aadObjectId": ALICE},
    "conversation": {"id": "19:a@thread.v2;messageid=1", "tenantId": TENANT},
    "channelData": {"tenant": {"id": TENANT}},
    "value": {
        "action": {
            "type": "Action.Execute",
            "verb": "approve",
            "data": {"eventId": EVENT_ID, "digest": digest(_EVENT)},
        }
    },
}
_LOOK = {
    **_ACTIVITY,
    "value": {"action": {"verb": "look", "data": {"eventId": EVENT_ID}}},
}


def _signed(claims: bytes, key: object = "kid-1") -> str:
    headers = {} if key is None else {"kid": key}
    return jwt.PyJWS().encode(claims, _OWN, "RS256", headers=headers)


_TOKEN = _signed(json.dumps(_CLAIMS).encode())
_DEEP = jwt.utils.base64url_encode(b"[" * 3000).decode()


class _Given(Web):
    """Answers what it was given, one body for each request; the last one again."""

    def __init__(self, *bodies: bytes) -> None:
        super().__init__()
        self._bodies = [*bodies]

    async def ask(self, ask: Ask) -> dict[str, object]:
        assert ask.url.startswith("https://")
        body = self._bodies.pop(0) if len(self._bodies) > 1 else self._bodies[0]
        return web._object(body)


def _done(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nothing, and return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def _callers(*bodies: bytes) -> Callers:
    return Callers(_CONFIG, _Given(*bodies), time.monotonic)


def _known() -> Callers:
    return _callers(json.dumps(_METADATA).encode(), json.dumps(_KEYS).encode())


def _is_let_in(callers: Callers, header: str, activity: dict[str, Any]) -> bool:
    try:
        _done(callers.check(header, activity))
    except (StrangerError, TeamsError) as error:
        brief(error)
        return False
    return True


def activity(body: bytes) -> None:
    """A request whose sender was checked: refused, or a click that can be counted."""
    try:
        found = invoke.activity_of(body)
        assert invoke.is_of(found, TENANT) in {True, False}
        assert ";" not in invoke.conversation_of(found)
        click = invoke.read(found)
    except UnreadableError as error:
        brief(error)
        return
    assert is_object_id(click.user)
    assert Invoke.from_bytes(click.to_bytes()) == click
    if click.verb != "look":
        _counted(click)


def _counted(click: Invoke) -> None:
    """What is counted can be kept and shown."""
    ballot, verdict = cast(_BALLOT, bot._vote(click), bot._button(click), _RULES, START)
    if isinstance(verdict, Refused):
        assert verdict.words
        return
    assert ballot is not None
    assert Ballot.from_bytes(ballot.to_bytes()) == ballot
    card = render(ballot, View(note=click.name))
    assert faults(card) == []
    assert json.dumps(invoke.with_card(card)).isascii()


def kept(body: bytes) -> None:
    """A click on the queue: something else, or one as the app puts there."""
    found = Invoke.from_bytes(body)
    if found is not None:
        assert is_object_id(found.user)
        assert found.verb in {"approve", "refuse", "look"}
        assert Invoke.from_bytes(found.to_bytes()) == found


def token(packed: bytes) -> None:
    """The header as a line, then the activity: nobody gets in without our token."""
    line, _, body = packed.partition(b"\n")
    header = line.decode("latin-1")
    try:
        found = dict(invoke.activity_of(body))
    except UnreadableError:
        found = {**_ACTIVITY}
    if _is_let_in(_known(), header, found):
        head, _, given = header.partition(" ")
        assert head.lower() == "bearer"
        assert given.strip().split(".")[:2] == _TOKEN.split(".")[:2]
        assert (found["channelId"], found["serviceUrl"]) == ("msteams", URL)


def claims(body: bytes) -> None:
    """Claims that the Bot Framework has signed: only ours let in."""
    for name in ("kid-1", *_OTHERS):
        try:
            signed = _signed(body, name)
        except (TypeError, jwt.PyJWTError):
            continue
        if _is_let_in(_known(), f"Bearer {signed}", {**_ACTIVITY}):
            given = json.loads(body)
            aud = given["aud"]
            assert name == "kid-1"
            assert (given["iss"], given["serviceurl"]) == (ISSUER, URL)
            assert APP_ID in ([aud] if isinstance(aud, str) else aud)


def keys(packed: bytes) -> None:
    """The metadata as a line, then the keys: whatever is published, or an error."""
    metadata, _, published = packed.partition(b"\n")
    callers = _callers(metadata, published)
    if _is_let_in(callers, f"Bearer {_TOKEN}", {**_ACTIVITY}):
        assert web._object(metadata)["jwks_uri"].startswith(_CONFIG.keys)  # type: ignore[attr-defined]  # a URL


def answer(packed: bytes) -> None:
    """Retry-After and Entra's answer as lines, then that of Teams or Graph."""
    wait, given, body = (*packed.split(b"\n", 2), b"", b"")[:3]
    assert 0 <= web._seconds(wait.decode("latin-1")) <= 300
    for work in (_post, _members, _member):
        try:
            work(_Given(given, body))
        except TeamsError as error:
            brief(error)


def _connector(given: _Given) -> Connector:
    return Connector(_CONFIG, Credential(_CONFIG, given), given)


def _post(given: _Given) -> None:
    assert _done(_connector(given).post({}, "s"))


def _members(given: _Given) -> None:
    found = _done(_connector(given).members())
    assert all(map(is_object_id, found))
    card = render(replace(_BALLOT), View(users=[*found.values()]))
    assert faults(card) == []


def _member(given: _Given) -> None:
    found = _done(Groups(_CONFIG, Credential(_CONFIG, given), given).has(ALICE))
    assert found in {True, False}


_SENT = json.dumps(_ACTIVITY).encode()
_ENTRA = b'{"token_type":"Bearer","expires_in":3599,"access_token":"t"}'
_CLICK = invoke.read(_ACTIVITY).to_bytes()
_BOMB = b"[" * 60_000
ACTIVITIES = (
    _SENT,
    json.dumps(_LOOK).encode(),
    _BOMB,
    _SENT.replace(b"Alice", b"\\ud800"),
)
CLICKS = (_CLICK, b'{"teamsClick":[]}', _CLICK.replace(b'"approve"', b"1"), _BOMB)
TOKENS = (
    f"Bearer {_TOKEN}\n".encode() + _SENT,
    f"bearer  {_TOKEN} \n".encode(),
    f"Bearer {_TOKEN[:-4]}AAAA\n".encode(),
    f"Bearer {_DEEP}.{_DEEP}.x\n".encode(),
    b"Basic x\n",
    b"Bearer a.b.c\n[]",
)
CLAIMS = (
    json.dumps(_CLAIMS).encode(),
    json.dumps({**_CLAIMS, "aud": [APP_ID, "x"]}).encode(),
    json.dumps({**_CLAIMS, "exp": 1}).encode(),
    b'{"exp":1e999,"iss":[],"aud":{}}',
    _BOMB,
)
KEYS = (
    json.dumps(_METADATA).encode() + b"\n" + json.dumps(_KEYS).encode(),
    json.dumps(_METADATA).encode() + b'\n{"keys":[{"kty":"RSA","kid":"kid-1"}]}',
    b'{"jwks_uri":"https://elsewhere.example/"}\n{}',
    _BOMB + b"\n" + _BOMB,
)
ANSWERS = (
    b"5\n" + _ENTRA + b'\n{"id":"1:2","value":["' + GROUP.encode() + b'"]}',
    b"5\n"
    + _ENTRA
    + b'\n{"members":[{"aadObjectId":"'
    + ALICE.encode()
    + b'","id":"29:1"}],"continuationToken":"c"}',
    b"\n{}\n{}",
    b"9\n" + _ENTRA + b"\n" + _BOMB,
)
