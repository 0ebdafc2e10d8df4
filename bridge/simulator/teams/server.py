"""A local Teams under /teams/, as the inbox serves it.

    POST /teams/v3/conversations/ID/activities        the Bot Connector API
    PUT  /teams/v3/conversations/ID/activities/ID
    GET  /teams/v3/conversations/ID/pagedmembers
    POST /teams/login/TENANT/oauth2/v2.0/token        Entra ID, for the bot
    GET  /teams/login/v1/.well-known/…                the Bot Framework's keys
    POST /teams/graph/v1.0/users/ID/checkMemberGroups Microsoft Graph
    GET  /teams                                       the page, as people would see it
    PUT  /teams/workspace                             sets people, channels, the bot
    POST /teams/click                                 a person clicks on a button

Source:  learn.microsoft.com/azure/bot-service/rest-api/
         bot-framework-rest-connector-api-reference
"""

import re
from typing import Annotated, Final
from urllib.parse import parse_qsl, unquote

import msgspec
import orjson
from aiohttp import web

from bridge.simulator.clock import Clock
from bridge.simulator.errors import BadInputError
from bridge.simulator.foreign import Input, load, parse
from bridge.simulator.http_server import as_json
from bridge.simulator.slack.refusals import Limiter, Rate
from bridge.simulator.teams.clicks import Click, Clicks
from bridge.simulator.teams.page import PAGE, Reader, address, page
from bridge.simulator.teams.refusals import TeamsRefusalError, card_of
from bridge.simulator.teams.team import Conversation, Person, Post, Team
from bridge.simulator.teams.tokens import ISSUER, Keys, Tokens

ROOT: Final = "/teams/"
_GRAPH: Final = re.compile(r"/teams/graph/v1.0/users/(?P<user>[^/]+)/checkMemberGroups")
_GRAPH_SCOPE: Final = "{base}/teams/graph/.default"
_FORM: Final = "application/x-www-form-urlencoded"
_GUID: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"

_Guid = Annotated[str, msgspec.Meta(pattern=_GUID)]


class _Person(Input, frozen=True, kw_only=True):
    object_id: _Guid
    name: str


class _Conversation(Input, frozen=True, kw_only=True):
    id: Annotated[str, msgspec.Meta(pattern="^19:")]
    name: str
    people: list[_Person]


class _Bot(Input, frozen=True, kw_only=True):
    app_id: _Guid
    secret: Annotated[str, msgspec.Meta(min_length=1)]


class _Workspace(Input, frozen=True, kw_only=True):
    tenant: _Guid | None = None
    conversations: list[_Conversation] | None = None
    groups: dict[_Guid, list[_Guid]] | None = None
    bots: list[_Bot] | None = None
    endpoint: Annotated[str, msgspec.Meta(pattern="^https?://")] | None = None
    rate_limit: bool | None = None


