"""Clicks and refreshes: Teams' request to the bot, and the bot's answer.

Source:  learn.microsoft.com/adaptive-cards/authoring-cards/universal-action-model
         (adaptiveCard/action, the types of answers)
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

import aiohttp
import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from bridge.simulator.clock import Clock
from bridge.simulator.errors import BadInputError, NoSuchEntityError
from bridge.simulator.foreign import Input, load
from bridge.simulator.teams.refusals import CARD_TYPE, TeamsRefusalError, checked
from bridge.simulator.teams.team import Conversation, Person, Post, Seen, Table, Team
from bridge.simulator.teams.tokens import Keys

_SECONDS: Final = 15.0
_SMALL: Final = 60
_MESSAGE: Final = "application/vnd.microsoft.activity.message"
_FAILED: Final = "Something went wrong. Please try again."

Trigger = Literal["manual", "automatic"]


class Click(Input, frozen=True, kw_only=True):
    """A person's click on a button; with the verb of ``refresh``: a refresh."""

    conversation: str
    message: str
    user: str
    verb: Annotated[str, msgspec.Meta(min_length=1)]


class Sent(Struct, frozen=True, kw_only=True):
    """A request that was sent to the bot, with the bot's answer.

    Attributes:
        body: the activity.
        token: the Bot Framework token that was sent with it.
        status: the status of the answer; None: the bot did not answer in time.
        answer: the body of the answer; None: ``load`` refuses it.
    """

    body: bytes
    token: str
    status: int | None
    answer: object


class Clicks:
    """Sends clicks and refreshes to one bot.

    Args:
        team: holds the messages.
        keys: the keys that sign the requests.
        clock: the source of time.

    Attributes:
        endpoint: the URL of the bot; None: not configured.
        service_url: the URL of Teams, as every request names it.
        last: the request that was sent last.
    """

    def __init__(self, team: Team, keys: Keys, clock: Clock) -> None:
        self.endpoint: str | None = None
        self.service_url = ""
        self.last: Sent | None = None
        self._team = team
        self._keys = keys
        self._clock = clock
        self._count = itertools.count(1)

    async def click(self, click: Click) -> dict[str, object]:
        """Send a click; return the bot's answer and the text that the person sees.

        Raises:
            BadInputError: there is no bot.
            NoSuchEntityError: there is no such message, button or person.
        """
        conversation = self._team.conversations.get(click.conversation)
        if conversation is None:
            raise NoSuchEntityError(f"there is no conversation {click.conversation}")
        person = conversation.person(click.user)
        post = conversation.post(click.message)
        action = _action(post.card_for(click.user), click.verb)
        return await self._invoke(conversation, post, person, action, "manual")

    async def refresh(self, conversation: Conversation, user: str) -> None:
        """Refresh the cards of a conversation for a person, as Teams does on display.

        A card is refreshed for the people that it names. If it names nobody, it is
        refreshed for everybody in a small conversation.

        Raises:
            NoSuchEntityError: there is no such person.
        """
        person = conversation.person(user)
        if self.endpoint is None:
            return
        for post in [*conversation.posts.values()]:
            refresh = post.card.get("refresh")
            table = refresh if isinstance(refresh, Mapping) else {}
            users, action = table.get("userIds"), table.get("action")
            is_small = users is None and len(conversation.people) <= _SMALL
            is_named = isinstance(users, list) and person.id in users
            if isinstance(action, Mapping) and (is_small or is_named):
                await self._invoke(conversation, post, person, action, "automatic")

    async def _invoke(
        self,
        conversation: Conversation,
        post: Post,
        person: Person,
        action: Table,
        trigger: Trigger,
    ) -> dict[str, object]:
        activity = self._activity(conversation, post, person, action, trigger)
        status, answer = await self._send(orjson.dumps(activity), post.app_id)
        before = post.views.get(person.object_id) or Seen()
        seen = _seen(status, answer, before.card)
        if trigger == "automatic" and not seen.words:
            seen = replace(seen, words=before.words)
        if post.id in conversation.posts:
            post.views[person.object_id] = seen
        return {"status": status, "answer": answer, "words": seen.words}

    def _activity(
        self,
        conversation: Conversation,
        post: Post,
        person: Person,
        action: Table,
        trigger: Trigger,
    ) -> dict[str, object]:
        tenant = self._team.tenant
        return {
            "type": "invoke",
            "name": "adaptiveCard/action",
            "id": f"f:{next(self._count):08x}-{post.id}",
            "channelId": "msteams",
            "serviceUrl": self.service_url,
            "from": {
                "id": person.id,
                "name": person.name,
                "aadObjectId": person.object_id,
            },
            "recipient": {"id": f"28:{post.app_id}", "name": "sebridge"},
            "conversation": {
                "isGroup": True,
                "conversationType": "channel",
                "tenantId": tenant,
                "id": f"{conversation.id};messageid={post.id}",
            },
            "channelData": {"tenant": {"id": tenant}, "source": {"name": "message"}},
            "replyToId": post.id,
            "locale": "en-GB",
            "value": {"action": _as_sent(action), "trigger": trigger},
        }

    async def _send(self, body: bytes, app_id: str) -> tuple[int | None, object]:
        """Send an activity to the bot; return the status and the JSON of its answer."""
        if self.endpoint is None:
            raise BadInputError(
                "no bot receives clicks: name its address with PUT /teams/workspace"
                ' {"endpoint": …}'
            )
        token = self._keys.token(app_id, self.service_url, self._clock.now())
        status, answer = await _posted(self.endpoint, body, token)
        self.last = Sent(body=body, token=token, status=status, answer=answer)
        return status, answer


