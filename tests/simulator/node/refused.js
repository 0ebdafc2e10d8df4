"use strict";
// What is refused has the code that the SDK's users look for.

const { main, rejectsWithCode, sdk } = require("./common");

main(async (client) => {
  await rejectsWithCode(
    client.createSender("nowhere").sendMessages({ body: 1 }),
    "MessagingEntityNotFound",
  );
  await rejectsWithCode(
    client.createReceiver("nowhere").receiveMessages(1, { maxWaitTimeInMs: 500 }),
    "MessagingEntityNotFound",
  );
  await rejectsWithCode(
    client.createReceiver("news", "none").peekMessages(1),
    "MessagingEntityNotFound",
  );
  await rejectsWithCode(
    client.createSender("small").sendMessages({ body: "x".repeat(500) }),
    "QuotaExceeded",
  );

  const hasty = new sdk.ServiceBusClient(process.argv[2], {
    retryOptions: { maxRetries: 0, timeoutInMs: 300 },
  });
  await rejectsWithCode(hasty.acceptNextSession("sessions"), "ServiceTimeout");
  await hasty.close();
});
