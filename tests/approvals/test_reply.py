"""The entities to which a reply may be sent, and its form in the outbox."""

import pytest

from bridge.approvals.rules import ReplyRules

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
def test_replies_go_only_to_allowed_entities(reply_to: str, entity: str | None) -> None:
    assert RULES.entity(reply_to) == entity


ANYONE = ReplyRules.of(["*", "*/*"], ["vm-approvals", "/Events/", "news/a"])


@pytest.mark.parametrize(
    "reply_to",
    [
        *("vm-approvals", "VM-APPROVALS", "//vm-approvals/", "events", "EVENTS/"),
        *("vm-approvals/$DeadLetterQueue", "Vm-Approvals/$deadletterqueue"),
        *("vm-approvals/Subscriptions/s", "events/subscriptions/s/$DeadLetterQueue"),
        *("replies/$DeadLetterQueue", "replies/$deadletterqueue", "$DeadLetterQueue"),
        *("replies/Subscriptions/s/$DEADLETTERQUEUE", "replies/$management", "$cbs"),
        *("sb://ns.servicebus.windows.net/vm-approvals", "news/A", "news/a/b"),
        *("ns.servicebus.windows.net/vm-approvals/$DeadLetterQueue", "x//y"),
        *("vm%2Dapprovals", "x/../vm-approvals", "./events", "vm-approvals\\x", "a b"),
        *("events\n", "events\t/x", "\u017fevents", "vm-approvals?x", "events#x"),
    ],
)
def test_no_glob_reaches_the_approvals_the_events_or_what_lies_below(
    reply_to: str,
) -> None:
    assert ANYONE.entity(reply_to) is None


@pytest.mark.parametrize(
    "reply_to", ["vm-approvals-2", "event", "news", "a/b", "A.b_~"]
)
def test_similar_names_are_allowed(reply_to: str) -> None:
    assert ANYONE.entity(reply_to) == reply_to
