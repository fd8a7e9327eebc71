// A stand-in for AstraBox's server, for developing the console: the same routes, backed by a temporary directory and a shell
// of this machine instead of a sandbox. It runs what is typed, so it listens on loopback only.
//
//   node dev/mock/server.mjs [--port 8099] [--console dist/console]
//
// What is hard to bring about by hand has a route: POST /__mock/{pause,lose,fail-start,drop}?id=CONVERSATION.

import { createServer } from "node:http";
import { parseArgs } from "node:util";
import { WebSocketServer } from "ws";
import { readFile, stat } from "node:fs/promises";
import { join, extname, resolve } from "node:path";
import { Store } from "./store.mjs";
import { files } from "./files.mjs";
import { Terminals } from "./terminals.mjs";

const { values: args } = parseArgs({ options: { port: { type: "string", default: "8099" }, console: { type: "string" } } });
const store = new Store();
const terminals = new Terminals(store);

class Refusal extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}
const refuse = (status, code, message) => {
  throw new Refusal(status, code, message);
};

const body = async (req) => {
  const chunks = [];
  for await (const c of req) chunks.push(c);
  return Buffer.concat(chunks);
};
const send = (res, status, value) => {
  res.writeHead(status, { "Content-Type": "application/json" }).end(value === undefined ? "" : JSON.stringify(value));
};

async function route(req, res, url) {
  const [, , , kind, id, what, tid] = url.pathname.split("/").map(decodeURIComponent);
  const read = async () => JSON.parse((await body(req)).toString() || "{}");
  if (kind === "agents") return send(res, 200, { items: [{ id: "agent_1", name: "shell", environment: "local" }] });
  if (kind === "environments") return send(res, 200, { items: [{ id: "env_1", name: "local", program: "shell" }] });
  if (kind === "doctor") return send(res, 200, { items: store.findings });
  if (kind !== "conversations") refuse(404, "ROUTE_NOT_FOUND", "There is nothing at this address.");
  if (!id) {
    if (req.method === "POST") return send(res, 201, store.show(store.create(await read(), req.headers["idempotency-key"])));
    return send(res, 200, { items: store.list(), next_cursor: null });
  }
  const c = store.conversations.get(id) ?? refuse(404, "CONVERSATION_NOT_FOUND", "There is no such conversation.");
  switch (what) {
    case undefined:
      if (req.method === "PATCH") c.title = (await read()).title;
      if (req.method === "DELETE") await store.remove(c);
      return send(res, 200, store.show(c));
    case "messages":
      return send(res, 202, store.message(c, await read()));
    case "interrupt":
      store.interrupt(c);
      return send(res, 202, {});
    case "events":
      if (tid === "stream") return stream(req, res, c, url);
      return send(res, 200, { items: c.events.filter((e) => e.seq > Number(url.searchParams.get("after") ?? 0)), last_seq: c.events.length });
    case "files":
      await store.awake(c);
      return files(req, res, { dir: c.dir, what: tid, url, body, send, refuse });
    case "terminals":
      if (req.method === "POST") {
        await store.awake(c);
        return send(res, 201, terminals.create(c, await read()));
      }
      if (req.method === "DELETE") {
        terminals.remove(c, tid);
        return send(res, 204);
      }
      return send(res, 200, { items: terminals.list(c) });
  }
  refuse(404, "ROUTE_NOT_FOUND", "There is nothing at this address.");
}

function stream(req, res, c, url) {
  let after = Number(req.headers["last-event-id"] ?? url.searchParams.get("after") ?? 0);
  res.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
  const flush = () => {
    for (; after < c.events.length; after++) res.write(`id: ${after + 1}\ndata: ${JSON.stringify(c.events[after])}\n\n`);
  };
  flush();
  const drop = () => res.destroy();
  const beat = setInterval(() => res.write(": beat\n\n"), 15_000);
  c.watch.on("event", flush).on("drop", drop);
  res.on("close", () => {
    clearInterval(beat);
    c.watch.off("event", flush).off("drop", drop);
  });
}

const types = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2" };
const policy = (host) =>
  "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src 'self' blob: data:; " +
  `connect-src 'self' ws://${host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`;

async function page(req, res, url) {
  const root = resolve(args.console);
  let file = join(root, url.pathname);
  const found = file.startsWith(root) && (await stat(file).then((s) => s.isFile(), () => false));
  if (!found && url.pathname.startsWith("/assets/")) return res.writeHead(404).end();
  if (!found) file = join(root, "index.html");
  res.writeHead(200, { "Content-Type": types[extname(file)] ?? "application/octet-stream", "Content-Security-Policy": policy(req.headers.host) });
  res.end(await readFile(file));
}

const server = createServer(async (req, res) => {
  const url = new URL(req.url, "http://mock");
  try {
    if (url.pathname.startsWith("/__mock/")) {
      const c = store.conversations.get(url.searchParams.get("id"));
      const step = url.pathname.slice("/__mock/".length);
      if (step === "drop") {
        c.watch.emit("drop");
        terminals.drop(c);
      } else await store.provoke(c, step, () => terminals.end(c));
      return send(res, 200, {});
    }
    if (url.pathname.startsWith("/api/v1/")) return await route(req, res, url);
    if (args.console) return await page(req, res, url);
    refuse(404, "ROUTE_NOT_FOUND", "There is nothing at this address.");
  } catch (e) {
    if (!(e instanceof Refusal)) console.error(e);
    if (res.headersSent) return res.destroy();
    const { status = 500, code = "INTERNAL_ERROR", message } = e;
    res.writeHead(status, { "Content-Type": "application/problem+json" });
    res.end(JSON.stringify({ type: "about:blank", title: message, status, code, detail: message, retryable: status >= 500 }));
  }
});

const sockets = new WebSocketServer({ noServer: true, handleProtocols: () => "astrabox.terminal.v1" });
server.on("upgrade", (req, socket, head) => {
  const url = new URL(req.url, "http://mock");
  const m = /^\/api\/v1\/conversations\/([^/]+)\/terminals\/([^/]+)\/attach$/.exec(url.pathname);
  const c = m && store.conversations.get(m[1]);
  if (!c) return socket.destroy();
  sockets.handleUpgrade(req, socket, head, (ws) => terminals.attach(c, m[2], ws, url.searchParams));
});

server.listen(Number(args.port), "127.0.0.1", () => console.log(`mock server on http://127.0.0.1:${server.address().port}`));
const stop = () => {
  store.close();
  terminals.close();
  process.exit(0);
};
process.on("SIGINT", stop);
process.on("SIGTERM", stop);
