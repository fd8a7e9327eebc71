import { describe, expect, it } from "vitest";
import type { EventType, JournalEvent } from "../api";
import { apply, emptyView, JournalGap, outputLimit, type StoryPart, type ToolPart, type TurnEntry, type View } from "./view";

/** Events numbered from 1, one per 100 ms, from [type, data, turn]. */
function events(...list: [EventType, object?, string?][]): JournalEvent[] {
  return list.map(([type, data, turn], i) => ({
    seq: i + 1, type, turn_id: turn, data: data ?? {}, at: new Date(Date.UTC(2026, 0, 1) + i * 100).toISOString(),
  })) as JournalEvent[];
}

const oneCommand = events(
  ["conversation.created"],
  ["message.accepted", { text: "make", client_message_id: "m1" }, "t1"],
  ["sandbox.starting", { step: "create" }],
  ["sandbox.starting", { step: "agent" }],
  ["sandbox.ready", { sandbox_id: "abc", ms: 210 }],
  ["turn.started", {}, "t1"],
  ["tool.started", { call: "c", name: "bash", kind: "execute", title: "make", input: { command: "make" } }, "t1"],
  ["tool.output", { call: "c", mode: "append", text: "one\n" }, "t1"],
  ["tool.output", { call: "c", mode: "append", text: "two\n" }, "t1"],
  ["tool.ended", { call: "c", status: "failed", exit_code: 2, cwd: "/workspace", duration_ms: 42 }, "t1"],
  ["turn.ended", { reason: "done" }, "t1"],
);

const turn = (v: View, i = 0) => v.entries[i] as TurnEntry;

