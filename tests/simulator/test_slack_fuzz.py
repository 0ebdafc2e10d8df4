"""The local Slack refuses a message or shows it, whatever is posted."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bridge.simulator.slack.page import page
from bridge.simulator.slack.refusals import refusal
from bridge.simulator.slack.workspace import Content, Post, Workspace, bot_of

KINDS = ["section", "context", "actions", "header", "image", "markdown", "divider"]
WORDS = [*KINDS, "button", "mrkdwn", "plain_text", "primary", "", "good", "#fff", "<b>"]
KEYS = ["type", "text", "blocks", "elements", "fields", "accessory", "confirm", "style"]
MORE = ["title", "deny", "alt_text", "value", "action_id", "block_id", "attachments"]
WORST = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(WORDS)
VALUES = st.recursive(
    WORST,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*KEYS, *MORE]), inner, max_size=6)
    ),
    max_leaves=12,
)
TEXTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["mrkdwn", "plain_text"]), "text": st.just("*a* <b>")}
)
BUTTONS = st.fixed_dictionaries(
    {"type": st.just("button"), "text": TEXTS},
    optional={"style": VALUES, "confirm": VALUES, "value": VALUES},
)
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        "text": TEXTS | VALUES,
        "fields": st.lists(TEXTS, max_size=2) | VALUES,
        "elements": st.lists(TEXTS | BUTTONS | VALUES, max_size=2),
        "accessory": BUTTONS | VALUES,
        "alt_text": VALUES,
    },
)
LISTS = st.lists(BLOCKS | VALUES, max_size=3) | VALUES
ATTACHMENTS = st.fixed_dictionaries(
    {},
    optional={
        "blocks": LISTS,
        "color": VALUES,
        "text": VALUES,
        "title": VALUES,
        "fields": VALUES,
        "fallback": VALUES,
    },
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "text": VALUES,
        "blocks": LISTS,
        "attachments": st.lists(ATTACHMENTS | VALUES, max_size=2) | VALUES,
    },
)


@given(MESSAGES)
def test_any_message_is_refused_or_shown(message: Any) -> None:
    if refusal(message) is None:
        workspace = Workspace()
        channel = workspace.named("ops")
        content = Content.of(message, "1.000000")
        channel.keep(Post(ts="1.000000", bot=bot_of("xoxb-1"), content=content))
        html, _ = page(workspace, None, 1.0)
        assert channel.posts["1.000000"].as_json()["text"] == content.text
        assert html.count("<b>") == html.count("</b>")
