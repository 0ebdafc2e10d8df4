// Reads requests, [{headers, body}, …], from standard input; writes the events in them.
"use strict";

const { HTTP } = require("cloudevents");

let text = "";
process.stdin.on("data", (chunk) => (text += chunk));
process.stdin.on("end", () => {
  const events = JSON.parse(text).map((message) => HTTP.toEvent(message)).flat();
  process.stdout.write(JSON.stringify(events));
});
