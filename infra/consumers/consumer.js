"use strict";
// Reads scheduled events from a Service Bus subscription. Copy it, and change `decide`.
//
// It prints each event once, and approves short freezes. Needs: @azure/service-bus, and
// @azure/identity where there is no connection string.
//
//   SERVICEBUS            a connection string, such as that of `sebridge simulate`
//   SERVICEBUS_NAMESPACE  or the host name of the namespace, with `az login` or an identity
//   TOPIC, SUBSCRIPTION   default: scheduled-events, consumer
//   REPLIES               a queue: prints the replies to approvals
//   REPLY_SESSION         the session of the replies, if that queue has sessions
//   SIGN_KEY              a file with a private key (PEM): signs the approvals, for bridges
//                         with approvals.signed_by

const crypto = require("node:crypto");
const fs = require("node:fs");
const { ServiceBusClient } = require("@azure/service-bus");

const REMEMBERED = 10_000; // ids; repeats come within minutes of each other
const { SERVICEBUS, SERVICEBUS_NAMESPACE, SIGN_KEY } = process.env;
const { TOPIC = "scheduled-events", SUBSCRIPTION = "consumer" } = process.env;
const { REPLIES, REPLY_SESSION } = process.env;

function connect() {
  if (SERVICEBUS) return new ServiceBusClient(SERVICEBUS);
  const { DefaultAzureCredential } = require("@azure/identity");
  return new ServiceBusClient(SERVICEBUS_NAMESPACE, new DefaultAzureCredential());
}

// Whether to approve: here, a freeze that is known to be short.
function decide(event) {
  if (!event.type.endsWith(".scheduledevent.scheduled.v1")) return false;
  const { EventType, DurationInSeconds } = event.data.event;
  return EventType === "Freeze" && DurationInSeconds >= 0 && DurationInSeconds < 9;
}

// Sends the approval to where the event says: ReplyTo and its session.
async function approve(client, event, message) {
  const sender = client.createSender(message.replyTo);
  const approval = {
    specversion: "1.0",
    id: event.id,
    source: "urn:example:consumer",
    type: "sebridge.startrequest.v1",
    data: {
      StartRequests: [{ EventId: event.subject }],
      approvedEvent: event.data.event, // denied if it has grown since
      reason: "a short freeze",
    },
  };
  if (SIGN_KEY) {
    approval.data.audience = event.source;
    approval.data.expiresAt = expiry(event.data.notBefore);
    approval.dssematerial = sign(approval, fs.readFileSync(SIGN_KEY));
  }
  await sender.sendMessages({
    body: approval,
    contentType: "application/cloudevents+json",
    messageId: `consumer-${event.id}`,
    sessionId: message.replyToSessionId,
    replyTo: REPLIES,
    replyToSessionId: REPLY_SESSION,
  });
  await sender.close();
}

// How long an approval is valid: until NotBefore, but 1 minute to 24 hours.
function expiry(notBefore) {
  const [now, minute, day] = [Date.now(), 60_000, 86_400_000];
  const end = notBefore ? Date.parse(notBefore) : now + day;
  return new Date(Math.min(Math.max(end, now + minute), now + day)).toISOString();
}

const sha256 = (value) => crypto.createHash("sha256").update(value).digest();
const base64 = (value) => Buffer.from(value).toString("base64");

// `dssematerial` of a CloudEvent without extension attributes: Verifiable CloudEvents with
// DSSE. The data is signed as the text that JSON.stringify makes of it; the SDK writes the
// whole event in the same way.
function sign(event, pem) {
  const key = crypto.createPrivateKey(pem);
  const names = "id source specversion type datacontenttype dataschema subject time";
  const values = names.split(" ").map((name) => event[name] ?? "");
  const parts = [...values, JSON.stringify(event.data)];
  const core = sha256(Buffer.concat(parts.map(sha256)));
  const payload = JSON.stringify({ core: base64(core) });
  const payloadType = "https://cloudevents.io/verifiability/dsse/v0.1";
  const message = `DSSEv1 ${payloadType.length} ${payloadType} ${payload.length} ${payload}`;
  const sig = crypto.sign("sha256", Buffer.from(message), { key, dsaEncoding: "ieee-p1363" });
  const signatures = [{ keyid: thumbprint(key), sig: base64(sig) }];
  return base64(JSON.stringify({ payloadType, payload: base64(payload), signatures }));
}

// The name of a key: RFC 7638, a hash of its public JWK.
function thumbprint(key) {
  const { crv, kty, x, y } = crypto.createPublicKey(key).export({ format: "jwk" });
  return sha256(JSON.stringify({ crv, kty, x, y })).toString("base64url");
}

// It may be called twice for one event: see README.
async function handle(client, event, message) {
  console.log(event.type, event.subject);
  if (event.data.test) return; // of `sebridge send-test`
  if (message.replyTo && decide(event)) await approve(client, event, message);
}

// Prints what became of each approval: correlationId is its messageId.
async function printReplies(client) {
  const receiver = REPLY_SESSION
    ? await client.acceptSession(REPLIES, REPLY_SESSION)
    : client.createReceiver(REPLIES);
  for await (const message of receiver.getMessageIterator()) {
    for (const { outcome, eventId } of message.body.outcomes) // no CloudEvent
      console.log(`reply:${outcome}`, eventId, message.correlationId);
    await receiver.completeMessage(message);
  }
}

async function readEvents(client) {
  const receiver = client.createReceiver(TOPIC, SUBSCRIPTION);
  const seen = new Set();
  for await (const message of receiver.getMessageIterator()) {
    const event = message.body;
    const key = `${event.source} ${event.id}`;
    if (!seen.has(key)) await handle(client, event, message);
    seen.add(key);
    if (seen.size > REMEMBERED) seen.delete(seen.values().next().value);
    // One at a time, and awaited: rhea, which speaks AMQP for this library, merges a
    // complete and an abandon of one tick into one answer, and both end the same way.
    await receiver.completeMessage(message);
  }
}

async function main() {
  // A connection for each: rhea must not merge answers of both.
  await Promise.all([readEvents(connect()), REPLIES && printReplies(connect())]);
}

// An error ends it: the message comes again after its lock.
main().catch((error) => {
  console.error(error);
  process.exit(1);
});
