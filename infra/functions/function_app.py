"""An Azure Functions app beside the bridge: it hears events and sends approvals.

Four functions, whose work is done by ``approver.desk``:

    hear_event   Service Bus, topic     keeps what was announced, and its outcome
    approve      HTTP, function key     an approval from a person or a tool
    slack_click  HTTP, Slack signature  keeps a click, and answers at once
    count_click  Service Bus, queue     counts it, decides, approves, tells Slack

Settings: README.md beside this file.
"""

import functools
import json
import os

import azure.functions as func

from approver.desk import Desk
from approver.settings import Settings

_CONNECTION = "SERVICEBUS"

# A host shows at its start what is wrong, and hands nothing over. Found with the first
# announcement, a faulty setting would make it a dead letter.
if "FUNCTIONS_WORKER_RUNTIME" in os.environ:
    Settings.from_environment(os.environ)

app = func.FunctionApp()


@functools.cache
def desk() -> Desk:
    """Return the one of this process, with its connections."""
    return Desk(Settings.from_environment(os.environ))


@app.service_bus_topic_trigger(
    arg_name="message",
    topic_name="%EVENTS_TOPIC%",
    subscription_name="%EVENTS_SUBSCRIPTION%",
    connection=_CONNECTION,
    is_sessions_enabled=os.environ.get("EVENTS_SESSIONS") == "true",
)
async def hear_event(message: func.ServiceBusMessage) -> None:
    """Take in a CloudEvent of the bridge."""
    await desk().hear(message.get_body(), message.reply_to, message.reply_to_session_id)


@app.route(route="approvals", methods=["POST"], auth_level=func.AuthLevel.FUNCTION)
async def approve(req: func.HttpRequest) -> func.HttpResponse:
    """Put an approval on the approval queue."""
    status, body = await desk().approve(req.get_body())
    text = json.dumps(body)
    return func.HttpResponse(text, status_code=status, mimetype="application/json")


@app.route(route="slack", methods=["POST"], auth_level=func.AuthLevel.ANONYMOUS)
async def slack_click(req: func.HttpRequest) -> func.HttpResponse:
    """Answer Slack at once; its signature is the authority, it can send no key."""
    status = await desk().accept_click(req.get_body(), req.headers)
    return func.HttpResponse(status_code=status)


@app.service_bus_queue_trigger(
    arg_name="message", queue_name="%CLICKS_QUEUE%", connection=_CONNECTION
)
async def count_click(message: func.ServiceBusMessage) -> None:
    """Count a click that was kept."""
    await desk().count(message.get_body())
