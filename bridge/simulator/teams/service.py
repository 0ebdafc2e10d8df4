"""The Bot Connector API of the local Teams, as far as a bot that posts cards needs it.

Source:  learn.microsoft.com/azure/bot-service/rest-api/
         bot-framework-rest-connector-api-reference,
         learn.microsoft.com/microsoftteams/platform/bots/how-to/rate-limit
"""

import re
from typing import Final
from urllib.parse import unquote

from aiohttp import web

from bridge.simulator.clock import Clock
from bridge.simulator.errors import BadInputError
from bridge.simulator.foreign import load
from bridge.simulator.http_server import as_json
from bridge.simulator.slack.rates import Limiter, Rate
from bridge.simulator.teams.keys import ISSUER
from bridge.simulator.teams.refusals import TeamsRefusalError, card_of
from bridge.simulator.teams.team import Conversation, Person, Post, Team
from bridge.simulator.teams.tokens import Tokens

_PATH: Final = re.compile(
    r"/teams/v3/conversations/(?P<conversation>[^/]+)/(?P<rest>.+)"
)
_ACTIVITY: Final = re.compile(r"activities/(?P<activity>[^/]+)")
# 7 messages in a second and 60 in 30 s, for each conversation.
_RATE: Final = Rate(2.0, 7)
_PAGE: Final = 200


class Service:
    """Answers the requests of the bot.

    Args:
        team: stores the messages.
        tokens: the access tokens of the bot.
        clock: the source of time.

    Attributes:
        is_limited: answer 429 above the rate limit.
    """

    def __init__(self, team: Team, tokens: Tokens, clock: Clock) -> None:
        self.is_limited = True
        self._team = team
        self._tokens = tokens
        self._clock = clock
        self._limiter = Limiter()

    def answer(self, request: web.Request, path: str, body: bytes) -> web.Response:
        """Answer a request of the bot.

        Raises:
            TeamsRefusalError: the request is refused.
        """
        found = _PATH.fullmatch(path)
        if found is None:
            raise TeamsRefusalError(404, "NotFound", "there is nothing here")
        name, rest = unquote(found["conversation"]), found["rest"]
        app_id = self._tokens.check(request, f"{ISSUER}/.default", self._clock.now())
        conversation = self._team.conversation(name)
        if request.method == "GET" and rest == "pagedmembers":
            return as_json(self._members(request, conversation))
        if self.is_limited:
            wait = self._limiter.take(name, _RATE, self._clock.now())
            if wait:
                raise TeamsRefusalError(
                    429, "RateLimitExceeded", "too many requests", wait
                )
        match = _ACTIVITY.fullmatch(rest)
        if request.method == "POST" and rest == "activities":
            return as_json(self._post(conversation, app_id, body), status=201)
        if request.method == "PUT" and match is not None:
            activity = unquote(match["activity"])
            return as_json(self._update(conversation, activity, app_id, body))
        raise TeamsRefusalError(404, "NotFound", "there is nothing here")

    def _post(
        self, conversation: Conversation, app_id: str, body: bytes
    ) -> dict[str, object]:
        activity = object_of(body)
        now = self._clock.now()
        post = Post(
            id=self._team.new_id(now),
            app_id=app_id,
            card=card_of(activity),
            summary=str(activity.get("summary", "")),
            at=now,
        )
        conversation.keep(post)
        return {"id": post.id}

    def _update(
        self, conversation: Conversation, name: str, app_id: str, body: bytes
    ) -> dict[str, object]:
        activity = object_of(body)
        post = conversation.posts.get(name)
        if post is None:
            raise TeamsRefusalError(
                404, "ActivityNotFoundInConversation", "no such activity"
            )
        if post.app_id != app_id:
            raise TeamsRefusalError(403, "Forbidden", "it is another bot's message")
        card, summary = card_of(activity), str(activity.get("summary", ""))
        post.change(card, summary, self._clock.now())
        return {"id": name}

    def _members(
        self, request: web.Request, conversation: Conversation
    ) -> dict[str, object]:
        begin = request.query.get("continuationToken", "0")
        start = int(begin) if begin.isascii() and begin.isdigit() else 0
        people = conversation.people[start : start + _PAGE]
        following = start + _PAGE < len(conversation.people)
        return {
            "continuationToken": str(start + _PAGE) if following else None,
            "members": [self._member(each) for each in people],
        }

    def _member(self, person: Person) -> dict[str, str]:
        return {
            "id": person.id,
            "name": person.name,
            "aadObjectId": person.object_id,
            "tenantId": self._team.tenant,
        }


def object_of(body: bytes) -> dict[str, object]:
    """Return the JSON object of a body.

    Raises:
        TeamsRefusalError: the body is not a JSON object.
    """
    try:
        found = load(body)
    except BadInputError as error:
        raise TeamsRefusalError(400, "BadSyntax", f"Bad format: {error}") from error
    if not isinstance(found, dict):
        raise TeamsRefusalError(400, "BadSyntax", "the body is not an object")
    return found
