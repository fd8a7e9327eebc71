// What a person sees of a conversation, made from its journal. Pure: the same events give the same view, in whatever
// pieces they come, and an event that was seen before changes nothing. That is what makes a reload, a second tab and
// a dropped network show one picture.

import type { EndReason, Failure, JournalEvent, RuntimeState, TurnState } from "../api";

export interface TextPart { kind: "text"; key: string; text: string; done: boolean }
export interface ThinkingPart { kind: "thinking"; key: string; text: string }
export interface NoticePart { kind: "notice"; key: string; level: string; text: string }
export interface ToolPart {
  kind: "tool";
  key: string;
  call: string;
  name: string;
  toolKind: string;
  title: string;
  input: unknown;
  output: string;
  /** Characters of output that were let go of, oldest first. */
  dropped: number;
  /** Counts the replacements of the output, so that a renderer knows whether it can go on where it was. */
  generation: number;
  status: "running" | "completed" | "failed" | "stopped";
  exitCode?: number;
  cwd?: string;
  startedAt: string;
  ms?: number;
}

/** A chapter of the sandbox's life within the conversation. */
export interface StoryPart {
  kind: "story";
  key: string;
  phase: "starting" | "ready" | "pausing" | "paused" | "resuming" | "resumed" | "lost" | "terminated" | "failed";
  steps: { name: string; at: string }[];
  startedAt: string;
  at: string;
  ms?: number;
  sandboxId?: string;
  reason?: string;
  /** What is proven about its destruction. */
  outcome?: string;
}

export type Part = TextPart | ThinkingPart | NoticePart | ToolPart | StoryPart;

export interface TurnEntry {
  kind: "turn";
  key: string;
  turnId: string;
  clientMessageId: string;
  text: string;
  at: string;
  state: TurnState;
  error?: Failure;
  parts: Part[];
  startedAt?: string;
  endedAt?: string;
}

/** Parts that belong to no turn: the sandbox paused while nobody asked for anything. */
export interface LooseEntry { kind: "loose"; key: string; parts: Part[] }

export type Entry = TurnEntry | LooseEntry;

export interface View {
  lastSeq: number;
  entries: Entry[];
  /** As the journal tells it; the conversation itself says the same with a delay. */
  runtime: RuntimeState | undefined;
}

export const emptyView: View = { lastSeq: 0, entries: [], runtime: undefined };

/** Output of one tool call that is kept in the page. Past it the oldest is let go of. */
export const outputLimit = 2 * 1024 * 1024;

/** Says that events are missing between what was applied and what came. */
export class JournalGap extends Error {
  constructor(readonly have: number, readonly got: number) {
    super(`event ${got} came after ${have}`);
    this.name = "JournalGap";
  }
}

/** Applies events in order. Those at or below lastSeq are skipped; a missing one throws JournalGap. */
export function apply(view: View, events: readonly JournalEvent[]): View {
  let draft: Draft | undefined;
  let last = view.lastSeq;
  for (const e of events) {
    if (e.seq <= last) continue;
    if (e.seq !== last + 1) throw new JournalGap(last, e.seq);
    draft ??= new Draft(view);
    // Types without data may come with none at all.
    draft.event(e.data ? e : ({ ...e, data: {} } as JournalEvent));
    last = e.seq;
  }
  return draft ? { lastSeq: last, entries: draft.entries, runtime: draft.runtime } : view;
}

const open = (s: TurnState) => s === "queued" || s === "delivering" || s === "running" || s === "interrupting";

export const isOpen = (t: TurnEntry) => open(t.state);

/** Copies on write: entries and parts that a batch doesn't touch keep their identity, so React skips them. */
class Draft {
  entries: Entry[];
  runtime: RuntimeState | undefined;
  private fresh = new Set<object>();

  constructor(view: View) {
    this.entries = [...view.entries];
    this.runtime = view.runtime;
  }

