// Terminals of the mock server: `script` gives a shell a real TTY.

import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";

const keep = 256 * 1024;

export class Terminals {
  all = new Map();

  constructor(store) {
    this.store = store;
  }

  list = (c) => [...this.all.values()].filter((t) => t.conversation === c.id).map(({ id, created_at }) => ({ id, created_at }));

  create(c, { cols, rows }) {
    const t = { id: `term_${randomUUID().slice(0, 8)}`, created_at: new Date().toISOString(), conversation: c.id, out: Buffer.alloc(0), oldest: 0, watchers: new Set() };
    t.process = spawn("script", ["-qefc", `stty cols ${cols} rows ${rows}; exec bash --noprofile --norc -i`, "/dev/null"], {
      cwd: c.dir, detached: true, env: { PATH: process.env.PATH, HOME: c.dir, TERM: "xterm-256color", LANG: "C.UTF-8", PS1: "\\[\\e[32m\\]agent\\[\\e[0m\\]:\\[\\e[34m\\]\\W\\[\\e[0m\\]$ " },
    });
    t.process.stdout.on("data", (d) => {
      const offset = t.oldest + t.out.length;
      t.out = Buffer.concat([t.out, d]);
      if (t.out.length > keep) {
        t.oldest += t.out.length - keep;
        t.out = t.out.subarray(t.out.length - keep);
      }
      for (const ws of this.sockets(t)) frame(ws, offset, d);
    });
    t.process.on("exit", (code) => {
      t.exit = { code: code ?? 137 };
      for (const ws of this.sockets(t)) finish(ws, t.exit);
    });
    this.all.set(t.id, t);
    return { id: t.id, created_at: t.created_at };
  }

  sockets = (t) => [...t.watchers, ...(t.writer ? [t.writer] : [])];

  attach(c, id, ws, q) {
    const t = this.all.get(id);
    const text = (v) => ws.send(JSON.stringify(v));
    const refuse = (code, message) => {
      text({ type: "error", code, message });
      ws.close(code === "TERMINAL_HELD" ? 4009 : 4004);
    };
    if (!t || t.conversation !== c.id) return refuse("TERMINAL_NOT_FOUND", "There is no such terminal.");
    const mode = q.get("mode") ?? "write";
    if (mode === "watch") t.watchers.add(ws);
    else {
      if (t.writer && mode === "write") return refuse("TERMINAL_HELD", "The terminal is used from elsewhere.");
      if (t.writer) {
        t.writer.send(JSON.stringify({ type: "displaced" }));
        t.writer.close(4001);
      }
      t.writer = ws;
    }
    let since = Number(q.get("since") ?? 0);
    text({ type: "ready", mode, offset: since });
    if (since < t.oldest) {
      text({ type: "gap", oldest: t.oldest });
      since = t.oldest;
    }
    const rest = t.out.subarray(since - t.oldest);
    if (rest.length > 0) frame(ws, since, rest);
    if (t.exit) finish(ws, t.exit);
    ws.on("message", (d, isBinary) => {
      if (isBinary) return mode === "watch" ? undefined : t.process.stdin.write(d);
      const m = JSON.parse(d.toString());
      if (m.type === "ping") text({ type: "pong" });
    });
    ws.on("close", () => {
      t.watchers.delete(ws);
      if (t.writer === ws) t.writer = undefined;
    });
  }

  drop(c) {
    for (const t of this.all.values()) if (t.conversation === c.id) for (const ws of this.sockets(t)) ws.terminate();
  }

  remove(c, id) {
    const t = this.all.get(id);
    if (t?.conversation !== c.id) return;
    this.all.delete(id);
    kill(t);
  }

  end(c) {
    for (const t of this.all.values()) if (t.conversation === c.id) this.remove(c, t.id);
  }

  close() {
    for (const t of this.all.values()) kill(t);
  }
}

const kill = (t) => {
  try {
    process.kill(-t.process.pid, "SIGKILL");
  } catch {
    // It ended by itself.
  }
};

function frame(ws, offset, data) {
  const head = Buffer.alloc(8);
  head.writeBigUInt64BE(BigInt(offset));
  ws.send(Buffer.concat([head, data]));
}

function finish(ws, exit) {
  ws.send(JSON.stringify({ type: "exit", code: exit.code }));
  ws.close(1000, "end");
}
