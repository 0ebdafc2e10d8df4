"use strict";
// ServiceBusAdministrationClient: node administration.js CONNECTION_STRING, over HTTPS.

const assert = require("node:assert/strict");
const { ServiceBusAdministrationClient } = require("@azure/service-bus");

async function collect(pages) {
  const found = [];
  for await (const each of pages) found.push(each);
  return found;
}

async function refused(promise, code, told) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.code, code, String(error));
    assert.match(error.message, told);
    return true;
  });
}

async function queues(client) {
  const made = await client.createQueue("orders", {
    lockDuration: "PT13S",
    maxDeliveryCount: 7,
    requiresSession: true,
    userMetadata: "a <note> & more",
    defaultMessageTimeToLive: "PT1H",
    forwardDeadLetteredMessagesTo: "plain",
  });
  assert.equal(made.name, "orders");
  assert.equal(made.lockDuration, "PT13S");
  assert.equal(made.autoDeleteOnIdle, "P10675199DT2H48M5.4775807S");
  assert.match(made.forwardDeadLetteredMessagesTo, /\/plain$/);

  const found = await client.getQueue("orders");
  const { _response: one, ...told } = made;
  const { _response: other, ...again } = found;
  assert.deepEqual(again, told);

  found.maxDeliveryCount = 3;
  assert.equal((await client.updateQueue(found)).maxDeliveryCount, 3);
  assert.equal((await client.getQueue("orders")).maxDeliveryCount, 3);
  const runtime = await client.getQueueRuntimeProperties("orders");
  assert.equal(runtime.totalMessageCount, 0);
  assert.equal(runtime.deadLetterMessageCount, 0);
  assert.ok(runtime.createdAt <= runtime.modifiedAt);

  const names = (await collect(client.listQueues())).map((queue) => queue.name);
  assert.ok(names.includes("orders"));
  const pages = [];
  for await (const page of client.listQueues().byPage({ maxPageSize: 3 })) {
    pages.push(...page.map((queue) => queue.name));
  }
  assert.deepEqual(pages, names);
  assert.equal((await collect(client.listQueuesRuntimeProperties())).length, names.length);

  await refused(
    client.createQueue("orders"), "MessageEntityAlreadyExistsError", /'orders' exists/,
  );
  await refused(
    client.createQueue("bad", { maxDeliveryCount: 0 }), "ServiceError", /from 1 to 2000/,
  );
  await client.deleteQueue("orders");
  assert.equal(await client.queueExists("orders"), false);
  await refused(client.getQueue("orders"), "MessageEntityNotFoundError", /orders/);
  await refused(client.deleteQueue("orders"), "MessageEntityNotFoundError", /orders/);
}

async function topics(client) {
  const topic = await client.createTopic("t", { requiresDuplicateDetection: true });
  assert.equal(topic.requiresDuplicateDetection, true);
  topic.userMetadata = "note";
  assert.equal((await client.updateTopic(topic)).userMetadata, "note");
  const subscription = await client.createSubscription("t", "s", {
    maxDeliveryCount: 4,
    defaultRuleOptions: { name: "first", filter: { sqlExpression: "a = 1" } },
  });
  assert.equal(subscription.topicName, "t");
  assert.equal(subscription.subscriptionName, "s");
  subscription.maxDeliveryCount = 5;
  assert.equal((await client.updateSubscription(subscription)).maxDeliveryCount, 5);
  assert.equal((await client.getTopicRuntimeProperties("t")).subscriptionCount, 1);
  assert.equal((await client.getSubscriptionRuntimeProperties("t", "s")).totalMessageCount, 0);
  const names = (await collect(client.listTopics())).map((each) => each.name);
  assert.deepEqual(names, ["news", "t"]);
  const inner = await collect(client.listSubscriptions("t"));
  assert.deepEqual(inner.map((each) => each.subscriptionName), ["s"]);
  await client.createSubscription("t", "plain");
  const first = await collect(client.listRules("t", "plain"));
  assert.deepEqual(first.map((each) => each.name), ["$Default"]);
}

async function rules(client) {
  const when = new Date("2026-01-02T03:04:05.000Z");
  const values = { "@text": "it's <x>", "@number": 2.5, "@flag": true, "@when": when };
  const sql = { sqlExpression: "a = @text OR b < @when", sqlParameters: values };
  const action = { sqlExpression: "SET a = @number", sqlParameters: values };
  const made = await client.createRule("t", "s", "sql", sql, action);
  assert.deepEqual([made.name, made.filter, made.action], ["sql", sql, action]);

  const own = { colour: "red", size: 2, loud: true, at: when };
  const correlated = { correlationId: "c", subject: "l", applicationProperties: own };
  await client.createRule("t", "s", "correlated", correlated);
  const { filter } = await client.getRule("t", "s", "correlated");
  for (const [name, value] of Object.entries(correlated)) {
    assert.deepEqual(filter[name], value);
  }

  const rule = await client.getRule("t", "s", "sql");
  rule.filter = { sqlExpression: "1=1" };
  await client.updateRule("t", "s", rule);
  const found = await collect(client.listRules("t", "s"));
  assert.deepEqual(found.map((each) => each.name), ["first", "sql", "correlated"]);
  assert.equal(found[1].filter.sqlExpression, "1=1");
  await refused(
    client.createRule("t", "s", "bad", { sqlExpression: "a =" }), "ServiceError",
    /SubCode=40000.*at character 4/,
  );
  await client.deleteRule("t", "s", "sql");
  assert.equal(await client.ruleExists("t", "s", "sql"), false);
  assert.equal(await client.ruleExists("t", "s", "first"), true);
  await client.deleteSubscription("t", "s");
  assert.equal(await client.subscriptionExists("t", "s"), false);
  await client.deleteTopic("t");
  assert.equal(await client.topicExists("t"), false);
}

async function main() {
  const client = new ServiceBusAdministrationClient(process.argv[2], {
    retryOptions: { maxRetries: 0 },
  });
  const namespace = await client.getNamespaceProperties();
  assert.equal(namespace.name, "sbemulatorns");
  assert.equal(namespace.messagingSku, "Standard");
  await queues(client);
  await topics(client);
  await rules(client);
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
