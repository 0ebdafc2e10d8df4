"""Reads scheduled events from a Service Bus subscription.

Copy it, and change ``decide``.
It prints each event once, and approves short freezes. Needs: azure-servicebus, and
azure-identity where there is no connection string.

    SERVICEBUS            a connection string, such as that of ``sebridge simulate``
    SERVICEBUS_NAMESPACE  or the host name of the namespace: ``az login``, an identity
    TOPIC, SUBSCRIPTION   default: scheduled-events, consumer
"""

import json
import os
from collections import OrderedDict
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus import ServiceBusReceivedMessage as Received

Event = dict[str, Any]

REMEMBERED = 10_000  # ids; repeats come within minutes of each other


def connect() -> ServiceBusClient:
    """Return a client, by connection string or by identity."""
    if text := os.environ.get("SERVICEBUS"):
        return ServiceBusClient.from_connection_string(text)
    from azure.identity import DefaultAzureCredential

    host = os.environ["SERVICEBUS_NAMESPACE"]
    return ServiceBusClient(host, DefaultAzureCredential())


def decide(event: Event) -> bool:
    """Say whether to approve: here, a freeze that is known to be short."""
    if not event["type"].endswith(".scheduledevent.scheduled.v1"):
        return False
    imds = event["data"]["event"]
    return imds["EventType"] == "Freeze" and 0 <= imds["DurationInSeconds"] < 9


def approve(bus: ServiceBusClient, event: Event, message: Received) -> None:
    """Send the approval to where the event says: ``ReplyTo`` and its session."""
    approval = {
        "specversion": "1.0",
        "id": event["id"],
        "source": "urn:example:consumer",
        "type": "sebridge.startrequest.v1",
        "data": {
            "StartRequests": [{"EventId": event["subject"]}],
            "approvedEvent": event["data"]["event"],  # denied if it has grown since
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
            )
        )


def handle(bus: ServiceBusClient, event: Event, message: Received) -> None:
    """Do what is to be done about one event. It may be called twice: see README."""
    print(event["type"], event.get("subject"), flush=True)
    if event["data"].get("test"):
        return  # of ``sebridge send-test``
    if message.reply_to and decide(event):
        approve(bus, event, message)


def main() -> None:
    """Read until Ctrl-C. An error ends it: the message comes again after its lock."""
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
    main()
