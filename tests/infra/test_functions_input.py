"""What strangers send, and what settings may say: one clear answer each."""

import json
import os
import string
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import function_app
from approver import announcements, clicks, requests
from approver.announcements import Announcement, Outcome
from approver.clicks import Click, is_signed
from approver.errors import ApproverError, SettingsError, UnreadableError
from approver.handlers import Handlers
from approver.polls import Counted, Refused
from approver.replies import reply, send
from approver.settings import Settings
from approver.startrequest import StartRequest
from approver.vote_rules import Rule, Rules
from bridge.approvals.message import parse
from bridge.events.build import Outcome as BridgeOutcome
from bridge.events.build import from_outcome
from bridge.events.samples import marked_event
from tests.infra.functions_world import (
    SIGNING_SECRET,
    Slack,
    cloud_event,
    form,
    request,
    signature,
)
from tests.support.builders import EVENT_ID, event_context_of, imds_event
from tests.support.fakes import START

BUS = {"SERVICEBUS__fullyQualifiedNamespace": "contoso.servicebus.windows.net"}
CLICK: dict[str, object] = {
    "type": "block_actions",
    "user": {"id": "U0ALICE"},
    "team": {"id": "T1"},
    "response_url": "https://hooks.slack.com/actions/1",
    "actions": [{"action_id": "sebridge-approve", "value": "v", "action_ts": "1.1"}],
}


def test_approval_is_one_that_the_bridge_takes() -> None:
    made = StartRequest(
        id="m-1",
        event_id=EVENT_ID,
        approved_by="U1",
        approved_event=imds_event(Description="Wartung für 東京 \ud800"),
        time="2026-03-02T12:00:00+00:00",
        reason="drained",
        expires_at="2026-03-02T12:10:00Z",
    )

    approval = parse(made.to_bytes("sebridge", "urn:x"), {}, prefix="sebridge")

    assert approval.event_ids == (EVENT_ID,)
    assert (approval.approved_by, approval.reason) == ("U1", "drained")
    assert approval.expires_at == datetime(2026, 3, 2, 12, 10, tzinfo=UTC)
    assert approval.approved_event == imds_event(Description="Wartung für 東京 ?")


def test_what_the_bridge_tells_is_understood() -> None:
    event = cloud_event("scheduled", imds_event())

    assert announcements.read(event.to_json(), "sebridge") == Announcement(
        transition="scheduled",
        event_id=EVENT_ID,
        time=START,
        event=imds_event(),
        id=event.id,
        not_before=START + timedelta(seconds=900),
        source=event.source,
    )


@pytest.mark.parametrize("event_id", [EVENT_ID, None])
def test_outcome_of_the_bridge_is_understood(event_id: str | None) -> None:
    outcome = BridgeOutcome(
        outcome="denied",
        event_id=event_id,
        event=None,
        imds_status=None,
        confirmed=None,
        reason="EventChanged",
        request={"messageId": "m-1", "approvedBy": "alice"},
        origin=("q", "m-1", 1),
    )
    found = from_outcome(event_context_of(), outcome, START).event
    body = found.to_json()

    expected = Outcome(
        outcome="denied",
        event_id=EVENT_ID,
        message_id="m-1",
        id=found.id,
        time=found.time,
        by="alice",
        because="EventChanged",
    )
    assert announcements.read(body, "sebridge") == (expected if event_id else None)


def test_event_with_fewer_resources_than_it_has_is_not_whole() -> None:
    names = [f"vm-{number:08d}" * 8 for number in range(900)]
    event = cloud_event("scheduled", imds_event(Resources=names))

    heard = announcements.read(event.to_json(), "sebridge")

    assert isinstance(heard, Announcement)
    assert not heard.is_whole


