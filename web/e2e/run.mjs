// Drives a running server through everything that the console shows, with a real browser, and leaves screenshots in e2e/out.
//
//   node e2e/run.mjs --url http://127.0.0.1:8088 [--chromium /usr/bin/chromium] [--only files,terminal] [--mock]
//   node e2e/run.mjs --url http://127.0.0.1:8188 --serve "bin/astrabox serve --state-dir /tmp/s --listen 127.0.0.1:8188"
//
// --serve starts the server itself, so that it can also be killed and started again: the recovery part.
// --mock adds what only the stand-in server can bring about at will: a lost sandbox, a start that fails.

import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { conversation, lifecycle } from "./conversation.mjs";
import { files } from "./files.mjs";
import { terminal } from "./terminal.mjs";
import { looks } from "./looks.mjs";
import { provoked } from "./provoked.mjs";
import { recovery } from "./recovery.mjs";
import { Server } from "./server.mjs";

const { values: args } = parseArgs({
  options: {
    url: { type: "string", default: "http://127.0.0.1:8088" },
    chromium: { type: "string", default: process.env.CHROMIUM ?? "/usr/bin/chromium" },
    out: { type: "string", default: new URL("./out", import.meta.url).pathname },
    only: { type: "string" },
    mock: { type: "boolean", default: false },
    serve: { type: "string" },
  },
});

const profile = mkdtempSync(join(tmpdir(), "astrabox-e2e-"));
mkdirSync(args.out, { recursive: true });
const browser = await chromium.launch({
  executablePath: args.chromium,
  headless: true,
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", `--crash-dumps-dir=${profile}`],
});

const server = args.serve ? new Server(args.serve, args.url, join(args.out, "server.log")) : undefined;
await server?.start();

let passed = 0;
const failures = [];
const complaints = [];

/** One thing that must hold. A failure is reported and leaves a picture. */
async function step(name, work, page) {
  const from = Date.now();
  try {
    await work();
    passed++;
    console.log(`ok    ${name} (${Date.now() - from} ms)`);
  } catch (e) {
    failures.push(name);
    console.log(`FAIL  ${name}\n      ${String(e.stack ?? e).split("\n").slice(0, 12).join("\n      ")}`);
    await page?.screenshot({ path: join(args.out, `FAILED-${name.replace(/\W+/g, "-")}.png`) }).catch(() => {});
  }
}

async function open({ width = 1280, height = 800, dark = false, phone = false, path = "/" } = {}) {
  const context = await browser.newContext({
    viewport: { width, height }, colorScheme: dark ? "dark" : "light", deviceScaleFactor: phone ? 2 : 1, hasTouch: phone, isMobile: phone, reducedMotion: "reduce", acceptDownloads: true,
  });
  context.setDefaultTimeout(15_000);
  const page = await context.newPage();
  page.on("pageerror", (e) => complaints.push(`page error: ${e.message}`));
  page.on("console", (m) => {
    // A refused request is shown to the person by the page; the browser's own line about it is no fault.
    if (m.type() === "error" && !/Failed to load resource|ERR_INTERNET_DISCONNECTED|WebSocket connection/.test(m.text())) complaints.push(`console: ${m.text()}`);
  });
  await page.goto(args.url + path);
  return page;
}

const api = async (method, path, body, headers = {}) => {
  const res = await fetch(`${args.url}/api/v1${path}`, {
    method, headers: { ...(body !== undefined && typeof body !== "string" ? { "Content-Type": "application/json" } : {}), ...headers },
    body: body === undefined || typeof body === "string" ? body : JSON.stringify(body),
  });
  const text = await res.text();
  if (!res.ok) throw new Error(`${method} ${path}: ${res.status} ${text}`);
  return text === "" ? undefined : JSON.parse(text);
};

const shot = (page, name) => page.screenshot({ path: join(args.out, `${name}.png`), animations: "disabled" });
const t = { mock: args.mock, server, step, open, api, shot, url: args.url, out: args.out };
const parts = { conversation, files, terminal, lifecycle, ...(args.mock ? { provoked } : {}), looks, ...(server ? { recovery } : {}) };
const wanted = args.only?.split(",") ?? Object.keys(parts);
for (const [name, part] of Object.entries(parts)) {
  if (!wanted.includes(name)) continue;
  console.log(`# ${name}`);
  await step(`${name} runs to its end`, () => part(t));
}
await step("the page has no complaints: no errors, nothing refused by the content policy", () => {
  if (complaints.length > 0) throw new Error([...new Set(complaints)].join("\n"));
});
await browser.close();
await server?.stop();
rmSync(profile, { recursive: true, force: true });
console.log(`${passed} passed, ${failures.length} failed`);
process.exit(failures.length === 0 ? 0 : 1);
