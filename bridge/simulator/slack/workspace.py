"""A Slack workspace: its channels, its bots, and the messages.

It has no clock: the caller passes the time. Only the last messages of each channel are
kept, so it may run for weeks.

Without a configuration, every channel exists, and every token that begins with
``xoxb-`` belongs to an app that is a member of all channels.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

from msgspec import Struct, field

from bridge.simulator.slack.refusals import RefusedError

Table = Mapping[str, object]

TEAM: Final = "T012AB3CD"
KEPT: Final = 1000
SCOPES: Final = frozenset(
    {"channels:history", "channels:read", "chat:write", "groups:read", "im:read"}
)
_ID = re.compile(r"[CGD][A-Z0-9]{7,20}")
_NAME = re.compile(r"#?([a-z0-9][a-z0-9_-]{0,79})")
_TS = re.compile(r"\d{1,12}\.\d{6}")


class Bot(Struct, frozen=True, kw_only=True):
    """The bot user of an app, identified by its token.

    Attributes:
        refusal: the error code for each of its calls; None: its calls are accepted.
        scopes: its permissions; None: all.
    """

    app_id: str
    user_id: str
    bot_id: str
    name: str
    refusal: str | None = None
    scopes: frozenset[str] | None = None

    @property
    def granted(self) -> frozenset[str]:
        """Its permissions."""
        return SCOPES if self.scopes is None else self.scopes


class Content(Struct, frozen=True, kw_only=True):
    """The content of a message. Blocks without an id get one, as in Slack."""

    text: str = ""
    blocks: Sequence[Table] = ()
    attachments: Sequence[Table] = ()

    @classmethod
    def of(cls, message: Table, ts: str, before: "Content | None" = None) -> "Content":
        """Return the content of a posted message.

        Args:
            message: as posted, and valid.
            ts: the message's ts, from which the ids are made.
            before: the content to keep for members that ``message`` does not have.
        """
        before = before or cls()
        blocks, attachments = message.get("blocks"), message.get("attachments")
        return cls(
            text=str(message.get("text") or before.text),
            blocks=before.blocks if blocks is None else _blocks(blocks, ts),
            attachments=before.attachments
            if attachments is None
            else _attachments(attachments, ts),
        )


class Post(Struct, frozen=True, kw_only=True):
    """A message in a channel.

    Attributes:
        ts: its id in the channel: seconds since the epoch.
        thread_ts: the ts of the message that this one answers.
        is_broadcast: whether a reply is shown in the channel, too.
        only_for: the only user who sees it; None: everybody.
        edited_at: seconds since the epoch; None: never.
    """

    ts: str
    bot: Bot
    content: Content
    metadata: Table | None = None
    thread_ts: str | None = None
    is_broadcast: bool = False
    only_for: str | None = None
    edited_at: float | None = None

    def as_json(self) -> dict[str, object]:
        """Return the message as Slack shows it, without its metadata."""
        optional = {
            "thread_ts": self.thread_ts,
            "blocks": list(self.content.blocks),
            "attachments": list(self.content.attachments),
            "edited": self.edited_at
            and {"user": self.bot.user_id, "ts": f"{self.edited_at:.6f}"},
        }
        return {
            "type": "message",
            "user": self.bot.user_id,
            "bot_id": self.bot.bot_id,
            "app_id": self.bot.app_id,
            "team": TEAM,
            "ts": self.ts,
            "text": self.content.text,
            **{name: value for name, value in optional.items() if value},
        }


class Channel(Struct, kw_only=True):
    """A channel and its messages by their ts, oldest first.

    Attributes:
        refusal: the error code for posts in it; None: posts are accepted.
    """

    id: str
    name: str
    refusal: str | None = None
    posts: dict[str, Post] = field(default_factory=dict)

    def thread(self, ts: str) -> list[Post]:
        """Return the replies to a message, oldest first."""
        return [each for each in self.posts.values() if each.thread_ts == ts]

    def keep(self, post: Post) -> None:
        """Store a new or changed message; remove the oldest if there are too many."""
        self.posts[post.ts] = post
        while len(self.posts) > KEPT:
            del self.posts[next(iter(self.posts))]


class Workspace(Struct):
    """The channels and the apps.

    Attributes:
        channels: by their ids; only those that were configured or used.
        is_open: whether a channel exists even if it was not configured.
        bots: by their tokens; None: every token is valid.
    """

    channels: dict[str, Channel] = field(default_factory=dict)
    is_open: bool = True
    bots: Mapping[str, Bot] | None = None
    _count: "itertools.count[int]" = field(default_factory=itertools.count)

    def bot(self, token: str | None) -> Bot:
        """Return the bot of a token.

        Raises:
            RefusedError: the token is missing, unknown or refused.
        """
        if not token:
            raise RefusedError("not_authed")
        if self.bots is not None:
            bot = self.bots.get(token)
        else:
            bot = bot_of(token) if token.startswith("xoxb-") else None
        if bot is None:
            is_other = token.startswith(("xapp-", "xoxp-"))
            raise RefusedError("not_allowed_token_type" if is_other else "invalid_auth")
        if bot.refusal:
            raise RefusedError(bot.refusal)
        return bot

    def named(self, name: object) -> Channel:
        """Return a channel by its id or name, for posting.

        Raises:
            RefusedError: the channel does not exist, or posts in it are refused.
        """
        channel = self._found(name) or self._create_if_open(name)
        if channel.refusal:
            raise RefusedError(channel.refusal)
        return channel

    def known(self, channel_id: object) -> Channel:
        """Return a channel by its id only, for reading and changing messages.

        Raises:
            RefusedError: the channel does not exist.
        """
        found = self.channels.get(channel_id) if isinstance(channel_id, str) else None
        if found is None:
            raise RefusedError("channel_not_found")
        return found

    def seen(self, channel_id: object) -> Channel:
        """Return a channel by its id only, as an app sees it.

        Raises:
            RefusedError: the channel does not exist, or the app may not see it.
        """
        text = channel_id if isinstance(channel_id, str) else ""
        found = self.channels.get(text)
        if found is None and self.is_open and _ID.fullmatch(text):
            return Channel(id=text, name=text.lower())
        if found is None or found.refusal == "channel_not_found":
            raise RefusedError("channel_not_found")
        return found

    def get_or_create(self, name: str) -> Channel:
        """Return the channel with this name; create it if needed."""
        return self._found(name) or self._create(id_of(name), name)

    def new_ts(self, now: float) -> str:
        """Return an id for a message that is posted now."""
        return f"{int(now)}.{next(self._count) % 1_000_000:06d}"

    def _found(self, name: object) -> Channel | None:
        if not isinstance(name, str):
            return None
        bare = name.removeprefix("#")
        by_name = (each for each in self.channels.values() if each.name == bare)
        return self.channels.get(name) or next(by_name, None)

    def _create_if_open(self, name: object) -> Channel:
        text = name if isinstance(name, str) and self.is_open else ""
        if _ID.fullmatch(text):
            return self._create(text, text.lower())
        if match := _NAME.fullmatch(text):
            return self._create(id_of(match[1]), match[1])
        raise RefusedError("channel_not_found")

    def _create(self, channel_id: str, name: str) -> Channel:
        channel = Channel(id=channel_id, name=name)
        self.channels[channel_id] = channel
        return channel


def id_of(name: str) -> str:
    """Return the id for a channel of this name."""
    return f"C{sha256(name.encode()).hexdigest()[:10].upper()}"


def bot_of(token: str, name: str = "sebridge") -> Bot:
    """Return the bot of a token; its ids do not reveal the token."""
    digest = sha256(token.encode("utf-8", "replace")).hexdigest()[:9].upper()
    return Bot(
        app_id=f"A{digest}", user_id=f"U{digest}", bot_id=f"B{digest}", name=name
    )


def is_ts(value: object) -> bool:
    """Return whether a value is a ts. It must be text: a number would be rounded."""
    return isinstance(value, str) and _TS.fullmatch(value) is not None


def _blocks(blocks: object, ts: str, place: str = "") -> list[Table]:
    tables = _tables(blocks)
    return [_with_id(block, f"{ts[-6:]}{place}.{n}") for n, block in enumerate(tables)]


def _attachments(attachments: object, ts: str) -> list[Table]:
    return [
        {**each, "blocks": _blocks(each["blocks"], ts, f".{place}")}
        if "blocks" in each
        else each
        for place, each in enumerate(_tables(attachments))
    ]


def _with_id(block: Table, own: str) -> Table:
    named = {"block_id": own, **block}
    if block.get("type") == "actions":
        named["elements"] = [
            {"action_id": f"{own}.{place}", **element}
            for place, element in enumerate(_tables(block.get("elements")))
        ]
    accessory = block.get("accessory")
    if isinstance(accessory, Mapping):
        named["accessory"] = {"action_id": f"{own}.0", **accessory}
    return named


def _tables(value: object) -> list[Table]:
    items = value if isinstance(value, list) else []
    return [each for each in items if isinstance(each, Mapping)]