def started_at(time: str, event_id: object = "e") -> bytes:
    """Return a CloudEvent that tells of a start, by hand."""
    return json.dumps(
        {
            "specversion": "1.0",
            "type": "sebridge.scheduledevent.started.v1",
            "time": time,
            "data": {"event": {"EventId": event_id}},
        }
    ).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"specversion":"0.3"}',
        b'{"specversion":"1.0","type":"sebridge.scheduledevent.started.v1"}',
        b'{"specversion":"1.0","type":"sebridge.startrequest.denied.v1"}',
        started_at("2026-03-02T12:00:00Z", event_id=7),
        started_at("yesterday"),
        started_at("2026-03-02T12:00:00"),
    ],
)
def test_body_that_is_no_event_of_ours_is_an_error(body: bytes) -> None:
    with pytest.raises(UnreadableError):
        announcements.read(body, "sebridge")


@pytest.mark.parametrize(
    "kind",
    [
        "sebridge.bridge.started.v1",
        "sebridge.scheduledevent.started.v2",
        "contoso.scheduledevent.started.v1",
        "contoso.startrequest.denied.v1",
        "sebridgex.scheduledevent.started.v1",
        "scheduledevent.started.v1",
        "startrequest.denied.v1",
        "Sebridge.scheduledevent.started.v1",
    ],
)
def test_other_events_are_passed_over(kind: str) -> None:
    event = json.loads(started_at("2026-03-02T12:00:00Z"))
    data = {**event["data"], "eventId": "e"}
    body = json.dumps({**event, "type": kind, "data": data})

    assert announcements.read(body.encode(), "sebridge") is None


def test_binary_event_is_an_error_whatever_it_is_of() -> None:
    """Its attributes are no part of the body, so that its type cannot be known."""
    body = json.dumps(json.loads(started_at("2026-03-02T12:00:00Z"))["data"])

    with pytest.raises(UnreadableError, match="not a structured CloudEvent"):
        announcements.read(body.encode(), "sebridge")


def test_test_event_of_the_bridge_is_passed_over() -> None:
    event = marked_event(event_context_of(), "Reboot", unique="1", now=START)

    assert announcements.read(event.to_json(), "sebridge") is None


def test_vector_of_slack_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow"
        b"&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA"
        b"&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J"
        b"%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
        b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "x-slack-request-timestamp": "1531420618",
        "X-SLACK-SIGNATURE": "v0="
        "a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    monkeypatch.setattr("slack_sdk.signature.time", lambda: 1531420618.0)

    assert is_signed(body, headers, SIGNING_SECRET)
    assert not is_signed(body + b"x", headers, SIGNING_SECRET)
    assert not is_signed(body, headers, "")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        signature(b"payload={}", age=301),
        signature(b"payload={}", secret="another"),
        signature(b"payload={}") | {"X-Slack-Request-Timestamp": "soon"},
        signature(b"payload={}") | {"X-Slack-Request-Timestamp": "1" + "0" * 400},
        signature(b"payload={}") | {"X-Slack-Signature": "v0=é"},
    ],
)
async def test_malformed_click_is_unauthorised(headers: dict[str, str]) -> None:
    response = await clicked(b"payload={}", headers)
    assert response == 401


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"nothing",
        b"payload=%7B",
        b"payload=7",
        form({**CLICK, "actions": None}),
        form({**CLICK, "user": None}),
        form({**CLICK, "response_url": 7}),
        form({**CLICK, "actions": [{"action_id": "sebridge-approve"}]}),
    ],
)
async def test_signed_nonsense_is_unauthorised(body: bytes) -> None:
    try:
        headers = signature(body)
    except UnicodeDecodeError:  # Slack itself could not sign it
        headers = signature(b"")
    assert await clicked(body, headers) == 401


@pytest.mark.parametrize(
    "payload",
    [{"type": "view_submission"}, {**CLICK, "actions": [{"action_id": "other"}]}],
)
async def test_what_is_not_ours_is_let_pass(payload: dict[str, object]) -> None:
    body = form(payload)
    assert await clicked(body, signature(body)) == 200