async def _posted(url: str, body: bytes, token: str) -> tuple[int | None, object]:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response,
        ):
            content = await response.read()
            return response.status, _json(content)
    except (aiohttp.ClientError, TimeoutError):
        return None, None


def _json(body: bytes) -> object:
    try:
        return load(body)
    except BadInputError:
        return None


def _seen(status: int | None, answer: object, shown: Table | None) -> Seen:
    """Return what a person, who saw the card ``shown``, sees after the answer."""
    if status != 200 or not isinstance(answer, Mapping):
        return Seen(card=shown, words="Unable to reach app. Please try again.")
    kind, value = answer.get("type"), answer.get("value")
    if answer.get("statusCode") == 200 and kind == CARD_TYPE:
        try:
            return Seen(card=checked(value))
        except TeamsRefusalError as error:
            return Seen(card=shown, words=f"{_FAILED} ({error})")
    if answer.get("statusCode") == 200 and kind == _MESSAGE and isinstance(value, str):
        return Seen(card=shown, words=value)
    message = value.get("message") if isinstance(value, Mapping) else None
    return Seen(card=shown, words=message if isinstance(message, str) else _FAILED)


def _action(card: Table, verb: str) -> Table:
    """Return the action with this verb: a button's, or that of ``refresh``."""
    refresh = card.get("refresh")
    own = refresh.get("action") if isinstance(refresh, Mapping) else None
    for each in [*_executes(card), own]:
        if isinstance(each, Mapping) and each.get("verb") == verb:
            return each
    raise NoSuchEntityError(f"the card has no button {verb}")


def _executes(part: object) -> Iterator[Table]:
    """Yield the buttons in a part of a card. The check of a card limits its depth."""
    if isinstance(part, list):
        for each in part:
            yield from _executes(each)
    elif isinstance(part, Mapping):
        if part.get("type") == "Action.Execute":
            yield part
        for name in ("body", "items", "columns", "actions", "card"):
            yield from _executes(part.get(name))


def _as_sent(action: Table) -> dict[str, object]:
    names = ("type", "id", "title", "verb", "data")
    return {name: action[name] for name in names if name in action}
