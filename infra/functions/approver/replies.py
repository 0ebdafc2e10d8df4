"""The answer to Slack after a click.

If a click does not count, only the person sees the answer. Otherwise the message
changes: a line says who decided, and the buttons of a decided event are removed.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from slack_sdk.errors import SlackClientError
from slack_sdk.webhook.async_client import AsyncWebhookClient

from approver.clicks import Click
from approver.people import escaped, mentions
from approver.polls import Counted, Decided, Refused, Verdict

_log = logging.getLogger("approver")

_LINE: Final = "sebridge-votes"
_MOST_BLOCKS: Final = 50
_MOST_NAMES: Final = 10
_SECONDS: Final = 10


def reply(click: Click, verdict: Verdict) -> dict[str, object]:
    """Return the body to post to the click's response_url."""
    if isinstance(verdict, Refused):
        return {
            "response_type": "ephemeral",
            "replace_original": False,
            "text": verdict.words,
        }
    line = _line(verdict)
    is_approved = isinstance(verdict, Decided) and verdict.decision.action == "approve"
    blocks = _without_line(click.blocks, keep_buttons=not is_approved)
    context = {
        "type": "context",
        "block_id": _LINE,
        "elements": [{"type": "mrkdwn", "text": line}],
    }
    return {
        "replace_original": True,
        "text": line,
        "blocks": [*blocks[: _MOST_BLOCKS - 1], context],
    }


async def send(click: Click, verdict: Verdict, hooks: str) -> None:
    """Post the answer; a failure is only logged, because the decision is stored.

    Args:
        click: the click that is answered.
        verdict: the result of the click.
        hooks: the required beginning of the response_url.
    """
    if not click.response_url.startswith(hooks):
        _log.warning("not answered: the response_url is not Slack's")
        return
    client = AsyncWebhookClient(click.response_url, timeout=_SECONDS)
    try:
        response = await client.send_dict(reply(click, verdict))
    except (OSError, TimeoutError, SlackClientError) as error:
        _log.warning("Slack could not be answered: %s", type(error).__name__)
        return
    if response.status_code != 200:
        _log.warning("Slack refused the answer with %d", response.status_code)


def _line(verdict: Counted | Decided) -> str:
    if isinstance(verdict, Counted):
        voters = mentions(verdict.voters, verdict.names, "Slack")
        return f":ballot_box_with_ballot: {voters} approved; missing: {_list(verdict)}"
    decision = verdict.decision
    people = mentions(decision.by, decision.names, "Slack")
    if decision.action == "refuse":
        return f":no_entry: Not approved: refused by {people}; all votes are deleted"
    return f":white_check_mark: Approved by {people}; the request is on its way"


def _list(verdict: Counted) -> str:
    shown = [escaped(each) for each in verdict.missing[:_MOST_NAMES]]
    more = len(verdict.missing) - len(shown)
    return ", ".join([*shown, f"and {more} more"] if more else shown)


def _without_line(
    blocks: Iterable[Mapping[str, object]], *, keep_buttons: bool
) -> list[Mapping[str, object]]:
    return [
        block
        for block in blocks
        if block.get("block_id") != _LINE
        and (keep_buttons or block.get("type") != "actions")
    ]
