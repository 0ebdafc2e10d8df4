"use strict";
// What the scenarios share: node SCENARIO.js CONNECTION_STRING CONTROL_URL. A
// failed assertion is told on stderr and ends in exit code 1.

const assert = require("node:assert/strict");
const { setTimeout: sleep } = require("node:timers/promises");
const sdk = require("@azure/service-bus");

const SECONDS = 1000;
const NO_RETRIES = { maxRetries: 0, timeoutInMs: 5 * SECONDS };

async function play(scenario) {
  const client = new sdk.ServiceBusClient(process.argv[2], {
    retryOptions: NO_RETRIES,
    // Node's own, which is behind a flag before version 22.
    webSocketOptions: process.env.OVER_WEBSOCKET && { webSocket: WebSocket },
  });
  try {
    await scenario(client);
  } finally {
    await client.close();
  }
}

// Receives exactly `count` messages, in order.
async function receive(receiver, count) {
  const messages = [];
  while (messages.length < count) {
    const more = await receiver.receiveMessages(count - messages.length, {
      maxWaitTimeInMs: 2 * SECONDS,
    });
    assert.notEqual(more.length, 0, `only ${messages.length} of ${count} came`);
    messages.push(...more);
  }
  return messages;
}

async function receiveOne(receiver) {
  return (await receive(receiver, 1))[0];
}

async function receiveNothing(receiver) {
  const found = await receiver.receiveMessages(1, { maxWaitTimeInMs: 200 });
  assert.deepEqual(bodies(found), []);
}

async function rejectsWithCode(promise, code) {
  await assert.rejects(promise, (error) => {
    assert.equal(error.code, code, String(error));
    return true;
  });
}

// Polls, for what happens in a handler of its own.
async function until(condition, what) {
  for (let waited = 0; waited < 5 * SECONDS; waited += 10) {
    if (condition()) return;
    await sleep(10);
  }
  assert.fail(`never happened: ${what}`);
}

function bodies(messages) {
  return messages.map((message) => message.body);
}

function main(scenario) {
  play(scenario).catch((error) => {
    console.error(error);
    process.exitCode = 1;
  });
}

module.exports = {
  assert,
  bodies,
  main,
  receive,
  receiveNothing,
  receiveOne,
  rejectsWithCode,
  sdk,
  sleep,
  until,
};