async def clicked(body: bytes, headers: dict[str, str]) -> int:
    """Return what Slack is answered by an app that has no Service Bus."""
    settings = Settings.from_environment(
        {**BUS, "SLACK_SIGNING_SECRET": SIGNING_SECRET, "BUTTON_SECRET": "b" * 32}
    )
    async with Handlers(settings) as handlers:
        return int(
            await handlers.accept_click(body, request("slack", body, headers).headers)
        )


@pytest.mark.parametrize(
    ("team", "of_user", "found"),
    [
        ({"id": "T1"}, {"team_id": "T2"}, "T1"),
        (None, {"team_id": "T2"}, "T2"),
        (None, {}, ""),
        (None, {"team_id": ""}, ""),
        ({}, {}, ""),
    ],
)
def test_workspace_is_never_read_from_the_id_of_the_person(
    team: object, of_user: dict[str, str], found: str
) -> None:
    """Slack sends ``team: null`` where the app is installed in an organisation."""
    click = clicks.read(
        form({**CLICK, "team": team, "user": {"id": "U0ALICE", **of_user}})
    )

    assert click is not None
    assert (click.user, click.team) == ("U0ALICE", found)


def test_click_that_names_no_workspace_is_refused_where_one_is_required() -> None:
    of_one = Rules(approvers=frozenset({"U0ALICE"}), team="U0ALICE")

    assert (
        of_one.refusal("U0ALICE", "") == "Clicks from this workspace are not accepted."
    )
    assert Rules(approvers=frozenset({"U0ALICE"})).refusal("U0ALICE", "") is None


@given(
    st.binary()
    | st.text(string.printable).map(lambda text: b"payload=" + text.encode())
)
def test_whatever_slack_signs_is_read_or_refused(body: bytes) -> None:
    with suppress(ApproverError):
        clicks.read(body)


def test_click_is_kept_as_it_was() -> None:
    click = clicks.read(
        form({**CLICK, "message": {"blocks": [{"type": "divider"}, 7]}})
    )
    assert click is not None
    assert Click.from_bytes(click.to_bytes()) == click
    with pytest.raises(UnreadableError):
        Click.from_bytes(b"{}")
    with pytest.raises(UnreadableError):
        Click.from_bytes(b"[" * 100_000)


def test_names_from_azure_are_no_markup() -> None:
    click = clicks.read(form(CLICK))
    assert click is not None

    said = reply(
        click, Counted(voters=("slack:U1",), missing=("<!channel>", *"abcdefghijk"))
    )

    assert "&lt;!channel&gt;, a" in str(said["text"])
    assert str(said["text"]).endswith("i, and 2 more")
    assert reply(click, Refused(words="No."))["response_type"] == "ephemeral"


async def test_slack_that_cannot_be_told_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    verdict = Refused(words="No.")
    async with Slack() as slack:
        for path in ("actions/1", "gone"):
            answer = {**CLICK, "response_url": f"{slack.hooks}{path}"}
            await respond(answer, verdict, slack.hooks)
        hooks = slack.hooks
    await respond({**CLICK, "response_url": f"{hooks}actions/1"}, verdict, hooks)
    await respond(CLICK, verdict, hooks)

    assert [post["text"] for post in slack.posts] == ["No."]
    said = [each.getMessage() for each in caplog.records if each.name == "approver"]
    assert said == [
        "Slack refused the answer with 404",
        "Slack could not be answered: ClientConnectorError",
        "not answered: the response_url is not Slack's",
    ]


async def respond(payload: dict[str, object], verdict: Refused, hooks: str) -> None:
    """Answer a click."""
    click = clicks.read(form(payload))
    assert click is not None
    await send(click, verdict, hooks)