  event(e: JournalEvent) {
    switch (e.type) {
      case "message.accepted":
        this.entries.push(this.own({
          kind: "turn", key: e.turn_id ?? `m${e.seq}`, turnId: e.turn_id ?? "", clientMessageId: e.data.client_message_id ?? "",
          text: e.data.text ?? "", at: e.at, state: "queued", parts: [],
        }));
        return;
      case "turn.started":
        this.turn(e, (t) => {
          t.state = "running";
          t.startedAt = e.at;
        });
        return;
      case "turn.ended":
        this.endTurn(e);
        return;
      case "text.delta":
        this.appendText(e, "text");
        return;
      case "thinking.delta":
        this.appendText(e, "thinking");
        return;
      case "text.done": {
        const host = this.host(e);
        const last = host.parts.at(-1);
        if (last?.kind === "text") this.edit(host, host.parts.length - 1, { done: true });
        return;
      }
      case "notice":
        this.host(e).parts.push({ kind: "notice", key: `n${e.seq}`, level: e.data.level ?? "info", text: e.data.text ?? "" });
        return;
      case "tool.started":
      case "tool.output":
      case "tool.ended":
        this.tool(e);
        return;
      default:
        if (e.type.startsWith("sandbox.")) this.story(e);
      // Types that this version doesn't know are no reason to stop.
    }
  }

  // ---- turns

  private endTurn(e: Extract<JournalEvent, { type: "turn.ended" }>) {
    this.turn(e, (t) => {
      t.state = endState[e.data.reason] ?? "unknown";
      t.error = e.data.error ?? undefined;
      t.endedAt = e.at;
      t.parts.forEach((p, i) => {
        if (p.kind === "tool" && p.status === "running") this.edit(t, i, { status: "stopped", ms: since(p.startedAt, e.at) });
        if (p.kind === "text" && !p.done) this.edit(t, i, { done: true });
        // Why is said by the turn.
        if (p.kind === "story" && (p.phase === "starting" || p.phase === "resuming"))
          this.edit(t, i, { phase: "failed", at: e.at });
      });
    });
  }

  private turn(e: JournalEvent, change: (t: TurnEntry) => void) {
    const t = this.find(e.turn_id);
    if (t) change(t);
  }

  /** The turn of an id, owned by this draft. Looked for from the end: that is where things happen. */
  private find(id: string | undefined): TurnEntry | undefined {
    if (!id) return undefined;
    for (let i = this.entries.length - 1; i >= 0; i--) {
      const x = this.entries[i]!;
      if (x.kind === "turn" && x.turnId === id) return this.writable(i) as TurnEntry;
    }
    return undefined;
  }

  /** Where a part goes: its turn, else the first turn that hasn't ended, else on its own. */
  private host(e: JournalEvent): Entry {
    const named = this.find(e.turn_id);
    if (named) return named;
    let first = -1;
    for (let i = this.entries.length - 1; i >= 0; i--) {
      const x = this.entries[i]!;
      if (x.kind === "turn") {
        if (!isOpen(x)) break;
        first = i;
      }
    }
    if (first >= 0) return this.writable(first);
    const end = this.entries.length - 1;
    if (end >= 0 && this.entries[end]!.kind === "loose") return this.writable(end);
    const loose = this.own<LooseEntry>({ kind: "loose", key: `l${e.seq}`, parts: [] });
    this.entries.push(loose);
    return loose;
  }

  // ---- text

  private appendText(e: JournalEvent & { data: { text: string } }, kind: "text" | "thinking") {
    const host = this.host(e);
    const last = host.parts.at(-1);
    if (last?.kind === kind && !(last.kind === "text" && last.done)) {
      this.edit(host, host.parts.length - 1, { text: last.text + e.data.text });
    } else if (kind === "text") {
      host.parts.push({ kind, key: `x${e.seq}`, text: e.data.text, done: false });
    } else {
      host.parts.push({ kind, key: `x${e.seq}`, text: e.data.text });
    }
  }

  // ---- tools

  private tool(e: Extract<JournalEvent, { type: "tool.started" | "tool.output" | "tool.ended" }>) {
    const host = this.host(e);
    let at = host.parts.findLastIndex((p) => p.kind === "tool" && p.call === e.data.call);
    if (at < 0) {
      at = host.parts.push({
        kind: "tool", key: `t${e.seq}`, call: e.data.call, name: "", toolKind: "", title: "", input: undefined,
        output: "", dropped: 0, generation: 0, status: "running", startedAt: e.at,
      }) - 1;
    }
    const p = host.parts[at] as ToolPart;
    switch (e.type) {
      case "tool.started":
        this.edit(host, at, {
          name: e.data.name ?? p.name, toolKind: e.data.kind ?? p.toolKind,
          title: e.data.title ?? p.title, input: e.data.input ?? p.input,
        });
        return;
      case "tool.output":
        if (e.data.mode === "replace") this.edit(host, at, { ...bounded(e.data.text, 0), generation: p.generation + 1 });
        else this.edit(host, at, bounded(p.output + e.data.text, p.dropped));
        return;
      case "tool.ended": {
        const given = typeof e.data.output === "string" && p.output === "" ? bounded(e.data.output, 0) : {};
        this.edit(host, at, {
          ...given,
          status: e.data.status,
          exitCode: e.data.exit_code ?? undefined,
          cwd: e.data.cwd ?? p.cwd,
          ms: e.data.duration_ms ?? since(p.startedAt, e.at),
        });
      }
    }
  }

