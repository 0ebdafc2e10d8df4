// Reads Adaptive Cards, […], from standard input; writes for each what Microsoft's own
// renderer finds wrong with it, and the text it would show.
"use strict";

globalThis.window = globalThis;
const cards = require("adaptivecards/dist/adaptivecards.js");

function read(json) {
  const context = new cards.SerializationContext(cards.Versions.v1_4);
  const card = new cards.AdaptiveCard();
  card.parse(json, context);
  const events = [...Array(context.eventCount).keys()].map((i) => context.getEventAt(i));
  const blocks = [...Array(card.getItemCount()).keys()].map((i) => card.getItemAt(i));
  const runs = (block) =>
    [...Array(block.getInlineCount()).keys()].map((i) => block.getInlineAt(i).text);
  return {
    faults: [...events, ...card.validateProperties().validationEvents].map((e) => e.message),
    lines: blocks.map((block) => runs(block).join("")),
  };
}

let text = "";
process.stdin.on("data", (chunk) => (text += chunk));
process.stdin.on("end", () => {
  process.stdout.write(JSON.stringify(JSON.parse(text).map(read)));
});
