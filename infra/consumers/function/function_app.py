"""An Azure Function that reads scheduled events from a Service Bus subscription.

Copy this folder and change ``announce``. App settings: TOPIC, SUBSCRIPTION, and
SERVICEBUS (a connection string) or SERVICEBUS__fullyQualifiedNamespace (an identity).
"""

import json
import logging

import azure.functions as func

app = func.FunctionApp()
log = logging.getLogger("scheduled-events")


@app.service_bus_topic_trigger(
    arg_name="message",
    topic_name="%TOPIC%",
    subscription_name="%SUBSCRIPTION%",
    connection="SERVICEBUS",
)
def announce(message: func.ServiceBusMessage) -> None:
    """Log an event. If this raises, the host delivers the message again.

    It may be called twice for one event: use ``id`` to make your work idempotent.
    """
    event = json.loads(message.get_body())
    if event["data"].get("test"):
        return  # a test event of ``sebridge send-test``
    imds = event["data"].get("event") or {}
    log.warning(
        "%s %s %s of %s, not before %s",
        event["type"],
        event.get("subject"),
        imds.get("EventType"),
        ", ".join(imds.get("Resources") or ()),
        imds.get("NotBefore") or "now",
    )
