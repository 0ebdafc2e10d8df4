"use strict";
// A batch takes what the broker lets it, and is stored as single messages.

const { assert, main, receive, rejectsWithCode } = require("./common");

main(async (client) => {
  const sender = client.createSender("plain");
  const receiver = client.createReceiver("plain", {
    receiveMode: "receiveAndDelete",
  });

  const batch = await sender.createMessageBatch();
  assert.equal(batch.maxSizeInBytes, 256 * 1024);
  let count = 0;
  while (batch.tryAddMessage({ body: "x".repeat(50_000), messageId: `b-${count}` })) {
    count += 1;
  }
  assert.equal(batch.count, count);
  await sender.sendMessages(batch);
  const found = await receive(receiver, count);
  assert.deepEqual(
    found.map((message) => message.messageId),
    Array.from({ length: count }, (_, index) => `b-${index}`),
  );

  const one = await sender.createMessageBatch();
  assert.ok(one.tryAddMessage({ body: "alone" }));
  await sender.sendMessages(one);
  assert.equal((await receive(receiver, 1))[0].body, "alone");

  await rejectsWithCode(
    sender.sendMessages({ body: "x".repeat(2 * 1024 * 1024) }),
    "MessageSizeExceeded",
  );
});
