"use strict";
// Sessions: one holder each, in order, with a state; the next one that has messages.

const {
  assert,
  bodies,
  main,
  receive,
  receiveOne,
  rejectsWithCode,
  sleep,
  until,
} = require("./common");

main(async (client) => {
  const queue = "sessions";
  const sender = client.createSender(queue);
  const send = (sessionId, ...found) =>
    sender.sendMessages(found.map((body) => ({ body, sessionId })));

  await send("a", 1, 2);
  await send("b", 3);
  await send("a", 4);
  const first = await client.acceptSession(queue, "a");
  assert.equal(first.sessionId, "a");
  assert.ok(first.sessionLockedUntilUtc > new Date());
  await rejectsWithCode(client.acceptSession(queue, "a"), "SessionCannotBeLocked");

  const messages = await receive(first, 3);
  assert.deepEqual(bodies(messages), [1, 2, 4]);
  await first.completeMessage(messages[0]);
  await first.deferMessage(messages[1]);
  const [deferred] = await first.receiveDeferredMessages(messages[1].sequenceNumber);
  await first.completeMessage(deferred);
  assert.deepEqual(bodies(await first.peekMessages(5)), [4]);

  assert.equal(await first.getSessionState(), null);
  await first.setSessionState({ step: 1 });
  assert.deepEqual(await first.getSessionState(), { step: 1 });
  assert.ok((await first.renewSessionLock()) > new Date());
  await first.close();

  // The next session is the one whose first message has waited longest.
  const next = await client.acceptNextSession(queue);
  assert.equal(next.sessionId, "b");
  await next.completeMessage(await receiveOne(next));
  const other = await client.acceptNextSession(queue);
  assert.equal(other.sessionId, "a");
  assert.deepEqual(await other.getSessionState(), { step: 1 });
  await other.setSessionState(null);
  await other.completeMessage(await receiveOne(other));
  await next.close();
  await other.close();

  const waiting = client.acceptNextSession(queue);
  await sleep(100);
  await send("c", 5);
  const late = await waiting;
  assert.equal(late.sessionId, "c");
  const handled = [];
  const subscription = late.subscribe({
    async processMessage(message) {
      handled.push(message.body);
    },
    async processError({ error }) {
      throw error;
    },
  });
  await send("c", 6, 7);
  await until(() => handled.length === 3, "a session's messages handled");
  assert.deepEqual(handled, [5, 6, 7]);
  await subscription.close();
  await late.close();

  await rejectsWithCode(sender.sendMessages({ body: "none" }), "GeneralError");
});
