"use strict";
// Peeking takes nothing: locked, deferred and dead messages are seen as well.

const { assert, bodies, main, receiveOne } = require("./common");

main(async (client) => {
  const receiver = client.createReceiver("plain");
  assert.deepEqual(await receiver.peekMessages(1), []);

  await client.createSender("plain").sendMessages([1, 2, 3, 4].map((body) => ({ body })));
  const locked = await receiveOne(receiver);
  assert.deepEqual(bodies(await receiver.peekMessages(2)), [1, 2]);
  assert.deepEqual(bodies(await receiver.peekMessages(9)), [3, 4]);
  const from = await receiver.peekMessages(9, {
    fromSequenceNumber: locked.sequenceNumber,
  });
  assert.deepEqual(bodies(from), [1, 2, 3, 4]);
  assert.equal(from[0].lockToken, undefined);

  await receiver.deferMessage(locked);
  const again = await receiver.peekMessages(1, {
    fromSequenceNumber: locked.sequenceNumber,
  });
  assert.equal(again[0].state, "deferred");

  await receiver.deadLetterMessage(await receiveOne(receiver));
  const dead = client.createReceiver("plain", { subQueueType: "deadLetter" });
  assert.deepEqual(bodies(await dead.peekMessages(9)), [2]);
});
