"""A team: its people, its conversations, and the messages of the bot.

It has no clock: the caller passes the time. Only the last messages of each conversation
are kept, so it may run for weeks.

Without a configuration, every conversation whose id begins with ``19:`` exists, three
people are in it, and any app may be the bot.
"""

import itertools
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

from msgspec import Struct, field

from bridge.simulator.errors import NoSuchEntityError
from bridge.simulator.teams.refusals import TeamsRefusalError

Table = Mapping[str, object]

TENANT: Final = "72f988bf-0000-4000-8000-2d7cd011db47"
KEPT: Final = 200


class Person(Struct, frozen=True, kw_only=True):
    """A person of the tenant.

    Attributes:
        object_id: the person's object id in Entra ID.
        name: the displayed name.
    """

    object_id: str
    name: str

    @property
    def id(self) -> str:
        """The person's id in requests between Teams and bots."""
        return f"29:1{sha256(self.object_id.encode()).hexdigest()[:32]}"


PEOPLE: Final = (
    Person(object_id="a11ce000-0000-4000-8000-000000000001", name="Alice Ndiaye"),
    Person(object_id="b0b00000-0000-4000-8000-000000000002", name="Bob Keller"),
    Person(object_id="e7e00000-0000-4000-8000-000000000003", name="Eve Moreau"),
)


class Seen(Struct, frozen=True, kw_only=True):
    """A bot's answer to one person, shown below a message's card or in its place.

    Attributes:
        card: the card that the bot answered with; None: the one of the message.
        words: a text that the bot answered with; "" = none.
    """

    card: Table | None = None
    words: str = ""


class Post(Struct, kw_only=True):
    """A message of the bot.

    Attributes:
        id: its id in the conversation.
        app_id: the app id of the bot.
        card: the card that it shows now.
        summary: the text for notifications.
        at: when it was posted, seconds since the epoch.
        edited_at: when it was changed last; None: never.
        views: the bot's answers to single people, by their object ids.
    """

    id: str
    app_id: str
    card: Table
    summary: str
    at: float
    edited_at: float | None = None
    views: dict[str, Seen] = field(default_factory=dict)

    def change(self, card: Table, summary: str, now: float) -> None:
        """Show another card to everybody."""
        self.card, self.summary, self.edited_at = card, summary, now
        for user, seen in self.views.items():
            self.views[user] = Seen(words=seen.words)

    def card_for(self, user: str | None) -> Table:
        """Return the card that a person sees; None: the card that everybody sees."""
        seen = self.views.get(user or "")
        return seen.card if seen is not None and seen.card is not None else self.card


class Conversation(Struct, kw_only=True):
    """A channel or a chat, and its messages by their ids, oldest first."""

    id: str
    name: str
    people: tuple[Person, ...] = PEOPLE
    posts: dict[str, Post] = field(default_factory=dict)

    def post(self, name: str) -> Post:
        """Return a message.

        Raises:
            NoSuchEntityError: there is no message with this id.
        """
        if name not in self.posts:
            raise NoSuchEntityError(f"there is no message {name}")
        return self.posts[name]

    def person(self, object_id: str) -> Person:
        """Return a member.

        Raises:
            NoSuchEntityError: nobody here has this object id.
        """
        for each in self.people:
            if each.object_id == object_id:
                return each
        raise NoSuchEntityError(f"nobody here has the object id {object_id}")

    def keep(self, post: Post) -> None:
        """Store a message; remove the oldest if there are too many."""
        self.posts[post.id] = post
        while len(self.posts) > KEPT:
            del self.posts[next(iter(self.posts))]


class Team(Struct):
    """The conversations and groups of a tenant.

    Attributes:
        tenant: the tenant of all people.
        conversations: by their ids; only those that were configured or used.
        is_open: whether a conversation exists even if it was not configured.
        groups: the members of each group: object ids, by the object id of the group.
    """

    tenant: str = TENANT
    conversations: dict[str, Conversation] = field(default_factory=dict)
    is_open: bool = True
    groups: dict[str, frozenset[str]] = field(default_factory=dict)
    _count: "itertools.count[int]" = field(default_factory=itertools.count)

    def conversation(self, conversation_id: str) -> Conversation:
        """Return a conversation.

        Raises:
            TeamsRefusalError: the bot is in no conversation with this id.
        """
        is_new = conversation_id not in self.conversations and self.is_open
        if is_new and conversation_id.startswith("19:"):
            short = conversation_id.removeprefix("19:").partition("@")[0]
            self.conversations[conversation_id] = Conversation(
                id=conversation_id, name=short
            )
        if conversation_id not in self.conversations:
            raise TeamsRefusalError(
                404, "ConversationNotFound", "Conversation not found."
            )
        return self.conversations[conversation_id]

    def new_id(self, now: float) -> str:
        """Return an id for a message that is posted now."""
        return f"{int(now * 1000)}{next(self._count) % 1000:03d}"

    def groups_of(self, object_id: str, among: Iterable[str]) -> list[str]:
        """Return the groups of ``among`` that a person is a member of."""
        return [
            each for each in among if object_id in self.groups.get(each, frozenset())
        ]
