"""The Functions app of infra/functions without its host: HTTP and the subscription.

The host does four things that matter here: it checks the function key, hands messages
of the subscription to ``hear_event``, completes them, and hands over POSTs.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiohttp import web
from azure.servicebus.aio import ServiceBusClient

from approver.handlers import Handlers
from approver.settings import Settings

KEY: Final = "a key of the stand-in"
_SETTINGS: Final = {
    "EVENTS_TOPIC": "scheduled-events",
    "EVENTS_SUBSCRIPTION": "approver",
    "APPROVAL_ENTITIES": "vm-approvals-sessions",
}


@asynccontextmanager
async def app(connection_string: str) -> AsyncIterator[str]:
    """Run the app against a local broker; yields its address."""
    settings = Settings.from_environment({**_SETTINGS, "SERVICEBUS": connection_string})
    async with AsyncExitStack() as stack:
        handlers = await stack.enter_async_context(Handlers(settings))
        hearing = asyncio.create_task(_hear(connection_string, handlers))
        stack.push_async_callback(_end, hearing)
        runner = web.AppRunner(_application(handlers))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"


def _application(handlers: Handlers) -> web.Application:
    async def approve(request: web.Request) -> web.Response:
        if request.headers.get("x-functions-key") != KEY:
            return web.Response(status=401)
        status, body = await handlers.approve(await request.read())
        return web.json_response(body, status=status)

    application = web.Application()
    application.router.add_post("/api/approvals", approve)
    return application


async def _hear(connection_string: str, handlers: Handlers) -> None:
    topic = _SETTINGS["EVENTS_TOPIC"], _SETTINGS["EVENTS_SUBSCRIPTION"]
    client = ServiceBusClient.from_connection_string(connection_string)
    async with client, client.get_subscription_receiver(*topic) as receiver:
        async for message in receiver:
            body = b"".join(message.body)
            await handlers.record(body, message.reply_to, message.reply_to_session_id)
            await receiver.complete_message(message)


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
