"use strict";
// A topic gives each subscription what its filters admit.

const { assert, bodies, main, receive, receiveNothing, receiveOne } = require("./common");

main(async (client) => {
  const sender = client.createSender("news");
  const all = client.createReceiver("news", "all");
  const red = client.createReceiver("news", "red");

  await sender.sendMessages([
    { body: 1, subject: "alarm", applicationProperties: { colour: "red" } },
    { body: 2, subject: "alarm", applicationProperties: { colour: "blue" } },
    { body: 3, subject: "news", applicationProperties: { colour: "red" } },
    { body: 4 },
  ]);
  const found = await receive(all, 4);
  assert.deepEqual(bodies(found), [1, 2, 3, 4]);
  for (const message of found) await all.completeMessage(message);

  const alarm = await receiveOne(red);
  assert.equal(alarm.body, 1);
  await receiveNothing(red);
  await red.deadLetterMessage(alarm, { deadLetterReason: "enough" });
  const dead = client.createReceiver("news", "red", { subQueueType: "deadLetter" });
  assert.equal((await receiveOne(dead)).deadLetterReason, "enough");
});
