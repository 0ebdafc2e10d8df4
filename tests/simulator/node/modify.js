"use strict";
// Properties that a settlement sets: on abandon, defer and dead-letter.

const { assert, main, receiveOne } = require("./common");

const SENT = { body: "x", applicationProperties: { kept: 1, changed: "old" } };

function check(message, changes) {
  assert.deepEqual(message.applicationProperties, {
    ...SENT.applicationProperties,
    ...changes,
  });
}

main(async (client) => {
  const sender = client.createSender("plain");
  const receiver = client.createReceiver("plain");

  await sender.sendMessages(SENT);
  await receiver.abandonMessage(await receiveOne(receiver), {
    changed: "by abandon",
    added: true,
  });
  let message = await receiveOne(receiver);
  check(message, { changed: "by abandon", added: true });

  await receiver.deferMessage(message, { changed: "by defer" });
  [message] = await receiver.receiveDeferredMessages(message.sequenceNumber);
  check(message, { changed: "by defer", added: true });

  // A deferred message is settled by a request, not on its link.
  await receiver.abandonMessage(message, { added: 7 });
  [message] = await receiver.receiveDeferredMessages(message.sequenceNumber);
  check(message, { changed: "by defer", added: 7 });

  await receiver.deadLetterMessage(message, {
    deadLetterReason: "why",
    deadLetterErrorDescription: "because",
    changed: "by dead letter",
  });
  const dead = client.createReceiver("plain", { subQueueType: "deadLetter" });
  message = await receiveOne(dead);
  assert.equal(message.deadLetterReason, "why");
  assert.equal(message.deadLetterErrorDescription, "because");
  assert.equal(message.applicationProperties.changed, "by dead letter");
  assert.equal(message.applicationProperties.added, 7);
  await dead.completeMessage(message);

  await sender.sendMessages(SENT);
  await receiver.deadLetterMessage(await receiveOne(receiver), {
    deadLetterReason: "again",
    added: "on the link",
  });
  message = await receiveOne(dead);
  assert.equal(message.deadLetterReason, "again");
  assert.equal(message.applicationProperties.added, "on the link");
});
