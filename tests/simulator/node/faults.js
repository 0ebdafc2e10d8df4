"use strict";
// Bad days, asked for over HTTP: what the SDK's own retries survive, and what not.

const { assert, main, receiveOne, rejectsWithCode, sdk, until } = require("./common");

const FAULTS = `${process.argv[3]}/simulator/servicebus/faults`;

async function befall(fault, fields) {
  const body = JSON.stringify({ fault, ...fields });
  const reply = await fetch(FAULTS, { method: "POST", body });
  assert.equal(reply.status, 200, await reply.text());
}

main(async (client) => {
  const patient = new sdk.ServiceBusClient(process.argv[2], {
    retryOptions: { maxRetries: 3, retryDelayInMs: 50, timeoutInMs: 1000 },
  });
  const sender = patient.createSender("plain");
  const receiver = patient.createReceiver("plain");
  const seen = [];
  receiver.subscribe({
    async processMessage(message) {
      seen.push(message.body);
    },
    async processError() {},
  });
  await sender.sendMessages({ body: "before" });
  await until(() => seen.length === 1, "received");

  await befall("drop-connections");
  await sender.sendMessages({ body: "after a drop" });
  await befall("detach-links");
  await sender.sendMessages({ body: "after a detach" });
  await befall("server-busy", { sends: 2 });
  await sender.sendMessages({ body: "after two refusals" });
  await until(() => seen.length >= 4, "all received");
  assert.deepEqual(
    [...new Set(seen)],
    ["before", "after a drop", "after a detach", "after two refusals"],
  );
  await patient.close();

  await befall("server-busy");
  const impatient = client.createSender("sessions");
  const message = { body: 1, sessionId: "a" };
  await rejectsWithCode(impatient.sendMessages(message), "ServiceBusy");
  await befall("full", { entity: "sessions" });
  await rejectsWithCode(impatient.sendMessages(message), "QuotaExceeded");
  await fetch(FAULTS, { method: "DELETE" });
  await impatient.sendMessages(message);

  const session = await client.acceptSession("sessions", "a");
  const locked = await receiveOne(session);
  await befall("expire-locks", { entity: "sessions" });
  await rejectsWithCode(session.completeMessage(locked), "SessionLockLost");

  await befall("refuse-attach", {
    entity: "sessions",
    condition: "amqp:unauthorized-access",
  });
  // Of a session asked for by name, this SDK says SessionCannotBeLocked, whatever is
  // wrong; of the next one it says what the broker says.
  await rejectsWithCode(client.acceptNextSession("sessions"), "UnauthorizedAccess");
});
