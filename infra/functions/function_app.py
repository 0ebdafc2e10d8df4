"""An Azure Functions app for the bridge: it records events and sends approvals.

It has five functions; ``approver.handlers`` does their work:

    hear_event   Service Bus, topic     records events, and outcomes of approvals
    approve      HTTP, function key     an approval from a person or a tool
    slack_click  HTTP, Slack signature  stores a click, and answers at once
    count_click  Service Bus, queue     counts the click, decides, approves, answers
    hear_teams   HTTP, token of Teams   counts a click in Teams, or refreshes a card

Settings: README.md beside this file.
"""

import functools
import json
import os
from collections.abc import Callable

import azure.functions as func

from approver.handlers import Handlers
from approver.settings import Settings

_CONNECTION = "SERVICEBUS"

# Checked at the start of the host: otherwise a faulty setting would be found with the
# first event, and make it a dead letter.
if "FUNCTIONS_WORKER_RUNTIME" in os.environ:
    Settings.from_environment(os.environ)


def build(handlers: Callable[[], Handlers]) -> func.FunctionApp:
    """Return the app.

    Args:
        handlers: returns those that do the work; called with each trigger.
    """
    app = func.FunctionApp()

    @app.service_bus_topic_trigger(
        arg_name="message",
        topic_name="%EVENTS_TOPIC%",
        subscription_name="%EVENTS_SUBSCRIPTION%",
        connection=_CONNECTION,
        is_sessions_enabled=os.environ.get("EVENTS_SESSIONS") == "true",
    )
    async def hear_event(message: func.ServiceBusMessage) -> None:
        """Record a CloudEvent of the bridge."""
        await handlers().record(
            message.get_body(), message.reply_to, message.reply_to_session_id
        )

    @app.route(route="approvals", methods=["POST"], auth_level=func.AuthLevel.FUNCTION)
    async def approve(req: func.HttpRequest) -> func.HttpResponse:
        """Put an approval on the approval queue."""
        status, body = await handlers().approve(req.get_body())
        text = json.dumps(body)
        return func.HttpResponse(text, status_code=status, mimetype="application/json")

    @app.route(route="slack", methods=["POST"], auth_level=func.AuthLevel.ANONYMOUS)
    async def slack_click(req: func.HttpRequest) -> func.HttpResponse:
        """Answer Slack at once. It sends no key: its signature authenticates it."""
        status = await handlers().accept_click(req.get_body(), req.headers)
        return func.HttpResponse(status_code=status)

    @app.service_bus_queue_trigger(
        arg_name="message", queue_name="%CLICKS_QUEUE%", connection=_CONNECTION
    )
    async def count_click(message: func.ServiceBusMessage) -> None:
        """Count a stored click."""
        await handlers().count(message.get_body())

    @app.route(route="messages", methods=["POST"], auth_level=func.AuthLevel.ANONYMOUS)
    async def hear_teams(req: func.HttpRequest) -> func.HttpResponse:
        """Answer Teams at once. It cannot send a key: its token authenticates it."""
        status, body = await handlers().hear_teams(req.get_body(), req.headers)
        text = None if body is None else json.dumps(body)
        return func.HttpResponse(text, status_code=status, mimetype="application/json")

    return app


@functools.cache
def handlers() -> Handlers:
    """Return the only one of this process, with its connections."""
    return Handlers(Settings.from_environment(os.environ))


app = build(handlers)
