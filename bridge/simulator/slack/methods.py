"""The methods of Slack's Web API, as far as a bot that posts needs them.

Source:  docs.slack.dev/reference/methods/NAME
"""

from collections.abc import Callable, Iterable, Mapping
from email.message import Message
from typing import Final
from urllib.parse import parse_qsl

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.simulator.errors import BadInputError
from bridge.simulator.foreign import load
from bridge.simulator.slack.refusals import (
    POSTS,
    TIER_3,
    TIER_4,
    Limiter,
    Rate,
    RateError,
    RefusedError,
    judge,
)
from bridge.simulator.slack.workspace import (
    TEAM,
    Bot,
    Channel,
    Content,
    Post,
    Workspace,
    is_ts,
)

_LONGEST_TEXT: Final = 40_000  # a longer text is cut
_LONGEST_UPDATE: Final = 4000
_MOST_LISTED: Final = 999

_READ: Final = {"C": "channels:read", "G": "groups:read", "D": "im:read"}

Members = dict[str, object]


class Call(Struct, frozen=True, kw_only=True):
    """A call and its time."""

    method: str
    bot: Bot
    arguments: Mapping[str, object]
    now: float

    def table(self, name: str) -> Mapping[str, object] | None:
        """Return an argument that is an object."""
        value = self.arguments.get(name)
        return value if isinstance(value, Mapping) else None

    def text(self, name: str) -> str:
        """Return an argument that is text; "" if it is absent."""
        value = self.arguments.get(name)
        return value if isinstance(value, str) else ""


