"use strict";
// Reads each line of a file of events with what quicktype makes of a schema, and prints
// what it writes again.
//
//   node read.js SCHEMA EVENTS FOLDER   FOLDER gets the generated module

const { spawnSync } = require("child_process");
const { readFileSync } = require("fs");
const path = require("path");

const [schema, events, folder] = process.argv.slice(2);
const made = path.join(folder, "event.js");
const program = require.resolve("quicktype");
const words = ["--src-lang", "schema", "--lang", "javascript", "--top-level", "Event"];
const run = spawnSync(process.execPath, [program, ...words, "--out", made, schema], {
  encoding: "utf8",
});
if (run.status !== 0) throw new Error(run.stderr);
const { toEvent, eventToJson } = require(made);
for (const line of readFileSync(events, "utf8").split("\n").filter(Boolean)) {
  console.log(JSON.stringify(JSON.parse(eventToJson(toEvent(line)))));
}
