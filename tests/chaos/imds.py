"""The simulated IMDS, with a door of its own for each life of the forwarder.

What a killed process has sent may still lie in a socket when the next one lives: by
its own port each request is known to be the life's that sent it.
"""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from aiohttp import web
from aiohttp.typedefs import Handler

from bridge.simulator.http_server import MAX_BODY, listening
from bridge.simulator.imds.document import NEWEST
from bridge.simulator.imds.lifecycle import View
from bridge.simulator.imds.server import ImdsSimulator, MetadataApi
from bridge.simulator.imds.state import ImdsSettings
from tests.chaos.history import History, Request, Taken

_LIFE: ContextVar[int] = ContextVar("life")


class RecordedImds(ImdsSimulator):
    """An IMDS that writes down what it was asked, by whom, and what it answered."""

    def __init__(self, history: History, settings: ImdsSettings) -> None:
        super().__init__(settings)
        self._history = history

    @asynccontextmanager
    async def door(self, life: int) -> AsyncIterator[str]:
        """Listen for one life of the forwarder; yields the URL."""
        metadata = MetadataApi(self)

        @web.middleware
        async def answered(
            request: web.Request, handler: Handler
        ) -> web.StreamResponse:
            _LIFE.set(life)
            if request.method == "POST":
                self._note_post(life, await request.read())
            return await metadata.answered(request, handler)

        app = web.Application(middlewares=[answered], client_max_size=MAX_BODY)
        app.add_routes(metadata.routes())
        name = f"the IMDS of life {life}"
        async with listening(app, name=name, host="127.0.0.1", port=0) as url:
            yield url

    def read(self, version: str) -> View:
        view = super().read(version)
        document = json.loads(view.body)
        self._history.requests.append(
            Request(
                at=time.time(),
                life=_LIFE.get(),
                number=document["DocumentIncarnation"],
                events={
                    event["EventId"].upper(): event for event in document["Events"]
                },
            )
        )
        return view

    def submit(self, event_ids: tuple[str, ...], version: str = NEWEST) -> bool:
        is_taken = super().submit(event_ids, version)
        if is_taken:
            at = time.time()
            self._history.taken += [Taken(at, each.upper()) for each in event_ids]
        return is_taken

    def _note_post(self, life: int, body: bytes) -> None:
        wanted = json.loads(body)["StartRequests"]
        posted = tuple(each["EventId"] for each in wanted)
        request = Request(at=time.time(), life=life, posted=posted)
        self._history.requests.append(request)
