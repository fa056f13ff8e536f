// A field above the tables of generated reference pages: only rows that have all of its words stay. `?filter=WORDS` fills it.
document.addEventListener("DOMContentLoaded", () => {
  const page = location.pathname.split("/").pop();
  if (!["options.html", "policies.html", "settings.html", "metrics.html"].includes(page)) return;
  const article = document.querySelector("article");
  const field = document.createElement("input");
  field.type = "search";
  field.className = "filter";
  field.placeholder = field.ariaLabel = "filter the rows of all tables";
  article.querySelector("h1").after(field);
  const wereOpen = new Map([...article.querySelectorAll("details")].map((one) => [one, one.open]));
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const table of article.querySelectorAll("table")) {
      const fold = table.closest("details");
      const name = (fold?.querySelector("summary")?.textContent ?? "").toLowerCase();
      let found = 0;
      for (const row of table.querySelectorAll("tbody tr")) {
        const text = name + " " + row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        found += !row.hidden;
      }
      table.hidden = !found;
      if (fold) {
        fold.hidden = !found;
        fold.open = words.length ? found > 0 : wereOpen.get(fold);
      }
    }
  };
  field.addEventListener("input", filter);
  field.value = new URLSearchParams(location.search).get("filter") ?? "";
  filter();
});
