"use strict";
// Dead letters: by the receiver, by too many failures; read from the sub-queue.

const { assert, main, receiveNothing, receiveOne } = require("./common");

main(async (client) => {
  const sender = client.createSender("strict");
  const receiver = client.createReceiver("strict");
  const dead = client.createReceiver("strict", { subQueueType: "deadLetter" });

  await sender.sendMessages({ body: "bad", applicationProperties: { kept: 1 } });
  await receiver.deadLetterMessage(await receiveOne(receiver), {
    deadLetterReason: "unreadable",
    deadLetterErrorDescription: "no JSON",
  });
  const told = await receiveOne(dead);
  assert.equal(told.body, "bad");
  assert.equal(told.deadLetterReason, "unreadable");
  assert.equal(told.deadLetterErrorDescription, "no JSON");
  assert.equal(told.applicationProperties.kept, 1);
  await dead.completeMessage(told);

  await sender.sendMessages({ body: "twice" });
  await receiver.abandonMessage(await receiveOne(receiver));
  await receiver.abandonMessage(await receiveOne(receiver));
  await receiveNothing(receiver);
  const failed = await receiveOne(dead);
  assert.equal(failed.deadLetterReason, "MaxDeliveryCountExceeded");
  await dead.completeMessage(failed);
  await receiveNothing(dead);
});
