"""The offered description of the rules can be parsed to the same rules."""

import orjson

from bridge.approvals.config import ApprovalsConfig, offer
from bridge.approvals.rules import Rule
from bridge.foundation.sections import Reader
from bridge.foundation.values import Duration, Secret

BUS = Secret("Endpoint=sb://x.example;SharedAccessKeyName=k;SharedAccessKey=s3cret", {})
RULES = (
    Rule(name="no", event_types=("Redeploy",), action="deny"),
    Rule(max_duration=Duration(30), delay=Duration(60), action="auto-approve"),
    Rule(action="auto-approve", after=("drain",), others="ignore"),
)


def test_offer_has_entity_session_and_rules() -> None:
    config = ApprovalsConfig(
        connection_string=BUS,
        queue="vm-approvals",
        sessions=("{vm_id}", "g-{group}"),
        allow_event_types=("Freeze",),
        rules=RULES,
    )
    offered = orjson.loads(orjson.dumps(offer(config, lambda text: text.upper())))

    assert (offered["entity"], offered["session"]) == ("vm-approvals", "G-{GROUP}")
    assert offered["allowEventTypes"] == ["Freeze"]
    reader = Reader("")
    assert tuple(reader.section(Rule, r, "") for r in offered["rules"]) == RULES
    assert reader.faults == []
    assert "s3cret" not in str(offered)


def test_digest_changes_with_the_rules() -> None:
    def digest(*rules: Rule) -> object:
        return offer(ApprovalsConfig(rules=rules), str)["digest"]

    assert digest(RULES[0]) == digest(RULES[0]) != digest(RULES[1])


def test_rules_alone_name_no_entity() -> None:
    offered = offer(ApprovalsConfig(rules=RULES), str)
    assert (offered["entity"], offered["session"]) == ("", None)
