"use strict";
// Peek-lock: complete, abandon, defer, renew, dead-letter.

const {
  assert,
  main,
  receiveNothing,
  receiveOne,
  rejectsWithCode,
  sleep,
} = require("./common");

main(async (client) => {
  const sender = client.createSender("plain");
  const receiver = client.createReceiver("plain");

  await sender.sendMessages({ body: "complete" });
  const completed = await receiveOne(receiver);
  assert.ok(completed.lockToken);
  assert.ok(completed.lockedUntilUtc > new Date());
  const renewed = await receiver.renewMessageLock(completed);
  assert.ok(renewed > new Date(Date.now() + 50_000));
  await receiver.completeMessage(completed);
  await receiveNothing(receiver);

  await sender.sendMessages({ body: "abandon" });
  for (const failures of [0, 1, 2]) {
    const message = await receiveOne(receiver);
    assert.equal(message.deliveryCount, failures);
    if (failures < 2) await receiver.abandonMessage(message);
    else await receiver.completeMessage(message);
  }

  await sender.sendMessages({ body: "defer" });
  const deferred = await receiveOne(receiver);
  await receiver.deferMessage(deferred);
  await receiveNothing(receiver);
  const [again] = await receiver.receiveDeferredMessages(deferred.sequenceNumber);
  assert.equal(again.body, "defer");
  assert.equal(again.state, "deferred");
  await receiver.completeMessage(again);
  await rejectsWithCode(
    receiver.receiveDeferredMessages(deferred.sequenceNumber),
    "MessageNotFound",
  );

  const quick = client.createReceiver("quick", { maxAutoLockRenewalDurationInMs: 0 });
  await client.createSender("quick").sendMessages({ body: "late" });
  const late = await receiveOne(quick);
  await sleep(2300);
  await rejectsWithCode(quick.completeMessage(late), "MessageLockLost");
  const returned = await receiveOne(quick);
  assert.equal(returned.deliveryCount, 1);
  await quick.completeMessage(returned);
});
