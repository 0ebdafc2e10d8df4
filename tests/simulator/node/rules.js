"use strict";
// Rules of a subscription, over AMQP: added, listed, removed, and at work.

const { assert, bodies, main, receive, receiveNothing, receiveOne } = require("./common");

main(async (client) => {
  const manager = client.createRuleManager("news", "all");
  const sender = client.createSender("news");
  const receiver = client.createReceiver("news", "all");

  assert.deepEqual(await manager.getRules(), [
    { name: "$Default", filter: { sqlExpression: "1=1" }, action: {} },
  ]);

  await manager.deleteRule("$Default");
  assert.deepEqual(await manager.getRules(), []);
  await sender.sendMessages({ body: 1 });
  await receiveNothing(receiver);

  await manager.createRule("sql", { sqlExpression: "level > 3" }, { sqlExpression: "SET level = level + 1" });
  await manager.createRule("correlated", {
    subject: "alarm",
    correlationId: "c",
    messageId: "m",
    to: "t",
    replyTo: "r",
    replyToSessionId: "rs",
    sessionId: "s",
    contentType: "text/plain",
    applicationProperties: { colour: "red", size: 2, loud: true },
  });
  const rules = await manager.getRules();
  assert.deepEqual(rules, [
    {
      name: "sql",
      filter: { sqlExpression: "level > 3" },
      action: { sqlExpression: "SET level = level + 1" },
    },
    {
      name: "correlated",
      filter: {
        correlationId: "c",
        messageId: "m",
        to: "t",
        replyTo: "r",
        subject: "alarm",
        sessionId: "s",
        replyToSessionId: "rs",
        contentType: "text/plain",
        applicationProperties: { colour: "red", size: 2, loud: true },
      },
      action: {},
    },
  ]);

  await sender.sendMessages([
    { body: 2, applicationProperties: { level: 3 } },
    { body: 3, applicationProperties: { level: 4 } },
    {
      body: 4,
      subject: "alarm",
      correlationId: "c",
      messageId: "m",
      to: "t",
      replyTo: "r",
      replyToSessionId: "rs",
      sessionId: "s",
      contentType: "text/plain",
      applicationProperties: { colour: "red", size: 2, loud: true },
    },
  ]);
  const found = await receive(receiver, 2);
  assert.deepEqual(bodies(found), [3, 4]);
  assert.equal(found[0].applicationProperties.level, 5);
  assert.equal(found[0].applicationProperties.RuleName, "sql");
  for (const message of found) await receiver.completeMessage(message);

  // One page at a time.
  const pages = [];
  for await (const page of manager.listRules().byPage({ maxPageSize: 1 })) {
    pages.push(page.map((rule) => rule.name));
  }
  assert.deepEqual(pages.filter((page) => page.length > 0), [["sql"], ["correlated"]]);

  // What is refused, and why.
  await assert.rejects(manager.createRule("SQL", { sqlExpression: "1=1" }), /exists/);
  await assert.rejects(manager.createRule("bad", { sqlExpression: "level >" }), /at character 8/);
  await assert.rejects(
    manager.createRule("bad", { sqlExpression: "1=1" }, { sqlExpression: "DROP level" }),
    /at character 1/,
  );
  await assert.rejects(manager.deleteRule("none"), /'none' could not be found/);
  assert.equal((await manager.getRules()).length, 2);

  // Whatever was removed and added again is at work at once.
  await manager.deleteRule("sql");
  await manager.deleteRule("correlated");
  await manager.createRule("all", { sqlExpression: "1=1" });
  await sender.sendMessages({ body: 5 });
  assert.equal((await receiveOne(receiver)).body, 5);
});
