// node search.js SITE QUERY...: the pages that the site's own search worker gives first, a line of JSON for each query
const fs = require("fs"), path = require("path"), vm = require("vm");
const [site, ...queries] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const file = fs.readdirSync(folder).find((name) => /^search.*\.js$/.test(name));
let onMessage;
const answers = [];
const self = { addEventListener: (_, listener) => { onMessage = listener; }, postMessage: (data) => answers.push(data) };
const sandbox = Object.assign(self, { self, console, performance, setTimeout, location: { href: "file:///" }, URL });
sandbox.addEventListener = self.addEventListener;
vm.runInNewContext(fs.readFileSync(path.join(folder, file), "utf8"), sandbox);
(async () => {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
  await onMessage({ data: { type: 0, data: { ...index, options: { suggest: false } } } });
  for (let i = 0; i < 100 && !answers.some((a) => a.type === 1); i++) await new Promise((r) => setTimeout(r, 50));
  for (const query of queries) {
    const before = answers.length;
    await onMessage({ data: { type: 2, data: query } });
    for (let i = 0; i < 100 && answers.length === before; i++) await new Promise((r) => setTimeout(r, 20));
    const items = answers[answers.length - 1].data.items;
    console.log(JSON.stringify(items.map((group) => group[0].location.split("#")[0])));
  }
})();
