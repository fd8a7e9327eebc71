import { beforeEach, describe, expect, it, vi } from "vitest";
import { ApiError } from "../api";
import { Outbox } from "./outbox";

const away = new ApiError(0, "UNREACHABLE", "away", true);
const now = () => Promise.resolve();

describe("Outbox", () => {
  beforeEach(() => localStorage.clear());

  it("sends in the order of writing, one at a time", async () => {
    const sent: string[] = [];
    let open = () => {};
    const send = vi.fn(async (_: string, __: string, text: string) => {
      sent.push(text);
      if (text === "a") await new Promise<void>((r) => (open = r));
    });
    const o = new Outbox(send, now);
    o.add("c", "a");
    o.add("c", "b");
    await vi.waitFor(() => expect(sent).toEqual(["a"]));
    open();
    await vi.waitFor(() => expect(sent).toEqual(["a", "b"]));
  });

  it("tries again under the same id, and gives up in the end", async () => {
    const ids: string[] = [];
    const o = new Outbox((_, id) => (ids.push(id), Promise.reject(away)), now);
    o.add("c", "a");
    await vi.waitFor(() => expect(o.list("c")[0]).toMatchObject({ state: "failed", error: "away" }));
    expect(ids).toHaveLength(5);
    expect(new Set(ids).size).toBe(1);
    o.retry("c", ids[0]!);
    await vi.waitFor(() => expect(ids).toHaveLength(10));
    expect(new Set(ids).size).toBe(1);
  });

  it("doesn't repeat what a repeat won't change", async () => {
    const send = vi.fn(() => Promise.reject(new ApiError(413, "MESSAGE_TOO_LARGE", "too long", false)));
    const o = new Outbox(send, now);
    o.add("c", "a");
    await vi.waitFor(() => expect(o.list("c")[0]).toMatchObject({ state: "failed", error: "too long" }));
    expect(send).toHaveBeenCalledTimes(1);
  });

  it("survives a reload as something to decide about, and is settled by the journal", async () => {
    const first = new Outbox(() => new Promise(() => {}), now);
    first.add("c", "a");
    const second = new Outbox(() => Promise.resolve(), now);
    const [m] = second.list("c");
    expect(m).toMatchObject({ text: "a", state: "unsure" });
    second.settle("c", new Set([m!.id]));
    expect(second.list("c")).toEqual([]);
    expect(new Outbox(now, now).list("c")).toEqual([]);
  });

  it("never sends what was discarded meanwhile", async () => {
    const send = vi.fn(() => Promise.reject(away));
    let go = () => {};
    const o = new Outbox(send, () => new Promise<void>((r) => (go = r)));
    o.add("c", "a");
    await vi.waitFor(() => expect(send).toHaveBeenCalledTimes(1));
    o.discard("c", o.list("c")[0]!.id);
    go();
    await now();
    expect(send).toHaveBeenCalledTimes(1);
  });
});
