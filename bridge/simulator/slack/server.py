"""A local Slack: the Web API under /slack/api/, as the inbox serves it.

    POST /slack/api/chat.postMessage    Authorization: Bearer xoxb-…
    GET  /slack                         the workspace as people would see it
    PUT  /slack/workspace               sets channels, tokens, limits and the app
    POST /slack/click                   a user clicks on a button
    POST /slack/actions/NAME            a response_url

Source:  docs.slack.dev/apis/web-api
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final
from urllib.parse import parse_qsl

import msgspec
import orjson
from aiohttp import web
from msgspec.structs import replace

from bridge.simulator.clock import Clock
from bridge.simulator.foreign import Input, parse
from bridge.simulator.http_server import as_json
from bridge.simulator.slack.clicks import ACTIONS, Click, Clicks, Interactivity
from bridge.simulator.slack.methods import Call, Members, Methods, warning
from bridge.simulator.slack.methods import parse as arguments_of
from bridge.simulator.slack.page import page
from bridge.simulator.slack.refusals import Rate, RateError, RefusedError
from bridge.simulator.slack.workspace import (
    Bot,
    Channel,
    Content,
    Post,
    Workspace,
    bot_of,
)

API: Final = "/slack/api/"
PAGE: Final = "/slack"
_WEBHOOK: Final = bot_of("", "incoming-webhook")
_WORDS: Final = re.compile(r"[a-z0-9_-]+")
_NO_JSON: Final = {"conversations.info"}  # a method that takes no JSON ignores it
_FORM: Final = "application/x-www-form-urlencoded"


class _Channel(Input, frozen=True, kw_only=True):
    id: Annotated[str, msgspec.Meta(pattern="^[CGD][A-Z0-9]{7,20}$")]
    name: str
    refusal: str | None = None


class _Token(Input, frozen=True, kw_only=True):
    token: str
    name: str = "sebridge"
    refusal: str | None = None
    scopes: list[str] | None = None


class _Workspace(Input, frozen=True, kw_only=True):
    channels: list[_Channel] | None = None
    tokens: list[_Token] | None = None
    interactivity: Interactivity | None = None
    rate_limit: bool | None = None
    posts_per_second: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    post_burst: Annotated[int, msgspec.Meta(ge=1)] = 3


class SlackServer:
    """Answers the requests that Slack's servers would answer.

    Args:
        clock: the source of time.

    Attributes:
        workspace: the channels, their messages, and the bots that may post.
        methods: the methods of the Web API; ``methods.posts`` is the rate limit.
        clicks: sends clicks to an app.
    """

    def __init__(self, clock: Clock) -> None:
        self.workspace = Workspace()
        self.methods = Methods(self.workspace)
        self.clicks = Clicks(self.workspace, clock)
        self._clock = clock

    def configure(self, body: bytes) -> None:
        """Apply PUT /slack/workspace; settings that it does not name stay unchanged.

        Raises:
            BadInputError: the body is invalid.
        """
        given = parse(body, _Workspace)
        if given.channels is not None:
            self.workspace.is_open = False
            self._set_channels(given.channels)
        if given.tokens is not None:
            self.workspace.bots = {each.token: _bot(each) for each in given.tokens}
        if given.interactivity is not None:
            self.clicks.app = given.interactivity
        if given.rate_limit is not None:
            rate = Rate(given.posts_per_second, given.post_burst)
            self.methods.posts = rate if given.rate_limit else None

    def answer(self, request: web.Request, body: bytes) -> web.Response:
        """Run the called method; return the answer, with the scopes of the token.

        Raises:
            RefusedError: the call is refused.
            RateError: the call is above a rate limit.
        """
        bot, members = self._call(request, body)
        found = as_json({"ok": True, **members})
        found.headers["X-OAuth-Scopes"] = ",".join(sorted(bot.granted))
        return found

    def _call(self, request: web.Request, body: bytes) -> tuple[Bot, Members]:
        """Return the bot that called a method, and the members of the answer.

        Raises:
            RefusedError: the call is refused.
            RateError: the call is above a rate limit.
        """
        content_type = request.headers.get("Content-Type")
        arguments = {**request.query, **arguments_of(body, content_type)}
        method = request.path.removeprefix(API)
        if method in _NO_JSON and request.content_type == "application/json":
            arguments = dict(request.query)
        call = Call(
            method=method,
            bot=self.workspace.bot(_token(request, arguments)),
            arguments=arguments,
            now=self._clock.now(),
        )
        members = self.methods.run(call)
        if remark := warning(body, content_type):
            remarks = {"warning": remark, "response_metadata": {"warnings": [remark]}}
            members = {**remarks, **members}
        return call.bot, members

    def take(self, path: str, message: object) -> None:
        """Store a valid message to an incoming webhook, so that the page shows it.

        Args:
            path: the path of the webhook; its last part names the channel.
            message: the body as JSON.
        """
        if not isinstance(message, Mapping):
            return
        name = "-".join(_WORDS.findall(path.rpartition("/")[2].lower()))
        channel = self.workspace.get_or_create(name or "webhooks")
        ts = self.workspace.new_ts(self._clock.now())
        thread_ts = message.get("thread_ts")
        post = Post(
            ts=ts,
            bot=_WEBHOOK,
            content=Content.of(message, ts),
            thread_ts=thread_ts if isinstance(thread_ts, str) else None,
        )
        channel.keep(post)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of the page and of the control requests."""
        return [
            web.get(PAGE, self._page, allow_head=False),
            web.get(f"{PAGE}/", self._page, allow_head=False),
            web.put("/slack/workspace", self._put),
            web.post("/slack/click", self._click),
            web.delete("/slack/messages", self._clear),
        ]

    async def respond(self, path: str, message: object) -> web.Response:
        """Answer a POST of an app to a response_url."""
        try:
            self.clicks.respond(path.removeprefix(ACTIONS), message)
        except RefusedError as error:
            status = 404 if error.code in {"expired_url", "used_url"} else 400
            return web.Response(status=status, text=error.code)
        return web.Response(text="ok")

    async def _page(self, request: web.Request) -> web.Response:
        wanted = request.query.get("channel")
        html, policy = page(self.workspace, wanted, self._clock.now())
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}
        return web.Response(text=html, content_type="text/html", headers=headers)

    async def _put(self, request: web.Request) -> web.Response:
        self.configure(await request.read())
        return web.Response(status=204)

    async def _clear(self, _request: web.Request) -> web.Response:
        for channel in self.workspace.channels.values():
            channel.posts.clear()
        return web.Response(status=204)

    async def _click(self, request: web.Request) -> web.Response:
        """Send a click. A form of the page gets a redirect to it, JSON the result."""
        if request.content_type != _FORM:
            click = parse(await request.read(), Click)
            return as_json(await self.clicks.click(click))
        form = orjson.dumps(dict(parse_qsl(await request.text())))
        result = await self.clicks.click(parse(form, Click))
        if not result["acknowledged"]:
            return web.Response(
                status=502, text=f"The app answered {result['status']}."
            )
        location = {"Location": f"{PAGE}?channel={result['channel']}"}
        return web.Response(status=303, headers=location)

    def _set_channels(self, given: Sequence[_Channel]) -> None:
        """Set the channels; a channel that existed before keeps its messages."""
        before = dict(self.workspace.channels)
        self.workspace.channels.clear()
        for each in given:
            known = before.get(each.id)
            self.workspace.channels[each.id] = Channel(
                id=each.id,
                name=each.name,
                refusal=each.refusal,
                posts=known.posts if known else {},
            )


def refused(error: RefusedError | RateError) -> web.Response:
    """Return the answer to a refused call. As in Slack: 200, or 429 above a limit."""
    if isinstance(error, RateError):
        answer = as_json({"ok": False, "error": "ratelimited"}, status=429)
        answer.headers["Retry-After"] = str(error.seconds)
        return answer
    members: dict[str, object] = {"ok": False, "error": error.code, **error.members}
    if error.details:
        members["response_metadata"] = {"messages": list(error.details)}
        members["errors"] = [each.removeprefix("[ERROR] ") for each in error.details]
    return as_json(members)


def _bot(given: _Token) -> Bot:
    scopes = None if given.scopes is None else frozenset(given.scopes)
    own = bot_of(given.token, given.name)
    return replace(own, refusal=given.refusal, scopes=scopes)


def _token(request: web.Request, arguments: Mapping[str, object]) -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    own = arguments.get("token")
    is_form = request.content_type == "application/x-www-form-urlencoded"
    return own if is_form and isinstance(own, str) else None
