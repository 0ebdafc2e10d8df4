"use strict";
// Handlers: settled by themselves, concurrent, given back when they throw.

const { assert, main, until } = require("./common");

main(async (client) => {
  const sender = client.createSender("plain");
  const receiver = client.createReceiver("plain");
  const seen = [];
  const errors = [];
  let running = 0;
  let most = 0;

  const subscription = receiver.subscribe(
    {
      async processMessage(message) {
        running += 1;
        most = Math.max(most, running);
        await new Promise((resolve) => setTimeout(resolve, 20));
        running -= 1;
        seen.push(message.body);
        if (message.body === "fails" && message.deliveryCount === 0) {
          throw new Error("on purpose");
        }
      },
      async processError({ error, errorSource }) {
        errors.push([errorSource, error.message]);
      },
    },
    { maxConcurrentCalls: 4 },
  );
  const sent = Array.from({ length: 20 }, (_, index) => `m${index}`);
  await sender.sendMessages([...sent, "fails"].map((body) => ({ body })));
  await until(() => seen.length === 22, "all handled, one of them twice");
  await subscription.close();

  assert.deepEqual(seen.sort(), [...sent, "fails", "fails"].sort());
  assert.ok(most > 1 && most <= 4, `${most} at once`);
  assert.deepEqual(errors, [["processMessageCallback", "on purpose"]]);

  await sender.sendMessages({ body: "iterated" });
  for await (const message of receiver.getMessageIterator()) {
    assert.equal(message.body, "iterated");
    await receiver.completeMessage(message);
    break;
  }
});
