"""Where a reply may go, and how it rests in the outbox."""

import pytest

from bridge.approvals.envelope import ReplyEnvelope, ReplyRules

RULES = ReplyRules.of(["replies", "Team-*"], ["vm-approvals", "team-events"])


@pytest.mark.parametrize(
    ("reply_to", "entity"),
    [
        ("replies", "replies"),
        ("REPLIES", "REPLIES"),
        ("team-a", "team-a"),
        ("/replies/", "replies"),
        ("sb://ns.servicebus.windows.net/replies", "replies"),
        ("ns.servicebus.windows.net/replies", "replies"),
        ("other", None),
        ("team-events", None),
        ("Vm-Approvals", None),
        ("sb://[bad/replies", None),
        ("", None),
    ],
)
def test_only_entities_that_are_allowed_are_answered(
    reply_to: str, entity: str | None
) -> None:
    assert RULES.entity(reply_to) == entity


def test_envelope_reads_back_what_it_wrote() -> None:
    envelope = ReplyEnvelope(
        entity="replies",
        message_id="m",
        correlation_id=None,
        session_id="s",
        body="{}",
    )

    assert ReplyEnvelope.from_json(envelope.to_json()) == envelope