class TeamsServer:
    """Answers for Teams, and for Entra ID and Graph as far as a bot needs them.

    Args:
        clock: the source of time.

    Attributes:
        team: the people and the messages.
        keys: sign the requests to the bot.
        clicks: sends clicks and refreshes to the bot.
        tokens: the access tokens of the bot.
        service: the Bot Connector API; ``service.is_limited`` is its rate limit.
    """

    def __init__(self, clock: Clock) -> None:
        self.team = Team()
        self.keys = Keys()
        self.clicks = Clicks(self.team, self.keys, clock)
        self.tokens = Tokens()
        self.service = Service(self.team, self.tokens, clock)
        self._clock = clock
        self._base = ""

    def listen_at(self, url: str) -> None:
        """Set the URL of the server, without a slash at the end."""
        self._base = url
        self.clicks.service_url = f"{url}{ROOT}"

    def configure(self, body: bytes) -> None:
        """Apply PUT /teams/workspace; settings that it does not name stay unchanged.

        Raises:
            BadInputError: the body is invalid.
        """
        given = parse(body, _Workspace)
        if given.tenant is not None:
            self.team.tenant = given.tenant
        if given.conversations is not None:
            self.team.is_open = False
            self.team.conversations = {
                each.id: _configured(each, self.team.conversations.get(each.id))
                for each in given.conversations
            }
        if given.groups is not None:
            self.team.groups = {
                name: frozenset(members) for name, members in given.groups.items()
            }
        if given.bots is not None:
            self.tokens.secrets = {each.app_id: each.secret for each in given.bots}
        if given.endpoint is not None:
            self.clicks.endpoint = given.endpoint
        if given.rate_limit is not None:
            self.service.is_limited = given.rate_limit

    def answer(self, request: web.Request, body: bytes) -> web.Response:
        """Answer a request of the bot.

        Raises:
            TeamsRefusalError: the request is refused.
        """
        path = request.raw_path.partition("?")[0]
        if path.endswith("/oauth2/v2.0/token"):
            return as_json(self._token(path, body))
        if request.method == "GET" and path.startswith("/teams/login/v1/"):
            return as_json(self._metadata(path))
        if match := _GRAPH.fullmatch(path):
            return as_json(self._groups(request, unquote(match["user"]), body))
        return self.service.answer(request, path, body)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the page and of the control requests."""
        return [
            web.get(PAGE, self._page, allow_head=False),
            web.get(f"{PAGE}/", self._page, allow_head=False),
            web.put("/teams/workspace", self._put),
            web.post("/teams/click", self._click),
            web.delete("/teams/messages", self._clear),
        ]

    def addresses(self) -> dict[str, str]:
        """Return the addresses for the settings of a bot, and that of the page."""
        return {
            "service": f"{self._base}{ROOT}",
            "login": f"{self._base}/teams/login/",
            "graph": f"{self._base}/teams/graph/",
            "keys": f"{self._base}/teams/login/v1/",
            "tenant": self.team.tenant,
            "page": f"{self._base}{PAGE}",
        }

    def _token(self, path: str, body: bytes) -> dict[str, object]:
        tenant = path.removeprefix("/teams/login/").partition("/")[0]
        if tenant != self.team.tenant:
            raise TeamsRefusalError(400, "invalid_request", "there is no such tenant")
        form = dict(parse_qsl(body.decode(errors="replace")))
        return self.tokens.issue(form, self._clock.now())

    def _metadata(self, path: str) -> dict[str, object]:
        match path.removeprefix("/teams/login/v1/"):
            case ".well-known/openidconfiguration":
                return {
                    "issuer": ISSUER,
                    "jwks_uri": f"{self._base}/teams/login/v1/.well-known/keys",
                    "id_token_signing_alg_values_supported": ["RS256"],
                }
            case ".well-known/keys":
                return self.keys.published()
            case _:
                raise TeamsRefusalError(404, "NotFound", "there is nothing here")

    def _groups(
        self, request: web.Request, user: str, body: bytes
    ) -> dict[str, object]:
        scope = _GRAPH_SCOPE.format(base=self._base)
        self.tokens.check(request, scope, self._clock.now())
        wanted = object_of(body).get("groupIds")
        if not isinstance(wanted, list) or not 1 <= len(wanted) <= 20:
            raise TeamsRefusalError(400, "Request_BadRequest", "groupIds: 1 to 20 ids")
        return {"value": self.team.groups_of(user, map(str, wanted))}

    async def _page(self, request: web.Request) -> web.Response:
        found = self._wanted(request.query.get("conversation"))
        person = None
        if found is not None and (user := request.query.get("as")):
            person = found.person(user)
            await self.clicks.refresh(found, user)
        html, policy = page(self.team, Reader(conversation=found, person=person))
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
        return web.Response(text=html, content_type="text/html", headers=headers)

    def _wanted(self, name: str | None) -> Conversation | None:
        """Return the named conversation, or the conversation of the newest message."""
        known = self.team.conversations
        if name is not None:
            return known.get(name)
        return max(known.values(), key=_last, default=None)

    async def _put(self, request: web.Request) -> web.Response:
        self.configure(await request.read())
        return web.Response(status=204)

    async def _clear(self, _request: web.Request) -> web.Response:
        for each in self.team.conversations.values():
            each.posts.clear()
        return web.Response(status=204)

    async def _click(self, request: web.Request) -> web.Response:
        """Send a click. A form of the page gets a redirect to it, JSON the result."""
        if request.content_type != _FORM:
            click = parse(await request.read(), Click)
            return as_json(await self.clicks.click(click))
        form = orjson.dumps(dict(parse_qsl(await request.text())))
        click = parse(form, Click)
        await self.clicks.click(click)
        location = {"Location": address(click.conversation, click.user)}
        return web.Response(status=303, headers=location)


def refused(error: TeamsRefusalError) -> web.Response:
    """Return the answer to a refused request."""
    fault = {"code": error.code, "message": str(error)}
    answer = as_json({"error": fault}, status=error.status)
    if error.wait:
        answer.headers["Retry-After"] = str(error.wait)
    return answer


def _last(conversation: Conversation) -> float:
    return max((each.at for each in conversation.posts.values()), default=0.0)


def _configured(given: _Conversation, before: Conversation | None) -> Conversation:
    """Return a configured conversation; an earlier one keeps its messages."""
    people = tuple(
        Person(object_id=each.object_id, name=each.name) for each in given.people
    )
    posts = before.posts if before is not None else {}
    return Conversation(id=given.id, name=given.name, people=people, posts=posts)


# -- The Bot Connector API, as far as a bot that posts cards needs it ------------------
#
# Source:  learn.microsoft.com/azure/bot-service/rest-api/
#          bot-framework-rest-connector-api-reference,
#          learn.microsoft.com/microsoftteams/platform/bots/how-to/rate-limit


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