async def test_faulty_approval_gets_400() -> None:
    async with Handlers(Settings.from_environment(BUS)) as handlers:
        status, answer = await handlers.approve(b"{}")

    assert status == 400
    assert answer == {"error": "eventId and approvedBy are required"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ({}, "eventId and approvedBy are required"),
        ({"eventId": "e"}, "eventId and approvedBy are required"),
        ({"eventId": 7, "approvedBy": "a"}, "eventId must be a text"),
        ({"eventId": "e", "approvedBy": " "}, "approvedBy must be a text"),
        ({"eventId": "e", "approvedBy": "a" * 257}, "of 1 to 256"),
        ({"eventId": "e", "approvedBy": "a", "expiresAt": "x"}, "RFC 3339"),
        ({"eventId": "e", "approvedBy": "a", "sessionId": "x"}, "replyToSessionId"),
        ({"eventId": "e", "approvedBy": "a", "approvedEvent": 7}, "IMDS object"),
        ({"eventId": "e", "approvedBy": "a", "approvedEvent": {}}, "same EventId"),
        ("x" * 70_000, "larger than"),
    ],
)
def test_faulty_approval_is_told_what_is_allowed(body: object, said: str) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    with pytest.raises(UnreadableError, match=said):
        requests.read(text.encode())


def test_defaults_are_those_of_the_readme() -> None:
    settings = Settings.from_environment(BUS)

    assert settings.approval_entities == ("vm-approvals-sessions",)
    assert (settings.rules.rule, settings.rules.approvers) == (Rule.ONE, frozenset())
    assert settings.slack_hooks == "https://hooks.slack.com/"


def test_all_faults_of_settings_are_reported_at_once_and_no_secret() -> None:
    faulty = {
        "APPROVERS": "alice, U012AB3CD",
        "VOTE_RULE": "three",
        "RESOURCE_APPROVERS": '{"web-*": ["U0EVE"]}',
        "SLACK_SIGNING_SECRET": "hush",
        "BUTTON_SECRET_PREVIOUS": "hush-hush",
        "SLACK_HOOKS": "http://hooks.example",
        "APPROVAL_ENTITIES": " , ",
    }
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment(faulty)

    names = (*faulty, "BUTTON_SECRET", "SERVICEBUS__fullyQualifiedNamespace")
    found = str(caught.value)
    assert [name for name in names if name not in found] == []
    assert "hush" not in found


REFERENCE = "@Microsoft.KeyVault(SecretUri=https://v.vault.azure.net/secrets/hush-1)"
GOOD = {**BUS, "BUTTON_SECRET": "b" * 32, "SLACK_SIGNING_SECRET": "s" * 32}


