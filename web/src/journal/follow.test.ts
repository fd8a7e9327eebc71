import { afterEach, describe, expect, it, vi } from "vitest";
import { ApiError } from "../api";
import { Follower } from "./follow";
import { SSEParser } from "./sse";

describe("SSEParser", () => {
  const stream = ': hello\r\nid: 1\r\ndata: {"a":1}\r\n\r\nid:2\ndata: x\ndata:  y\n\n: beat\n\ndata: z\r\r';

  it("reads messages whatever the pieces", () => {
    const want = [{ id: "1", data: '{"a":1}' }, { id: "2", data: "x\n y" }, { id: undefined, data: "z" }];
    for (let size = 1; size <= stream.length; size++) {
      const p = new SSEParser();
      const got = [];
      for (let i = 0; i < stream.length; i += size) got.push(...p.push(stream.slice(i, i + size)));
      got.push(...p.push("\n"));
      expect(got, `pieces of ${size}`).toEqual(want);
    }
  });
});

/** A server's side of the stream: says what was asked for, and is written to by the test. */
class Wire {
  asked: number[] = [];
  private writer: ReadableStreamDefaultController<Uint8Array> | undefined;
  private waiting: (() => void) | undefined;
  refuse: ApiError | undefined;

  open = (after: number, signal: AbortSignal): Promise<Response> => {
    this.asked.push(after);
    const refuse = this.refuse;
    if (refuse) return Promise.reject(refuse);
    const body = new ReadableStream<Uint8Array>({ start: (c) => void (this.writer = c) });
    signal.addEventListener("abort", () => this.fail());
    this.waiting?.();
    return Promise.resolve(new Response(body));
  };

  /** Resolves at the n-th connection. */
  async connection(n: number) {
    while (this.asked.length < n || !this.writer) await new Promise<void>((r) => (this.waiting = r));
    await Promise.resolve();
  }

  send(...seqs: number[]) {
    const text = seqs.map((seq) => `id: ${seq}\ndata: ${JSON.stringify({ seq, type: "conversation.created", at: "", data: {} })}\n\n`).join("");
    this.writer!.enqueue(new TextEncoder().encode(text));
  }

  fail() {
    try {
      this.writer?.error(new Error("dropped"));
    } catch {
      // Ended already.
    }
  }
}

describe("Follower", () => {
  let follower: Follower | undefined;
  afterEach(() => {
    follower?.stop();
    vi.useRealTimers();
  });

  function follow(wire: Wire, more = {}) {
    follower = new Follower({ open: wire.open, schedule: (f) => f(), backoff: () => 0, ...more });
    follower.start();
    return follower;
  }
  const seq = (f: Follower, n: number) => vi.waitFor(() => expect(f.getSnapshot().view.lastSeq).toBe(n));

  it("resumes after a drop from the last event, and takes repeated ones once", async () => {
    const wire = new Wire();
    const f = follow(wire);
    await wire.connection(1);
    wire.send(1, 2, 3);
    await seq(f, 3);
    wire.fail();
    await wire.connection(2);
    wire.send(2, 3, 4);
    await seq(f, 4);
    expect(wire.asked).toEqual([0, 3]);
  });

  it("asks again when an event is missing", async () => {
    const wire = new Wire();
    const f = follow(wire);
    await wire.connection(1);
    wire.send(1, 3);
    await wire.connection(2);
    wire.send(2, 3);
    await seq(f, 3);
    expect(wire.asked).toEqual([0, 1]);
  });

  it("gives up a link that is silent", async () => {
    const wire = new Wire();
    follow(wire, { silenceMs: 20 });
    await vi.waitFor(() => expect(wire.asked.length).toBeGreaterThan(1));
  });

  it("stops at a refusal that a repeat won't change", async () => {
    const wire = new Wire();
    wire.refuse = new ApiError(404, "CONVERSATION_NOT_FOUND", "gone", false);
    const f = follow(wire);
    await vi.waitFor(() => expect(f.getSnapshot()).toMatchObject({ link: "refused", error: { code: "CONVERSATION_NOT_FOUND" } }));
    expect(wire.asked).toEqual([0]);
  });

  it("tries again when the server is away, at once when told so", async () => {
    const wire = new Wire();
    wire.refuse = new ApiError(0, "UNREACHABLE", "", true);
    const f = follow(wire, { backoff: () => 60_000 });
    await vi.waitFor(() => expect(f.getSnapshot().link).toBe("waiting"));
    wire.refuse = undefined;
    f.nudge();
    await vi.waitFor(() => expect(f.getSnapshot().link).toBe("live"));
  });

  it("collects events for one redraw", async () => {
    const wire = new Wire();
    const flushes: (() => void)[] = [];
    const f = follow(wire, { schedule: (x: () => void) => flushes.push(x) });
    await wire.connection(1);
    wire.send(1, 2);
    wire.send(3);
    await vi.waitFor(() => expect(flushes).toHaveLength(1));
    await vi.waitFor(() => {
      flushes.splice(0).forEach((x) => x());
      expect(f.getSnapshot().view.lastSeq).toBe(3);
    });
  });
});
