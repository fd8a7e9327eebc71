// Conversations of the mock server: a journal each, turns run one at a time by a shell of this machine.

import { EventEmitter } from "node:events";
import { spawn } from "node:child_process";
import { mkdtempSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { randomUUID } from "node:crypto";

const wait = (ms) => new Promise((r) => setTimeout(r, ms));
const now = () => new Date().toISOString();
const id = (prefix) => `${prefix}_${randomUUID().replaceAll("-", "").slice(0, 26)}`;
const letters = "abcdefghijklmnopqrstuvwxyz234567";
const sandboxId = () => Array.from({ length: 20 }, () => letters[Math.floor(Math.random() * 32)]).join("");

export class Store {
  conversations = new Map();
  keys = new Map();
  root = mkdtempSync(join(tmpdir(), "astrabox-mock-"));
  findings = [
    { id: "kernel", ok: true, severity: "error", summary: "The kernel has all that sandboxes need." },
    { id: "disk-limit", ok: false, severity: "info", summary: "a sandbox's disk limit is watched, not enforced", fix: "give the state directory a file system of its own" },
    { id: "cgroup", ok: true, severity: "warning", summary: "Memory and process limits are enforced." },
  ];

  create({ title = "", agent = "shell" }, key) {
    const before = key && this.keys.get(key);
    if (before) return before;
    const c = {
      id: id("conv"), title, agent, environment: "local", state: "active", sandbox: "", runtime: { state: "none", since: now() },
      events: [], turns: [], watch: new EventEmitter().setMaxListeners(0), created: now(), updated: now(), failStart: false, cwd: "", running: undefined,
    };
    c.dir = join(this.root, c.id);
    c.cwd = c.dir;
    this.conversations.set(c.id, c);
    if (key) this.keys.set(key, c);
    this.emit(c, "conversation.created", {});
    return c;
  }

  show(c) {
    const turn = c.turns.find((t) => ["delivering", "running", "interrupting"].includes(t.state));
    return {
      id: c.id, title: c.title, agent: c.agent, environment: c.environment, state: c.state,
      runtime: { ...c.runtime, sandbox_id: c.sandbox || undefined }, turn: turn ? { id: turn.id, state: turn.state } : null,
      queued: c.turns.filter((t) => t.state === "queued").length, last_seq: c.events.length,
      created_at: c.created, updated_at: c.updated, destruction: c.destruction,
    };
  }

  list = () => [...this.conversations.values()].filter((c) => c.state !== "deleted").map((c) => this.show(c))
    .sort((a, b) => b.updated_at.localeCompare(a.updated_at));

  emit(c, type, data, turn) {
    c.updated = now();
    c.events.push({ seq: c.events.length + 1, type, turn_id: turn?.id, at: now(), data });
    c.watch.emit("event");
  }

  message(c, { client_message_id, text }) {
    const known = c.turns.find((t) => t.client_message_id === client_message_id);
    if (known) return known;
    const t = { id: id("turn"), conversation_id: c.id, client_message_id, text, state: "queued", created_at: now() };
    c.turns.push(t);
    this.emit(c, "message.accepted", { text, client_message_id }, t);
    void this.work(c);
    return t;
  }

  async work(c) {
    if (c.working) return;
    c.working = true;
    for (let t; (t = c.turns.find((x) => x.state === "queued")) && c.state === "active";) {
      t.state = "delivering";
      if (!(await this.awake(c, t))) continue;
      await this.run(c, t);
    }
    c.working = false;
  }

  /** Starts or resumes what stands for the sandbox. */
  async awake(c, t) {
    if (c.runtime.state === "ready") return true;
    if (c.waking) return c.waking;
    c.waking = (async () => {
      if (c.runtime.state === "paused") {
        this.state(c, "resuming");
        this.emit(c, "sandbox.resuming", {});
        await wait(150);
        this.state(c, "ready");
        this.emit(c, "sandbox.resumed", { sandbox_id: c.sandbox, ms: 41 });
        return true;
      }
      this.state(c, "starting");
      const from = Date.now();
      for (const step of ["create", "workspace", "agent"]) {
        this.emit(c, "sandbox.starting", { step });
        await wait(90 + Math.random() * 120);
        if (c.failStart) {
          c.failStart = false;
          this.state(c, "none", "no room");
          const error = { code: "SANDBOX_START_FAILED", message: "The sandbox could not be started: the backend has no room at the moment." };
          if (t) {
            t.state = "undelivered";
            this.emit(c, "turn.ended", { reason: "undelivered", error }, t);
          }
          return false;
        }
      }
      c.sandbox = sandboxId();
      if (c.lost || !c.ever) {
        mkdirSync(c.dir, { recursive: true });
        c.cwd = c.dir;
        writeFileSync(join(c.dir, "README.md"), "# Workspace\n\nFiles here belong to this conversation.\n");
        c.ever = true;
      }
      this.state(c, "ready");
      this.emit(c, "sandbox.ready", { sandbox_id: c.sandbox, ms: Date.now() - from });
      return true;
    })().finally(() => (c.waking = undefined));
    return c.waking;
  }

  state(c, state, reason) {
    c.runtime = { state, since: now(), reason };
  }

  async run(c, t) {
    t.state = "running";
    this.emit(c, "turn.started", {}, t);
    const call = "c1";
    this.emit(c, "tool.started", { call, name: "bash", kind: "execute", title: t.text, input: { command: t.text } }, t);
    const from = Date.now();
    const p = spawn("bash", ["--noprofile", "--norc", "-c", `trap 'pwd >&3' EXIT\n${t.text.replaceAll("/workspace", c.dir)}`], {
      cwd: c.cwd, detached: true, stdio: ["ignore", "pipe", "pipe", "pipe"], env: { PATH: process.env.PATH, HOME: c.dir, LANG: "C.UTF-8", TERM: "xterm-256color" },
    });
    c.running = p;
    let waiting = "";
    let cwd = "";
    const flush = () => {
      if (waiting) this.emit(c, "tool.output", { call, mode: "append", text: waiting.replaceAll(c.dir, "/workspace") }, t);
      waiting = "";
    };
    const beat = setInterval(flush, 50);
    for (const s of [p.stdout, p.stderr]) s.setEncoding("utf8").on("data", (d) => (waiting += d));
    p.stdio[3].on("data", (d) => (cwd += d));
    const [code, signal] = await new Promise((r) => p.on("close", (...x) => r(x)));
    clearInterval(beat);
    flush();
    c.running = undefined;
    if (cwd.trim().startsWith(c.dir)) c.cwd = cwd.trim();
    const exit = code ?? 128 + ({ SIGINT: 2, SIGKILL: 9, SIGTERM: 15 }[signal] ?? 0);
    const stopped = t.state === "interrupting";
    const reason = t.lost ? "failed" : stopped ? "interrupted" : "done";
    if (!t.lost) {
      this.emit(c, "tool.ended", {
        call, status: exit === 0 ? "completed" : "failed", exit_code: exit, cwd: c.cwd.replace(c.dir, "/workspace"), duration_ms: Date.now() - from,
      }, t);
    }
    t.state = reason;
    this.emit(c, "turn.ended", { reason, error: t.lost ? { code: "SANDBOX_LOST", message: "The sandbox was lost while the command ran." } : undefined }, t);
  }

  interrupt(c) {
    const t = c.turns.find((x) => x.state === "running");
    if (!t || !c.running) return;
    t.state = "interrupting";
    kill(c.running, "SIGTERM");
  }

  async provoke(c, what, endTerminals) {
    if (what === "fail-start") c.failStart = true;
    if (what === "pause") {
      this.state(c, "pausing");
      this.emit(c, "sandbox.pausing", {});
      endTerminals();
      await wait(100);
      this.state(c, "paused");
      this.emit(c, "sandbox.paused", {});
    }
    if (what === "lose") {
      const t = c.turns.find((x) => x.state === "running");
      if (t) t.lost = true;
      this.state(c, "lost", "the host was restarted");
      this.emit(c, "sandbox.lost", { reason: "the host was restarted" });
      endTerminals();
      if (c.running) kill(c.running, "SIGKILL");
      rmSync(c.dir, { recursive: true, force: true });
      c.lost = true;
    }
  }

  async remove(c) {
    if (c.running) kill(c.running, "SIGKILL");
    c.state = "deleting";
    await wait(150);
    rmSync(c.dir, { recursive: true, force: true });
    c.destruction = c.sandbox
      ? { sandbox_id: c.sandbox, outcome: "gone", detail: "deleted; afterwards the backend answered that there is no such sandbox" }
      : { sandbox_id: "", outcome: "nothing_named", detail: "the conversation never had a sandbox" };
    c.state = "deleted";
  }

  close() {
    for (const c of this.conversations.values()) if (c.running) kill(c.running, "SIGKILL");
    rmSync(this.root, { recursive: true, force: true });
  }
}

function kill(p, signal) {
  try {
    process.kill(-p.pid, signal);
  } catch {
    // It ended by itself.
  }
}
