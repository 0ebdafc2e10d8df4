"""Reads scheduled events from a Service Bus subscription.

Copy this file and change ``decide``. It prints each event once and approves short
freezes. It needs azure-servicebus, and azure-identity if there is no connection string.

    SERVICEBUS            a connection string, such as that of ``sebridge simulate``
    SERVICEBUS_NAMESPACE  or the host name of the namespace: ``az login``, an identity
    TOPIC, SUBSCRIPTION   default: scheduled-events, consumer
    REPLIES               a queue: prints the replies to approvals
    REPLY_SESSION         the session of the replies, if that queue has sessions
"""

import json
import os
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus import ServiceBusReceivedMessage as Received

Event = dict[str, Any]

REMEMBERED = 10_000  # ids; duplicates arrive within minutes of each other


def connect() -> ServiceBusClient:
    """Return a client, by connection string or by identity."""
    if text := os.environ.get("SERVICEBUS"):
        return ServiceBusClient.from_connection_string(text)
    from azure.identity import DefaultAzureCredential

    host = os.environ["SERVICEBUS_NAMESPACE"]
    return ServiceBusClient(host, DefaultAzureCredential())


def decide(event: Event) -> bool:
    """Decide whether to approve: here, only a freeze that is known to be short."""
    if not event["type"].endswith(".scheduledevent.scheduled.v1"):
        return False
    imds = event["data"]["event"]
    return imds["EventType"] == "Freeze" and 0 <= imds["DurationInSeconds"] < 9


def approve(bus: ServiceBusClient, event: Event, message: Received) -> None:
    """Send the approval to the entity in the event's ``ReplyTo``."""
    approval = {
        "specversion": "1.0",
        "id": event["id"],
        "source": "urn:example:consumer",
        "type": "sebridge.startrequest.v1",
        "data": {
            "StartRequests": [{"EventId": event["subject"]}],
            # denied if the event has got worse
            "approvedEvent": event["data"]["event"],
            "reason": "a short freeze",
        },
    }
    with bus.get_queue_sender(message.reply_to) as sender:
        sender.send_messages(
            ServiceBusMessage(
                json.dumps(approval),
                content_type="application/cloudevents+json",
                message_id=f"consumer-{event['id']}",
                session_id=message.reply_to_session_id,
                reply_to=os.environ.get("REPLIES"),
                reply_to_session_id=os.environ.get("REPLY_SESSION"),
            )
        )


def handle(bus: ServiceBusClient, event: Event, message: Received) -> None:
    """Handle one event. It may be called twice for the same event: see README."""
    print(event["type"], event.get("subject"), flush=True)
    if event["data"].get("test"):
        return  # a test event of ``sebridge send-test``
    if message.reply_to and decide(event):
        approve(bus, event, message)


def print_replies(queue: str) -> None:
    """Print what became of each approval: CorrelationId is its MessageId."""
    session = os.environ.get("REPLY_SESSION")
    with connect() as bus, bus.get_queue_receiver(queue, session_id=session) as receiver:
        for message in receiver:
            reply = json.loads(b"".join(message.body))  # no CloudEvent
            for outcome in reply["outcomes"]:
                said = f"reply:{outcome['outcome']}", outcome["eventId"]
                print(*said, message.correlation_id, flush=True)
            receiver.complete_message(message)


def main() -> None:
    """Read until Ctrl-C. After an error, the message is delivered again."""
    if queue := os.environ.get("REPLIES"):
        threading.Thread(target=print_replies, args=[queue], daemon=True).start()
    topic = os.environ.get("TOPIC", "scheduled-events")
    subscription = os.environ.get("SUBSCRIPTION", "consumer")
    seen: OrderedDict[tuple[str, str], None] = OrderedDict()
    with (
        connect() as bus,
        bus.get_subscription_receiver(topic, subscription) as receiver,
    ):
        for message in receiver:
            event = json.loads(b"".join(message.body))
            key = event["source"], event["id"]
            if key not in seen:
                handle(bus, event, message)
                seen[key] = None
            if len(seen) > REMEMBERED:
                seen.popitem(last=False)
            receiver.complete_message(message)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # Ctrl-C
        main()
