"""Reads scheduled events from a Service Bus subscription.

Copy this file and change ``decide``. It prints each event once and approves short
freezes. It needs azure-servicebus, and azure-identity if there is no connection string.

    SERVICEBUS            a connection string, such as that of ``sebridge simulate``
    SERVICEBUS_NAMESPACE  or the host name of the namespace: ``az login``, an identity
    TOPIC, SUBSCRIPTION   default: scheduled-events, consumer
    REPLIES               a queue: prints the replies to approvals
    REPLY_SESSION         the session of the replies, if that queue has sessions
    SIGN_KEY              a file with a private key (PEM): signs the approvals, for
                          bridges with approvals.signed_by; needs cryptography
"""

import base64
import hashlib
import json
import os
import threading
from collections import OrderedDict
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
    if key := os.environ.get("SIGN_KEY"):
        approval["data"]["audience"] = event["source"]
        approval["data"]["expiresAt"] = expiry(event["data"]["notBefore"])
        approval["dssematerial"] = sign(approval, key)
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


def expiry(not_before: str | None) -> str:
    """Return how long an approval is valid: until NotBefore, but 1 min to 24 h."""
    now, day = datetime.now(UTC), timedelta(hours=24)
    end = datetime.fromisoformat(not_before) if not_before else now + day
    return min(max(end, now + timedelta(minutes=1)), now + day).isoformat()


def sign(event: Event, path: str) -> str:
    """Return ``dssematerial`` of a CloudEvent without extension attributes.

    Verifiable CloudEvents with DSSE. The data is signed as the text that ``json.dumps``
    makes of it, so the whole event must be written by ``json.dumps``, too.
    """
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, utils

    key = serialization.load_pem_private_key(Path(path).read_bytes(), password=None)
    names = "id source specversion type datacontenttype dataschema subject time"
    values = [event.get(name, "") for name in names.split()]
    parts = [*values, json.dumps(event["data"])]
    digests = b"".join(hashlib.sha256(part.encode()).digest() for part in parts)
    core = base64.b64encode(hashlib.sha256(digests).digest()).decode()
    payload = json.dumps({"core": core}).encode()
    kind = "https://cloudevents.io/verifiability/dsse/v0.1"
    head = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode()
    r, s = utils.decode_dss_signature(
        key.sign(head + payload, ec.ECDSA(hashes.SHA256()))
    )
    signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    one = {"keyid": thumbprint(key), "sig": base64.b64encode(signature).decode()}
    envelope = {
        "payloadType": kind,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [one],
    }
    return base64.b64encode(json.dumps(envelope).encode()).decode()


def thumbprint(key: Any) -> str:
    """Return the name of a key: RFC 7638, a hash of its public JWK."""
    numbers = key.public_key().public_numbers()
    x, y = (base64url(n.to_bytes(32, "big")) for n in (numbers.x, numbers.y))
    jwk = f'{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}'
    return base64url(hashlib.sha256(jwk.encode()).digest())


def base64url(value: bytes) -> str:
    """Return base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


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
    with (
        connect() as bus,
        bus.get_queue_receiver(queue, session_id=session) as receiver,
    ):
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