@pytest.mark.parametrize(
    "name",
    [
        "BUTTON_SECRET",
        "BUTTON_SECRET_PREVIOUS",
        "SLACK_SIGNING_SECRET",
        "SERVICEBUS__fullyQualifiedNamespace",
        "APPROVERS",
        "SLACK_TEAM",
    ],
)
@pytest.mark.parametrize(
    "reference",
    [
        REFERENCE,
        f"  {REFERENCE.lower()} ",
        "@Microsoft.AppConfiguration(Endpoint=https://hush-1; Key=k)",
    ],
)
def test_reference_that_was_not_resolved_is_no_setting(
    name: str, reference: str
) -> None:
    """Whoever reads the app's settings could forge a button signed with it."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({**GOOD, name: reference})

    found = str(caught.value)
    assert found.startswith(f"{name} holds a reference that was not resolved: ")
    assert "hush" not in found
    assert ";" not in found


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("BUTTON_SECRET", " " * 32, "at least 32 characters"),
        ("BUTTON_SECRET", "\t" * 40, "at least 32 characters"),
        ("BUTTON_SECRET", "hush" + " " * 40, "at least 32 characters"),
        ("BUTTON_SECRET_PREVIOUS", " " * 32, "at least 32 characters"),
        ("SLACK_SIGNING_SECRET", " " * 32, "empty, or the signing secret"),
        ("SERVICEBUS__fullyQualifiedNamespace", "  ", "exactly one of SERVICEBUS"),
        ("CLICKS_QUEUE", " ", "must not be empty"),
        ("VOTES_QUEUE", "", "must not be empty"),
        ("EVENT_TYPE_PREFIX", "", "must not be empty"),
        ("APPROVER_SOURCE", " ", "must not be empty"),
        ("SIGN_KEY", "https://n.vault.azure.net/keys/sign", "with its version"),
        ("SIGN_KEY", f"http://n/keys/sign/{'a' * 32}", "with its version"),
        (
            "SIGN_KEY",
            f"https://n.vault.azure.net.evil.example/keys/sign/{'a' * 32}",
            "with its version",
        ),
        ("SIGN_KEY", f"https://evil.example/keys/sign/{'a' * 32}", "with its version"),
        ("SIGN_KEY", "a,b,c", "one key, or two"),
        ("SLACK_HOOKS", "https://", "must be an https URL with a host"),
        ("SLACK_HOOKS", "https:///", "must be an https URL with a host"),
        ("SLACK_HOOKS", "https://:443/", "must be an https URL with a host"),
        ("SLACK_HOOKS", "https://hooks.slack.com", "ends in a slash"),
        ("SLACK_HOOKS", "https://hush@hooks.slack.com/", "must be an https URL"),
        ("SLACK_HOOKS", "https://hooks.slack.com?/", "must be an https URL"),
        ("SLACK_HOOKS", "https://hooks.slack.com#/", "must be an https URL"),
        ("SLACK_HOOKS", "https://hooks.slack.com:port/", "must be an https URL"),
        ("SLACK_HOOKS", "https://[::/", "must be an https URL"),
        ("SLACK_HOOKS", "http://127.0.0.1:/", "must be an https URL"),
        ("SLACK_HOOKS", "http://127.0.0.1:1@example/", "must be an https URL"),
        ("SLACK_HOOKS", "", "must be an https URL"),
    ],
)
def test_setting_that_only_looks_like_one_is_reported(
    name: str, value: str, allowed: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({**GOOD, name: value})

    found = str(caught.value)
    assert name in found
    assert allowed in found
    assert "hush" not in found


@pytest.mark.parametrize(
    "hooks", ["https://hooks.slack-gov.com/", "https://h/a/", "http://127.0.0.1:80/"]
)
def test_hooks_of_another_slack_are_taken(hooks: str) -> None:
    settings = Settings.from_environment({**GOOD, "SLACK_HOOKS": hooks})

    assert settings.slack_hooks == hooks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "is_good"),
    [
        ({"FUNCTIONS_WORKER_RUNTIME": "python", **GOOD}, True),
        ({"FUNCTIONS_WORKER_RUNTIME": "python", **GOOD, "BUTTON_SECRET": ""}, False),
        ({}, True),
    ],
)
def test_host_is_told_of_faulty_settings_at_the_start(
    environ: dict[str, str], *, is_good: bool
) -> None:
    """Else each announcement would meet them, and become a dead letter."""
    done = subprocess.run(
        [sys.executable, "-c", "import function_app"],
        cwd=Path(function_app.__file__).parent,
        env={"PATH": os.environ["PATH"], **environ},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode == 0) is is_good
    assert ("BUTTON_SECRET must be set" in done.stderr) is not is_good


@pytest.mark.parametrize("owners", ["{", "[]", '{"web-*": "U1"}', ""])
def test_votes_by_resource_need_owners(owners: str) -> None:
    with pytest.raises(SettingsError, match="RESOURCE_APPROVERS"):
        Settings.from_environment(
            {**BUS, "VOTE_RULE": "resources", "RESOURCE_APPROVERS": owners}
        )


@pytest.mark.parametrize(
    ("environ", "source"),
    [
        ({}, "urn:sebridge:approver"),
        ({"APPROVER_SOURCE": "/contoso/approver"}, "/contoso/approver"),
    ],
)
def test_source_of_the_messages_is_the_one_that_was_set(
    environ: dict[str, str], source: str
) -> None:
    assert Settings.from_environment({**GOOD, **environ}).source == source


def test_settings_show_no_secret() -> None:
    settings = Settings.from_environment(
        {
            "SERVICEBUS": "Endpoint=sb://x;SharedAccessKey=hush",
            "SLACK_SIGNING_SECRET": "hush",
            "BUTTON_SECRET": "hush" * 8,
        }
    )
    assert "hush" not in repr(settings)