  // ---- the sandbox

  private story(e: JournalEvent) {
    const phase = e.type.slice("sandbox.".length) as StoryPart["phase"];
    const data = e.data as { step?: string; sandbox_id?: string; ms?: number; reason?: string; outcome?: string };
    this.runtime = runtimeOf[phase] ?? this.runtime;
    const more = {
      phase, at: e.at,
      ...(data.sandbox_id ? { sandboxId: data.sandbox_id } : {}),
      ...(data.ms !== undefined ? { ms: data.ms } : {}),
      ...(data.reason ? { reason: data.reason } : {}),
      ...(data.outcome ? { outcome: data.outcome } : {}),
    };
    const step = data.step ? [{ name: data.step, at: e.at }] : [];
    const found = this.openStory(phase);
    if (found) {
      const p = found.host.parts[found.at] as StoryPart;
      // The first step once more: the start began anew.
      const again = step[0] !== undefined && step[0].name === p.steps[0]?.name;
      this.edit(found.host, found.at, { ...more, steps: again ? step : [...p.steps, ...step], ms: data.ms ?? (phase === p.phase ? p.ms : since(p.startedAt, e.at)) });
      return;
    }
    this.host(e).parts.push({ kind: "story", key: `s${e.seq}`, steps: step, startedAt: e.at, ...more });
  }

  /** The chapter that an event of this phase goes on with, if it is the newest of all. */
  private openStory(phase: string): { host: Entry; at: number } | undefined {
    for (let i = this.entries.length - 1; i >= 0; i--) {
      const at = this.entries[i]!.parts.findLastIndex((p) => p.kind === "story");
      if (at < 0) continue;
      const p = this.entries[i]!.parts[at] as StoryPart;
      return continues[phase]?.includes(p.phase) ? { host: this.writable(i), at } : undefined;
    }
    return undefined;
  }

  // ---- copying

  private own<T extends object>(x: T): T {
    this.fresh.add(x);
    return x;
  }

  private writable(i: number): Entry {
    const x = this.entries[i]!;
    if (this.fresh.has(x)) return x;
    const copy = this.own({ ...x, parts: [...x.parts] });
    this.entries[i] = copy;
    return copy;
  }

  private edit<P extends Part>(host: Entry, at: number, change: Partial<P>) {
    host.parts[at] = { ...host.parts[at]!, ...change } as Part;
  }
}

const endState: Record<EndReason, TurnState> = {
  done: "done", interrupted: "interrupted", failed: "failed", limit: "limit",
  refused: "refused", undelivered: "undelivered", unknown: "unknown",
};

const runtimeOf: Record<string, RuntimeState> = {
  starting: "starting", ready: "ready", pausing: "pausing", paused: "paused", resuming: "resuming",
  resumed: "ready", lost: "lost", terminated: "none", failed: "none",
};

/** Which chapters an event of a phase continues rather than opening its own. */
const continues: Record<string, string[]> = {
  starting: ["starting"],
  ready: ["starting", "resuming", "pausing"],
  pausing: ["pausing"],
  paused: ["pausing"],
  failed: ["starting", "resuming"],
  resuming: ["resuming"],
  resumed: ["resuming"],
};

function since(from: string, to: string): number {
  const ms = Date.parse(to) - Date.parse(from);
  return Number.isFinite(ms) && ms > 0 ? ms : 0;
}

function bounded(text: string, dropped: number): { output: string; dropped: number } {
  if (text.length <= outputLimit) return { output: text, dropped };
  // Cut in one larger step, at a line, so that a flood isn't cut at every event.
  let cut = text.length - Math.floor(outputLimit * 0.75);
  const line = text.indexOf("\n", cut);
  if (line >= 0 && line - cut < 4096) cut = line + 1;
  return { output: text.slice(cut), dropped: dropped + cut };
}
