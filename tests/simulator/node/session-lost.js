"use strict";
// A session whose lock expires is lost to its holder, and free for another.

const { assert, main, receiveOne, rejectsWithCode, sleep } = require("./common");

main(async (client) => {
  const queue = "quick-sessions";
  await client.createSender(queue).sendMessages({ body: "x", sessionId: "a" });
  const holder = await client.acceptSession(queue, "a", {
    maxAutoLockRenewalDurationInMs: 0,
  });
  const message = await receiveOne(holder);
  await sleep(1200);
  await rejectsWithCode(holder.completeMessage(message), "SessionLockLost");

  const heir = await client.acceptSession(queue, "a");
  const again = await receiveOne(heir);
  assert.equal(again.deliveryCount, 1);
  await heir.completeMessage(again);
});
