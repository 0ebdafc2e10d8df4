// Reads Adaptive Cards with actions, […], from standard input; writes for each what
// Microsoft's own renderer finds wrong with it, and the actions that it would show.
"use strict";

globalThis.window = globalThis;
const cards = require("adaptivecards/dist/adaptivecards.js");

function read(json) {
  const context = new cards.SerializationContext(cards.Versions.v1_5);
  const card = new cards.AdaptiveCard();
  card.parse(json, context);
  const events = [...Array(context.eventCount).keys()].map((i) => context.getEventAt(i));
  const actions = [...Array(card.getActionCount()).keys()].map((i) => card.getActionAt(i));
  const types = (owner) =>
    [...Array(owner.getActionCount()).keys()].map((i) => owner.getActionAt(i).getJsonTypeName());
  return {
    faults: [...events, ...card.validateProperties().validationEvents].map((e) => e.message),
    actions: actions.map((action) => action.getJsonTypeName()),
    inner: actions.filter((action) => action.card).map((action) => types(action.card)),
    refresh: card.refresh && card.refresh.action ? card.refresh.action.verb : null,
  };
}

let text = "";
process.stdin.on("data", (chunk) => (text += chunk));
process.stdin.on("end", () => {
  process.stdout.write(JSON.stringify(JSON.parse(text).map(read)));
});
