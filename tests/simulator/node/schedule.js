"use strict";
// Scheduled messages come when it is time, and not once they are cancelled.

const { assert, bodies, main, receive, receiveNothing } = require("./common");

main(async (client) => {
  const sender = client.createSender("plain");
  const receiver = client.createReceiver("plain", {
    receiveMode: "receiveAndDelete",
  });
  const soon = new Date(Date.now() + 400);
  const later = new Date(Date.now() + 3_600_000);

  await sender.scheduleMessages([{ body: 1 }, { body: 2 }], soon);
  const numbers = await sender.scheduleMessages([{ body: 3 }, { body: 4 }], later);
  assert.equal(numbers.length, 2);
  const peeked = await receiver.peekMessages(5);
  assert.deepEqual(bodies(peeked), [1, 2, 3, 4]);
  for (const waiting of peeked.slice(2)) { // the others may be in the queue by now
    assert.equal(waiting.state, "scheduled");
    assert.deepEqual(waiting.scheduledEnqueueTimeUtc, later);
  }

  await sender.cancelScheduledMessages(numbers);
  const found = await receive(receiver, 2);
  assert.deepEqual(bodies(found), [1, 2]);
  assert.ok(Date.now() >= soon.getTime(), "not before its time");
  await receiveNothing(receiver);

  await sender.sendMessages({ body: 5, scheduledEnqueueTimeUtc: later });
  await receiveNothing(receiver);
  const [waiting] = await receiver.peekMessages(1);
  await sender.cancelScheduledMessages(waiting.sequenceNumber);
  assert.deepEqual(await receiver.peekMessages(1), []);
});