describe("apply", () => {
  it("makes a turn with its sandbox story and its command", () => {
    const t = turn(apply(emptyView, oneCommand));
    expect(t).toMatchObject({ text: "make", clientMessageId: "m1", state: "done" });
    const [story, tool] = t.parts as [StoryPart, ToolPart];
    expect(story).toMatchObject({ phase: "ready", sandboxId: "abc", ms: 210 });
    expect(story.steps.map((s) => s.name)).toEqual(["create", "agent"]);
    expect(tool).toMatchObject({ output: "one\ntwo\n", exitCode: 2, status: "failed", ms: 42, cwd: "/workspace" });
  });

  it("gives the same view whatever the pieces, and however often events come", () => {
    const whole = apply(emptyView, oneCommand);
    let single = emptyView;
    for (const e of oneCommand) single = apply(single, [e]);
    expect(single).toEqual(whole);
    expect(apply(whole, oneCommand)).toBe(whole);
    expect(apply(apply(emptyView, oneCommand.slice(0, 7)), oneCommand.slice(3))).toEqual(whole);
  });

  it("refuses to jump over an event", () => {
    expect(() => apply(emptyView, oneCommand.slice(1))).toThrow(JournalGap);
    expect(() => apply(emptyView, [oneCommand[0]!, oneCommand[2]!])).toThrow(JournalGap);
  });

  it("never changes a view it gave before, and keeps what didn't change", () => {
    const before = apply(emptyView, oneCommand.slice(0, 8));
    const copy = structuredClone(before);
    const after = apply(before, oneCommand.slice(8));
    expect(before).toEqual(copy);
    expect(turn(after).parts[0]).toBe(turn(before).parts[0]);
    expect(turn(after).parts[1]).not.toBe(turn(before).parts[1]);
  });

  it("keeps a queued message below the turn that runs", () => {
    const v = apply(emptyView, events(
      ["message.accepted", { text: "a", client_message_id: "1" }, "t1"],
      ["turn.started", {}, "t1"],
      ["text.delta", { text: "Hel" }, "t1"],
      ["message.accepted", { text: "b", client_message_id: "2" }, "t2"],
      ["text.delta", { text: "lo" }, "t1"],
      ["sandbox.lost", { reason: "host down" }],
      ["turn.ended", { reason: "failed", error: { code: "SANDBOX_LOST", message: "lost" } }, "t1"],
    ));
    expect(v.entries.map((e) => (e as TurnEntry).text)).toEqual(["a", "b"]);
    expect(turn(v).parts.map((p) => p.kind)).toEqual(["text", "story"]);
    expect(turn(v).parts[0]).toMatchObject({ text: "Hello" });
    expect(turn(v)).toMatchObject({ state: "failed", error: { message: "lost" } });
    expect(turn(v, 1).state).toBe("queued");
    expect(v.runtime).toBe("lost");
  });

  it("tells what happens between turns on its own, and merges the two ends of a pause", () => {
    const v = apply(emptyView, events(
      ["message.accepted", { text: "a", client_message_id: "1" }, "t1"],
      ["turn.ended", { reason: "done" }, "t1"],
      ["sandbox.pausing"],
      ["sandbox.paused"],
      ["sandbox.resuming"],
      ["sandbox.resumed", { sandbox_id: "s", ms: 30 }],
    ));
    expect(v.entries[1]).toMatchObject({ kind: "loose", parts: [{ phase: "paused" }, { phase: "resumed", ms: 30 }] });
    expect(v.runtime).toBe("ready");
  });

  it("starts a new text after a done one and after a tool", () => {
    const v = apply(emptyView, events(
      ["message.accepted", { text: "a", client_message_id: "1" }, "t1"],
      ["text.delta", { text: "x" }, "t1"],
      ["text.done", {}, "t1"],
      ["text.delta", { text: "y" }, "t1"],
      ["tool.started", { call: "c" }, "t1"],
      ["text.delta", { text: "z" }, "t1"],
    ));
    expect(turn(v).parts.map((p) => (p.kind === "text" ? p.text : p.kind))).toEqual(["x", "y", "tool", "z"]);
  });

  it("replaces output when told, and a repeated start only betters the title", () => {
    const v = apply(emptyView, events(
      ["message.accepted", { text: "a", client_message_id: "1" }, "t1"],
      ["tool.started", { call: "c", title: "bash" }, "t1"],
      ["tool.output", { call: "c", mode: "replace", text: "old" }, "t1"],
      ["tool.started", { call: "c", title: "bash ls" }, "t1"],
      ["tool.output", { call: "c", mode: "replace", text: "new" }, "t1"],
    ));
    expect(turn(v).parts).toHaveLength(1);
    expect(turn(v).parts[0]).toMatchObject({ title: "bash ls", output: "new", generation: 2 });
  });

  it("closes what an interrupted or undelivered turn left open", () => {
    const stopped = apply(emptyView, events(
      ["message.accepted", { text: "sleep 9", client_message_id: "1" }, "t1"],
      ["tool.started", { call: "c" }, "t1"],
      ["turn.ended", { reason: "interrupted" }, "t1"],
    ));
    expect(turn(stopped).parts[0]).toMatchObject({ status: "stopped", ms: 100 });
    const failed = apply(emptyView, events(
      ["message.accepted", { text: "x", client_message_id: "1" }, "t1"],
      ["sandbox.starting", { step: "create" }],
      ["turn.ended", { reason: "undelivered", error: { code: "SANDBOX_START_FAILED", message: "no room" } }, "t1"],
    ));
    expect(turn(failed)).toMatchObject({ state: "undelivered", error: { message: "no room" }, parts: [{ phase: "failed" }] });
  });

  it("lets go of the oldest output past the limit and says how much", () => {
    const line = `${"x".repeat(1023)}\n`;
    let v = apply(emptyView, events(["message.accepted", { text: "a" }, "t1"], ["tool.started", { call: "c" }, "t1"]));
    let sent = 0;
    for (let seq = 3; sent <= outputLimit * 1.5; seq++) {
      const text = line.repeat(64);
      sent += text.length;
      v = apply(v, [{ seq, type: "tool.output", turn_id: "t1", at: "", data: { call: "c", mode: "append", text } }]);
    }
    const tool = turn(v).parts[0] as ToolPart;
    expect(tool.output.length).toBeLessThanOrEqual(outputLimit);
    expect(tool.output.length + tool.dropped).toBe(sent);
    expect(tool.output.startsWith("x".repeat(1023))).toBe(true);
  });

  it("goes on over types it doesn't know", () => {
    const v = apply(emptyView, [{ seq: 1, type: "plan.updated", at: "", data: {} } as unknown as JournalEvent]);
    expect(v.lastSeq).toBe(1);
  });
});

describe("a start", () => {
  it("that failed says why, and its steps begin anew with the next try", () => {
    const v = apply(emptyView, events(
      ["message.accepted", { text: "a" }, "t1"],
      ["sandbox.starting", { step: "create" }],
      ["sandbox.starting", { step: "agent" }],
      ["sandbox.starting", { step: "create" }],
      ["sandbox.failed", { reason: "no room" }],
      ["turn.ended", { reason: "undelivered", error: { code: "X", message: "other" } }, "t1"],
    ));
    expect(turn(v).parts).toMatchObject([{ phase: "failed", reason: "no room", steps: [{ name: "create" }] }]);
    expect(v.runtime).toBe("none");
  });
});
