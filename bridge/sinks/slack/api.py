"""Slack's Web API: one call, and what its answer means for a delivery.

It is called with the bridge's own HTTP client. slack_sdk's client follows redirects,
takes proxies from the environment and fails at answers that are not JSON.

    ok: false ─┬─ transient    a later attempt may succeed
               ├─ refused      everything to this channel with this token is refused
               ├─ gone         the message no longer exists, or cannot be changed
               ├─ permanent    this message will never be accepted
               └─ unknown      transient: the meaning of a new error is not known

Source: docs.slack.dev/apis/web-api; docs.slack.dev/reference/methods/chat.postMessage
and chat.update (errors), docs.slack.dev/apis/web-api/rate-limits.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urljoin

import aiohttp
import orjson

from bridge.foundation.clock import Clock
from bridge.foundation.errors import (
    DeliveryError,
    PermanentDeliveryError,
    Reason,
    RefusedDeliveryError,
    TransientDeliveryError,
)
from bridge.foundation.values import Secret
from bridge.net.http_client import Answer, Request, exchange, failure, redact, revealed

_WORD = re.compile(r"[a-z][a-z0-9_]{0,59}")  # such as invalid_auth; never a token
_TOKEN = re.compile(r"[\x21-\x7e]+")

_THROTTLED = frozenset({"ratelimited", "rate_limited", "message_limit_exceeded"})
_GONE = frozenset({"cant_update_message", "edit_window_closed", "message_not_found"})
_NO_THREAD = frozenset(
    {
        "cannot_reply_to_message",
        "restricted_action_non_threadable_channel",
        "restricted_action_thread_locked",
        "thread_not_found",
    }
)
_UNAUTHORIZED = frozenset(
    {
        "access_denied",
        "access_limited",
        "accesslimited",
        "account_inactive",
        "ekm_access_denied",
        "enterprise_is_restricted",
        "invalid_auth",
        "missing_scope",
        "no_permission",
        "not_allowed_token_type",
        "not_authed",
        "org_login_required",
        "restricted_action",
        "restricted_action_read_only_channel",
        "restricted_action_thread_only_channel",
        "team_access_not_granted",
        "token_expired",
        "token_revoked",
        "two_factor_setup_required",
    }
)
_NO_CHANNEL = frozenset(
    {"channel_not_found", "is_archived", "is_inactive", "not_in_channel"}
)
_NOT_FOUND = frozenset({"deprecated_endpoint", "method_deprecated", "unknown_method"})
_TOO_LARGE = frozenset(
    {"metadata_too_large", "msg_blocks_too_long", "msg_too_long", "too_many_contents"}
)
_REJECTED = frozenset(
    {
        "as_user_not_supported",
        "attachment_payload_limit_exceeded",
        "block_mismatch",
        "duplicate_channel_not_found",
        "duplicate_message_not_found",
        "invalid_arg_name",
        "invalid_arguments",
        "invalid_array_arg",
        "invalid_attachments",
        "invalid_blocks",
        "invalid_blocks_format",
        "invalid_charset",
        "invalid_form_data",
        "invalid_json",
        "invalid_metadata_format",
        "invalid_metadata_schema",
        "invalid_post_type",
        "json_not_object",
        "markdown_text_conflict",
        "metadata_must_be_sent_from_app",
        "missing_post_type",
        "no_text",
        "slack_connect_blocked_file_type",
        "too_many_attachments",
        "user_not_in_channel",
    }
)


class MessageGoneError(PermanentDeliveryError):
    """The message no longer exists, or may not be changed."""


class NoThreadError(PermanentDeliveryError):
    """The message can have no replies."""


class NoChannelError(RefusedDeliveryError):
    """The bot cannot post: the channel does not exist, or the bot is not a member."""


_MEANINGS: Sequence[tuple[frozenset[str], type[DeliveryError], Reason]] = (
    (_GONE, MessageGoneError, Reason.NOT_FOUND),
    (_NO_THREAD, NoThreadError, Reason.REJECTED),
    (_NO_CHANNEL, NoChannelError, Reason.NOT_FOUND),
    (_UNAUTHORIZED, RefusedDeliveryError, Reason.UNAUTHORIZED),
    (_NOT_FOUND, RefusedDeliveryError, Reason.NOT_FOUND),
    (_TOO_LARGE, PermanentDeliveryError, Reason.TOO_LARGE),
    (_REJECTED, PermanentDeliveryError, Reason.REJECTED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackApi:
    """The Web API, as one bot calls it.

    Attributes:
        url: the base URL of the methods, such as ``https://slack.com/api/``.
        token: the bot's token; read at each call, so that a rotated one is used.
        timeout: seconds for one call.
        clock: the time, see ``exchange``.
    """

    http: aiohttp.ClientSession
    url: str
    token: Secret = field(repr=False)
    timeout: float
    clock: Clock

    @property
    def target(self) -> str:
        """The name of Slack in errors."""
        return redact(self.url)

    async def call(
        self, method: str, arguments: Mapping[str, object]
    ) -> dict[str, object]:
        """Call a method and return its answer.

        Raises:
            DeliveryError: the method failed, or its result is not known.
        """
        request = Request(
            url=urljoin(self.url, method),
            headers={
                "Authorization": f"Bearer {self._revealed()}",
                "Content-Type": "application/json; charset=utf-8",
            },
            body=orjson.dumps(arguments),
            timeout=self.timeout,
        )
        answer = await exchange(self.http, request, self.target, self.clock.now)
        return read(answer, self.target)

    def _revealed(self) -> str:
        token = revealed(self.token, "token")
        if not _TOKEN.fullmatch(token):
            text = "token: it holds spaces or other characters that no token has"
            raise RefusedDeliveryError(text, Reason.UNAUTHORIZED)
        return token


def read(answer: Answer, target: str) -> dict[str, object]:
    """Return the answer of a method.

    Raises:
        DeliveryError: the method failed.
    """
    body = _object(answer.body)
    error_code = body.get("error")
    is_word = isinstance(error_code, str) and _WORD.fullmatch(error_code)
    word = str(error_code) if is_word else ""
    wish = answer.retry_after
    if error := failure(answer.status, target=target, retry_after=wish, detail=word):
        raise error
    if body.get("ok") is True:
        return body
    if body.get("ok") is not False:
        text = f"{target} did not answer in Slack's format: is a proxy in between?"
        raise TransientDeliveryError(text, Reason.SERVER)
    raise meaning(word, f"{target} answered {word or 'with an error'}", wish)


def meaning(word: str, text: str, retry_after: float | None) -> DeliveryError:
    """Return what an error of Slack means for a delivery."""
    for words, kind, reason in _MEANINGS:
        if word in words:
            return kind(text, reason)
    reason = Reason.THROTTLED if word in _THROTTLED else Reason.SERVER
    return TransientDeliveryError(text, reason, retry_after=retry_after)


def _object(body: bytes) -> dict[str, object]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
