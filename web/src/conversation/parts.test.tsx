import { fireEvent, render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { Tooltip } from "radix-ui";
import type { ReactElement } from "react";
import { beforeEach, describe, expect, it, vi } from "vitest";
import type { StoryPart, ToolPart, TurnEntry } from "../journal/view";
import { Composer } from "./composer";
import { titleFrom } from "./new-page";
import { Story, timed } from "./story";
import { ToolCard } from "./tool-card";
import { EntryView, Pending } from "./turn";

const show = (ui: ReactElement) => render(<Tooltip.Provider>{ui}</Tooltip.Provider>);

const tool: ToolPart = {
  kind: "tool", key: "t", call: "c", name: "bash", toolKind: "execute", title: "ls", input: { command: "ls -la" }, output: "a\n\x1b[31mb\x1b[0m\n",
  dropped: 0, generation: 0, status: "failed", exitCode: 2, cwd: "/workspace", startedAt: "2026-01-01T00:00:00Z", ms: 1234,
};
const turn: TurnEntry = { kind: "turn", key: "k", turnId: "t", clientMessageId: "m", text: "ls -la", at: "2026-01-01T00:00:00Z", state: "done", parts: [tool] };

describe("ToolCard", () => {
  it("shows command, output with colours, exit code and duration", () => {
    show(<ToolCard part={tool} message="please list" />);
    expect(screen.getByText("ls -la")).toBeTruthy();
    expect(screen.getByText("exit 2")).toBeTruthy();
    expect(screen.getByText("1.2 s")).toBeTruthy();
    expect(screen.getByText("failed")).toBeTruthy();
    expect(screen.getByText("b").style.color).toBe("var(--ansi-1)");
  });

  it("doesn't repeat a command that is the message", () => {
    show(<EntryView entry={turn} shell onTakeBack={() => {}} />);
    expect(screen.getAllByText("ls -la")).toHaveLength(1);
    expect(screen.getByText("/workspace")).toBeTruthy();
  });

  it("shows appended output without starting over, and the newest lines of much", async () => {
    const long = { ...tool, output: Array.from({ length: 1000 }, (_, i) => `line ${i}\n`).join(""), status: "running" as const };
    const { rerender } = show(<ToolCard part={long} message="" />);
    expect(screen.queryByText("line 10")).toBeNull();
    const kept = screen.getByText("line 990");
    rerender(<Tooltip.Provider><ToolCard part={{ ...long, output: `${long.output}last\n` }} message="" /></Tooltip.Provider>);
    expect(screen.getByText("last")).toBeTruthy();
    expect(screen.getByText("line 990")).toBe(kept);
    fireEvent.click(screen.getByRole("button", { name: /earlier lines/ }));
    expect(screen.getByText("line 500")).toBeTruthy();
  });
});

describe("endings", () => {
  it("an undelivered message offers its text back", async () => {
    const back = vi.fn();
    show(<EntryView entry={{ ...turn, state: "undelivered", parts: [], error: { code: "X", message: "no room" } }} shell onTakeBack={back} />);
    expect(screen.getByText("Not delivered")).toBeTruthy();
    expect(screen.getByText(/no room/)).toBeTruthy();
    await userEvent.click(screen.getByRole("button", { name: "Put the text back" }));
    expect(back).toHaveBeenCalledWith("ls -la");
  });

  it("a failed turn doesn't: it ran", () => {
    show(<EntryView entry={{ ...turn, state: "failed" }} shell onTakeBack={() => {}} />);
    expect(screen.queryByRole("button", { name: "Put the text back" })).toBeNull();
  });

  it("an unconfirmed message can be sent, discarded or taken back", async () => {
    const calls = { retry: vi.fn(), discard: vi.fn(), back: vi.fn() };
    show(<Pending m={{ id: "1", text: "x", state: "unsure" }} shell onRetry={calls.retry} onDiscard={calls.discard} onTakeBack={calls.back} />);
    await userEvent.click(screen.getByRole("button", { name: "Send" }));
    await userEvent.click(screen.getByRole("button", { name: "Discard" }));
    await userEvent.click(screen.getByRole("button", { name: "Put the text back" }));
    for (const c of Object.values(calls)) expect(c).toHaveBeenCalledTimes(1);
  });

  it("markup in a message stays text", () => {
    show(<EntryView entry={{ ...turn, text: "<img src=x onerror=alert(1)>", parts: [] }} shell onTakeBack={() => {}} />);
    expect(screen.getByText("<img src=x onerror=alert(1)>")).toBeTruthy();
    expect(document.querySelector("img")).toBeNull();
  });
});

describe("Story", () => {
  const base: StoryPart = {
    kind: "story", key: "s", phase: "ready", startedAt: "2026-01-01T00:00:00.000Z", at: "2026-01-01T00:00:00.400Z", ms: 400,
    steps: [{ name: "create", at: "2026-01-01T00:00:00.000Z" }, { name: "other", at: "2026-01-01T00:00:00.150Z" }],
  };
  it("says how long each step took", () => {
    expect(timed(base)).toEqual([{ name: "create", ms: 150 }, { name: "other", ms: 250 }]);
    expect(timed({ ...base, phase: "starting" })[1]).toEqual({ name: "other", ms: undefined });
    show(<Story part={base} />);
    expect(screen.getByText("Sandbox ready in 400 ms")).toBeTruthy();
    expect(screen.getByText("create 150 ms")).toBeTruthy();
  });
  it("says what a loss means", () => {
    show(<Story part={{ ...base, phase: "lost", steps: [], reason: "host down" }} />);
    expect(screen.getByText("Sandbox lost: host down")).toBeTruthy();
    expect(screen.getByText(/starts a new one/)).toBeTruthy();
  });
});

describe("Composer", () => {
  beforeEach(() => localStorage.clear());
  const box = () => screen.getByRole<HTMLTextAreaElement>("textbox", { name: "Message" });

  it("Enter sends, Shift+Enter makes a new line, and what is being written is kept", async () => {
    const send = vi.fn();
    const first = show(<Composer draftKey="d" shell history={[]} onSend={send} />);
    await userEvent.type(box(), "a{Shift>}{Enter}{/Shift}b");
    expect(send).not.toHaveBeenCalled();
    first.unmount();
    show(<Composer draftKey="d" shell history={[]} onSend={send} />);
    expect(box().value).toBe("a\nb");
    await userEvent.type(box(), "{Enter}");
    expect(send).toHaveBeenCalledWith("a\nb");
    expect(box().value).toBe("");
  });

  it("keeps the text when it was not taken", async () => {
    show(<Composer draftKey="d" shell history={[]} onSend={() => Promise.resolve(false)} />);
    await userEvent.type(box(), "precious{Enter}");
    await vi.waitFor(() => expect(box().value).toBe("precious"));
  });

  it("goes through the history with the arrows", async () => {
    show(<Composer draftKey="d" shell history={["one", "two"]} onSend={() => {}} />);
    await userEvent.type(box(), "{ArrowUp}");
    expect(box().value).toBe("two");
    await userEvent.type(box(), "{ArrowUp}{ArrowUp}");
    expect(box().value).toBe("one");
    await userEvent.type(box(), "{ArrowDown}{ArrowDown}");
    expect(box().value).toBe("");
  });

  it("queues while something runs, and stops it", async () => {
    const stop = vi.fn();
    const send = vi.fn();
    show(<Composer draftKey="d" shell running history={[]} onSend={send} onStop={stop} />);
    await userEvent.type(box(), "next");
    await userEvent.click(screen.getByRole("button", { name: "Queue" }));
    expect(send).toHaveBeenCalledWith("next");
    await userEvent.click(screen.getByRole("button", { name: "Stop" }));
    expect(stop).toHaveBeenCalled();
  });
});

it("a title is the first line, short and without control characters", () => {
  expect(titleFrom("  make test\nmore")).toBe("make test");
  expect(titleFrom("a\tb")).toBe("a b");
  expect([...titleFrom("🙂".repeat(80))]).toHaveLength(60);
});