class Methods(Struct):
    """The methods of one workspace.

    Attributes:
        posts: the rate limit of posts in a channel; None: no limit for any call.
    """

    workspace: Workspace
    posts: Rate | None = POSTS
    _limiter: Limiter = field(default_factory=Limiter)

    def run(self, call: Call) -> Members:
        """Run a method; return the members of its answer besides ``ok``.

        Raises:
            RefusedError: the call is refused.
            RateError: the call is above a rate limit.
        """
        methods: dict[str, tuple[str, Callable[[Call], Members]]] = {
            "auth.test": ("", self._test),
            "chat.delete": ("chat:write", self._delete),
            "chat.postEphemeral": ("chat:write", self._post_ephemeral),
            "chat.postMessage": ("chat:write", self._post),
            "chat.update": ("chat:write", self._update),
            "conversations.history": ("channels:history", self._history),
            "conversations.info": ("", self._info),
            "conversations.replies": ("channels:history", self._replies),
        }
        if call.method not in methods:
            raise RefusedError("unknown_method", req_method=call.method)
        scope, run = methods[call.method]
        if scope:
            _need(call, scope)
        return run(call)

    def _test(self, call: Call) -> Members:
        return {
            "url": "https://example.slack.com/",
            "team": "Example",
            "user": call.bot.name,
            "team_id": TEAM,
            "user_id": call.bot.user_id,
            "bot_id": call.bot.bot_id,
            "is_enterprise_install": False,
        }

    def _post(self, call: Call) -> Members:
        channel = self.workspace.named(call.arguments.get("channel"))
        self._count(f"{channel.id} posts", self.posts, call.now)
        post = self._new(call)
        channel.keep(post)
        members = {"channel": channel.id, "ts": post.ts, "message": post.as_json()}
        is_cut = len(call.text("text")) > _LONGEST_TEXT
        return {**members, **(_warning("message_truncated") if is_cut else {})}

    def _post_ephemeral(self, call: Call) -> Members:
        channel = self.workspace.named(call.arguments.get("channel"))
        self._count(f"{call.bot.bot_id} ephemeral", TIER_4, call.now)
        user = call.text("user")
        if not user:
            raise RefusedError("user_not_in_channel")
        post = replace(self._new(call), only_for=user)
        channel.keep(post)
        return {"message_ts": post.ts}

    def _update(self, call: Call) -> Members:
        channel = self.workspace.known(call.arguments.get("channel"))
        self._count(f"{call.bot.bot_id} updates", TIER_3, call.now)
        if channel.refusal:
            is_archived = channel.refusal == "is_archived"
            raise RefusedError("is_inactive" if is_archived else channel.refusal)
        post = _own_post(call, channel, "cant_update_message")
        _check(call)
        if len(call.text("text")) > _LONGEST_UPDATE:
            raise RefusedError("msg_too_long")
        changed = replace(
            post,
            edited_at=call.now,
            content=Content.of(call.arguments, post.ts, post.content),
            metadata=_metadata(call, post.metadata),
        )
        channel.keep(changed)
        return {
            "channel": channel.id,
            "ts": changed.ts,
            "text": changed.content.text,
            "message": changed.as_json(),
        }

    def _delete(self, call: Call) -> Members:
        channel = self.workspace.known(call.arguments.get("channel"))
        self._count(f"{call.bot.bot_id} deletions", TIER_3, call.now)
        post = _own_post(call, channel, "cant_delete_message")
        del channel.posts[post.ts]
        return {"channel": channel.id, "ts": post.ts}

    def _history(self, call: Call) -> Members:
        channel = self.workspace.known(call.arguments.get("channel"))
        self._count(f"{call.bot.bot_id} history", TIER_3, call.now)
        posts = (each for each in channel.posts.values() if not each.only_for)
        shown = [each for each in posts if not each.thread_ts or each.is_broadcast]
        return _listed(call, channel, reversed(shown))

    def _info(self, call: Call) -> Members:
        wanted = call.text("channel")
        if not wanted:
            missing = "[ERROR] missing required field: channel"
            raise RefusedError("invalid_arguments", [missing])
        self._count(f"{call.bot.bot_id} info", TIER_3, call.now)
        if call.bot.granted.isdisjoint(_READ.values()):
            _need(call, ",".join(_READ.values()))
        channel = self.workspace.seen(wanted)
        _need(call, _READ[channel.id[0]])
        shown = {
            "id": channel.id,
            "name": channel.name,
            "is_channel": channel.id.startswith("C"),
            "is_group": channel.id.startswith("G"),
            "is_im": channel.id.startswith("D"),
            "is_private": not channel.id.startswith("C"),
            "is_archived": channel.refusal == "is_archived",
            "is_member": channel.refusal != "not_in_channel",
        }
        return {"channel": shown}

    def _replies(self, call: Call) -> Members:
        channel = self.workspace.known(call.arguments.get("channel"))
        self._count(f"{call.bot.bot_id} replies", TIER_3, call.now)
        ts = call.text("ts")
        if ts not in channel.posts:
            raise RefusedError("thread_not_found")
        first = channel.posts[ts]
        return _listed(call, channel, [first, *channel.thread(ts)])

    def _count(self, key: str, rate: Rate | None, now: float) -> None:
        if self.posts is None or rate is None:
            return
        if seconds := self._limiter.take(key, rate, now):
            raise RateError(seconds)

    def _new(self, call: Call) -> Post:
        _check(call)
        thread_ts = call.arguments.get("thread_ts") or None
        if thread_ts is not None and not is_ts(thread_ts):
            raise RefusedError("invalid_arguments", [_NO_TS.format("thread_ts")])
        ts = self.workspace.new_ts(call.now)
        text = call.text("text")[:_LONGEST_TEXT]
        return Post(
            ts=ts,
            bot=call.bot,
            content=Content.of({**call.arguments, "text": text}, ts),
            metadata=_metadata(call, None),
            thread_ts=str(thread_ts) if thread_ts else None,
            is_broadcast=is_true(call.arguments.get("reply_broadcast")),
        )


_NO_TS = "[ERROR] must match pattern: ^[0-9]{{1,12}}\\.[0-9]{{6}}$ [json-pointer:/{}]"


def _need(call: Call, scope: str) -> None:
    if scope not in call.bot.granted:
        provided = ",".join(sorted(call.bot.granted))
        raise RefusedError("missing_scope", needed=scope, provided=provided)


def _check(call: Call) -> None:
    if found := judge(call.arguments):
        raise RefusedError(found.code, [f"[ERROR] {each}" for each in found.details])


def _own_post(call: Call, channel: Channel, code: str) -> Post:
    ts = call.arguments.get("ts")
    post = channel.posts.get(ts) if isinstance(ts, str) else None
    if post is None:
        raise RefusedError("message_not_found")
    if post.bot.bot_id != call.bot.bot_id or post.only_for:
        raise RefusedError(code)
    return post


