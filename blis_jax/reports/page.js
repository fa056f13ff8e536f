"use strict";
// Fills the charts with the page's own data; nothing is loaded from elsewhere.
const content = JSON.parse(document.getElementById("report-data").textContent);
const report = { content, views: {}, ready: null };
window.report = report;

function rowsOf(table) {
  const names = Object.keys(table);
  const count = names.length ? table[names[0]].length : 0;
  return Array.from({ length: count }, (_, row) =>
    Object.fromEntries(names.map((name) => [name, table[name][row]])));
}

// Beside each strategy's values, those of its reference on the same seed or window.
function withReference(rows, differences) {
  const references = new Map(differences.map((d) => [[d.strategy, d.place].join("\n"), d.reference]));
  const key = (strategy, row) => [strategy, row.place, row.class, row.at].join("\n");
  const byKey = new Map(rows.map((row) => [key(row.strategy, row), row]));
  for (const row of rows) {
    row.seed = content.seeds[row.at];
    row.reference = references.get([row.strategy, row.place].join("\n")) ?? null;
    const other = byKey.get(key(row.reference, row));
    for (const metric of content.metrics) row["r_" + metric] = other ? other[metric] : null;
  }
  return rows;
}

const tables = Object.fromEntries(
  Object.entries(content.tables).map(([name, table]) => [name, rowsOf(table)]));
withReference(tables.values, tables.differences);
const shares = content.levels.map((level) => 100 * level);
for (const row of tables.curves) row.shares = shares;

function at(place, rows) {
  return rows.filter((row) => [undefined, "*", place].includes(row.place));
}

// Of the strategies, those that have a reference at this place.
function withChoices(spec, values) {
  const there = new Set(values.filter((row) => row.reference !== null).map((row) => row.strategy));
  const params = (spec.params ?? []).map((param) => {
    if (param.name !== "strategy") return param;
    const options = param.bind.options.filter((name) => there.has(name));
    return options.length ? { ...param, value: options[0], bind: { ...param.bind, options } } : param;
  });
  return spec.params ? { ...spec, params } : spec;
}

async function draw(place) {
  for (const controls of document.querySelectorAll(".controls")) controls.replaceChildren();
  for (const [name, spec] of Object.entries(content.charts)) {
    const datasets = Object.fromEntries(
      Object.entries(tables).map(([table, rows]) => [table, at(place, rows)]));
    const used = JSON.stringify(spec);
    for (const table of Object.keys(datasets)) {
      if (!used.includes(`{"name":"${table}"}`)) delete datasets[table];
    }
    if (name === "explore" && !datasets.values.some((row) => row.reference !== null)) {
      delete report.views[name];
      document.getElementById("chart-explore").textContent =
        `There are no differences on single ${content.runs} of this kind.`;
      continue;
    }
    const result = await vegaEmbed(`#chart-${name}`, { ...withChoices(spec, datasets.values ?? []), datasets }, {
      mode: "vega-lite",
      renderer: name === "timelines" ? "canvas" : "svg",
      actions: { export: true, source: false, compiled: false, editor: false },
      tooltip: { theme: "light" },
    });
    report.views[name] = result.view;
  }
  for (const row of document.querySelectorAll("tr[data-place]")) {
    row.hidden = row.dataset.place !== place;
  }
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? 0) + 1);
}

const choice = document.getElementById("place");
if (choice) choice.addEventListener("change", () => { report.ready = draw(choice.value); });
report.ready = draw(content.places[0]).catch((error) => {
  document.getElementById("failure").textContent = `A chart could not be drawn: ${error}`;
  console.error(error);
});
