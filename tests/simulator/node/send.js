"use strict";
// All that a message carries arrives as it was sent: alone, as a list, concurrently.

const { Buffer } = require("node:buffer");
const { assert, bodies, main, receive, receiveOne } = require("./common");

const FULL = {
  body: { colour: "red", level: 3 },
  messageId: "m-1",
  contentType: "application/json",
  correlationId: "c-1",
  subject: "alarm",
  to: "somebody",
  replyTo: "replies",
  replyToSessionId: "r-1",
  timeToLive: 60_000,
  applicationProperties: {
    text: "x",
    number: 2.5,
    whole: 7,
    yes: true,
    none: null,
  },
};

main(async (client) => {
  const sender = client.createSender("plain");
  const receiver = client.createReceiver("plain", {
    receiveMode: "receiveAndDelete",
  });

  await sender.sendMessages(FULL);
  const one = await receiveOne(receiver);
  for (const name of Object.keys(FULL)) {
    assert.deepEqual(one[name], FULL[name], name);
  }
  assert.equal(one.deliveryCount, 0);
  assert.equal(one.state, "active");
  assert.ok(one.enqueuedTimeUtc <= new Date());
  assert.equal(one.expiresAtUtc - one.enqueuedTimeUtc, FULL.timeToLive);
  assert.equal(one.sequenceNumber.toString(), "1");

  await sender.sendMessages({ body: "no id" });
  assert.ok((await receiveOne(receiver)).messageId, "an id is assigned");

  for (const body of [Buffer.from([0, 255, 7]), "text", 5, true, null, [1, "a"]]) {
    await sender.sendMessages({ body });
    assert.deepEqual((await receiveOne(receiver)).body, body);
  }

  for (const [bodyType, body] of [
    ["value", { a: 1 }],
    ["sequence", [[1, 2], ["x"]]],
  ]) {
    await sender.sendMessages({ body, bodyType });
    const received = await receiveOne(receiver);
    assert.equal(received._rawAmqpMessage.bodyType, bodyType);
    assert.deepEqual(received.body, body);
  }

  const numbers = Array.from({ length: 100 }, (_, index) => index);
  await sender.sendMessages(numbers.map((body) => ({ body })));
  assert.deepEqual(bodies(await receive(receiver, 100)), numbers);

  await Promise.all(numbers.map((body) => sender.sendMessages({ body })));
  const found = bodies(await receive(receiver, 100));
  assert.deepEqual(found.sort((a, b) => a - b), numbers);
});
