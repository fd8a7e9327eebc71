// Checks what the first screen loads: the scripts that dist/console/index.html names, and all they import at once.

import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { dirname, join, normalize } from "node:path";

const root = new URL("../dist/console/", import.meta.url).pathname;
const budget = 250 * 1024;

const html = readFileSync(join(root, "index.html"), "utf8");
const todo = [...html.matchAll(/(?:src|href)="\/(assets\/[^"]+\.js)"/g)].map((m) => m[1]);
const seen = new Map();
while (todo.length > 0) {
  const name = todo.pop();
  if (seen.has(name)) continue;
  const code = readFileSync(join(root, name), "utf8");
  seen.set(name, gzipSync(code, { level: 6 }).length);
  for (const m of code.matchAll(/(?:^|[;}])(?:import|export)(?:[^"'();]*?from)?["'](\.{1,2}\/[^"']+\.js)["']/g)) {
    todo.push(normalize(join(dirname(name), m[1])));
  }
}
let total = 0;
for (const [name, size] of seen) {
  total += size;
  console.log(`${String(size).padStart(8)}  ${name}`);
}
console.log(`${String(total).padStart(8)}  first load, compressed (budget ${budget})`);
if (seen.size === 0 || total > budget) {
  console.error(seen.size === 0 ? "index.html names no script" : "The first load is over its budget.");
  process.exit(1);
}
if (/<script(?![^>]*\bsrc=)/.test(html) || /\son[a-z]+=/.test(html)) {
  console.error("index.html has an inline script, which the server's policy refuses.");
  process.exit(1);
}