def _metadata(
    call: Call, before: Mapping[str, object] | None
) -> Mapping[str, object] | None:
    given = call.arguments.get("metadata")
    if given is None:
        return before
    if given == {}:
        return None
    table = call.table("metadata")
    if (
        table is None
        or not isinstance(table.get("event_type"), str)
        or not isinstance(table.get("event_payload"), Mapping)
    ):
        raise RefusedError("invalid_metadata_format")
    return table


def _listed(call: Call, channel: Channel, posts: Iterable[Post]) -> Members:
    limit = _whole(call.arguments.get("limit"), 100)
    oldest, latest = call.text("oldest"), call.text("latest")
    wanted = [
        _shown(call, channel, each)
        for each in posts
        if (not oldest or each.ts >= oldest) and (not latest or each.ts <= latest)
    ]
    return {"messages": wanted[:limit], "has_more": len(wanted) > limit}


def _shown(call: Call, channel: Channel, post: Post) -> Members:
    shown = post.as_json()
    if replies := len(channel.thread(post.ts)):
        shown |= {"thread_ts": post.ts, "reply_count": replies}
    if post.metadata and is_true(call.arguments.get("include_all_metadata")):
        shown["metadata"] = post.metadata
    return shown


def _whole(value: object, default: int) -> int:
    text = str(value)
    return min(int(text), _MOST_LISTED) if text.isdecimal() else default


def _warning(code: str) -> Members:
    return {"warning": code, "response_metadata": {"warnings": [code]}}


# -- Parse the arguments of a Web API call, from JSON or a form. Pure ------------------
#
# Source:  docs.slack.dev/apis/web-api (POST bodies)


_JSON: Final = "application/json"
_FORM: Final = "application/x-www-form-urlencoded"
_CHARSETS: Final = frozenset({"utf-8", "utf8", "iso-8859-1"})
# Form fields that hold JSON as text.
_NESTED: Final = {
    "attachments": "invalid_attachments",
    "blocks": "invalid_blocks_format",
    "metadata": "invalid_metadata_format",
}


def parse(body: bytes, content_type: str | None) -> dict[str, object]:
    """Return the arguments of a call.

    Args:
        body: as sent.
        content_type: the value of the header Content-Type; None: there is no header.

    Raises:
        RefusedError: the body cannot be read.
    """
    if not body:
        return {}
    if not content_type:
        raise RefusedError("missing_post_type")
    kind, charset = _kind(content_type)
    if charset and charset.lower() not in _CHARSETS:
        raise RefusedError("invalid_charset")
    if kind == _JSON:
        return _unpacked(_from_json(body))
    if kind == _FORM:
        return _unpacked(_from_form(body))
    raise RefusedError("invalid_post_type")


def warning(body: bytes, content_type: str | None) -> str | None:
    """Return Slack's warning about a call that it accepts; None: no warning."""
    kind, charset = _kind(content_type or "")
    return "missing_charset" if body and kind == _JSON and not charset else None


def is_true(value: object) -> bool:
    """Return whether an argument is true."""
    return value in (True, 1, "true", "1")


def _kind(content_type: str) -> tuple[str, str | None]:
    header = Message()
    header["Content-Type"] = content_type
    charset = header.get_param("charset")
    return header.get_content_type(), charset if isinstance(charset, str) else None


def _from_json(body: bytes) -> dict[str, object]:
    try:
        value = load(body)
    except BadInputError as error:
        raise RefusedError("invalid_json") from error
    if not isinstance(value, dict):
        raise RefusedError("json_not_object")
    return value


def _from_form(body: bytes) -> dict[str, object]:
    try:
        return dict(
            parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=True)
        )
    except ValueError as error:
        raise RefusedError("invalid_form_data") from error


def _unpacked(arguments: Mapping[str, object]) -> dict[str, object]:
    return {name: _value(name, value) for name, value in arguments.items()}


def _value(name: str, value: object) -> object:
    if name not in _NESTED or not isinstance(value, str) or not value:
        return value
    try:
        return load(value)
    except BadInputError as error:
        raise RefusedError(_NESTED[name]) from error
