"use strict";
// A row or a picture is shown where it is of what the reader chose.
const selects = [...document.querySelectorAll("select[data-choice]")];
const names = [...new Set(selects.map((select) => select.dataset.choice))];
function choose() {
  for (const element of names.length ? document.querySelectorAll(names.map((name) => `[data-${name}]`).join()) : []) {
    element.hidden = selects.some(({ dataset, value }) => ![undefined, value].includes(element.dataset[dataset.choice]));
  }
}
for (const select of selects) select.addEventListener("change", choose);
choose();

// The seed, or window, of the point that a reader points at stands out in every picture; a click keeps it.
const points = [...document.querySelectorAll("[data-run]")];
let kept, marked;
function mark(run = kept) {
  if (run === marked) return;
  marked = run;
  document.body.classList.toggle("apart", run !== undefined);
  for (const point of points) point.classList.toggle("marked", point.dataset.run === run);
}
const runOf = ({ target }) => target.closest("[data-run]")?.dataset.run;
document.addEventListener("mouseover", (event) => mark(runOf(event)));
document.addEventListener("click", (event) => {
  const run = runOf(event);
  if (run === undefined && !event.target.closest("svg")) return;
  kept = run === kept ? undefined : run;
  mark();
});

// An image of many tiles tells of the tile below the pointer.
const { pictures } = JSON.parse(document.getElementById("report-data").textContent);
const place = (edges, share) => edges.findLastIndex((edge) => edge <= edges[0] + share * (edges.at(-1) - edges[0]));
for (const tiles of document.querySelectorAll("[data-mark]")) {
  const { panel, mark: at, unit } = tiles.dataset;
  const { title, x, y, marks } = pictures[tiles.closest("figure").dataset.picture].panels[panel];
  tiles.addEventListener("mousemove", ({ clientX, clientY }) => {
    const box = tiles.getBoundingClientRect();
    const column = place(marks[at].x, (clientX - box.left) / box.width);
    const row = place(marks[at].y, 1 - (clientY - box.top) / box.height);
    const value = marks[at].values[row]?.[column];
    const where = `${x || "from"} ${marks[at].x[column].toPrecision(4)}, ${y || "row"} ${row}`;
    if (value !== undefined) tiles.querySelector("title").textContent = `${title}\n${where}\n${value?.toPrecision(3) ?? "–"} ${unit}`;
  });
}
