// Reads {"tables": {name: "(Column:type, ...)"}, "queries": {name: text}} from standard
// input and writes {name: {"faults": [...], "columns": {...}}} for every query.
"use strict";

require("@kusto/language-service-next/bridge.min.js");
require("@kusto/language-service-next/Kusto.Language.Bridge.min.js");

const { GlobalState, KustoCode, Symbols } = Kusto.Language;

function listed(items) {
  const found = [];
  const each = Bridge.getEnumerator(items);
  while (each.moveNext()) found.push(each.Current);
  return found;
}

function workspace(tables) {
  const symbols = Object.entries(tables).map(([name, columns]) =>
    Symbols.TableSymbol.From(columns).WithName(name),
  );
  const database = new Symbols.DatabaseSymbol.ctor(
    "workspace",
    System.Array.init(symbols, Symbols.Symbol),
  );
  const cluster = new Symbols.ClusterSymbol.ctor(
    "sentinel",
    System.Array.init([database], Symbols.DatabaseSymbol),
  );
  return GlobalState.Default.WithCluster(cluster).WithDatabase(database);
}

const input = JSON.parse(require("fs").readFileSync(0, "utf8"));
const globals = workspace(input.tables);
const found = {};
for (const [name, text] of Object.entries(input.queries)) {
  const code = KustoCode.ParseAndAnalyze(text, globals);
  const faults = listed(code.GetDiagnostics()).filter((d) => d.Severity === "Error");
  const columns = code.ResultType ? listed(code.ResultType.Columns) : [];
  found[name] = {
    faults: faults.map((d) => d.Message),
    columns: Object.fromEntries(columns.map((c) => [c.Name, c.Type.Name])),
  };
}
process.stdout.write(JSON.stringify(found));
