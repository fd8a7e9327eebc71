import { describe, expect, it, vi } from "vitest";
import { Attachment, type Phase } from "./attachment";
import { binary, output, pieces, Position, type Mode } from "./frames";

function frame(offset: number, text: string): ArrayBuffer {
  const bytes = new TextEncoder().encode(text);
  const buf = new ArrayBuffer(8 + bytes.length);
  new DataView(buf).setBigUint64(0, BigInt(offset));
  new Uint8Array(buf, 8).set(bytes);
  return buf;
}

describe("frames", () => {
  it("reads the offset and the bytes", () => {
    const f = output(frame(2 ** 40 + 7, "hi"))!;
    expect(f.offset).toBe(2 ** 40 + 7);
    expect([...f.bytes]).toEqual([104, 105]);
    expect(output(new ArrayBuffer(7))).toBeUndefined();
  });

  it("Position gives every byte once and says what is missing", () => {
    const p = new Position();
    const take = (offset: number, text: string) => {
      const { fresh, missing } = p.take(offset, new TextEncoder().encode(text));
      return [new TextDecoder().decode(fresh), missing];
    };
    expect(take(0, "abc")).toEqual(["abc", 0]);
    expect(take(0, "abc")).toEqual(["", 0]);
    expect(take(1, "bcde")).toEqual(["de", 0]);
    expect(take(8, "x")).toEqual(["x", 3]);
    expect(p.next).toBe(9);
  });

  it("cuts input without losing any", () => {
    const bytes = Uint8Array.from({ length: 10 }, (_, i) => i);
    expect([...pieces(bytes, 4)].map((x) => x.length)).toEqual([4, 4, 2]);
    expect([...binary("\u00ff\u0041")]).toEqual([255, 65]);
  });
});

/** A socket the test is the server of. */
class FakeSocket {
  readyState = 0;
  binaryType = "";
  sent: (string | Uint8Array)[] = [];
  onopen?: () => void;
  onmessage?: (m: { data: unknown }) => void;
  onclose?: (e?: { code: number }) => void;
  constructor(readonly url: string) {}
  send(x: string | Uint8Array) {
    this.sent.push(x);
  }
  close(code = 1006) {
    if (this.readyState === 3) return;
    this.readyState = 3;
    this.onclose?.({ code });
  }
  accept() {
    this.readyState = 1;
    this.onopen?.();
  }
  say(x: object | ArrayBuffer) {
    this.onmessage?.({ data: x instanceof ArrayBuffer ? x : JSON.stringify(x) });
  }
}

function setup(exists = true) {
  const sockets: FakeSocket[] = [];
  const phases: Phase[] = [];
  const seen: string[] = [];
  const a = new Attachment({
    url: (since: number, mode: Mode) => `${mode}@${since}`,
    write: (b) => seen.push(new TextDecoder().decode(b)),
    gap: (n) => seen.push(`<gap ${n}>`),
    phase: (p) => phases.push(p),
    exists: () => Promise.resolve(exists),
    size: () => ({ cols: 80, rows: 24 }),
    socket: (url) => {
      const s = new FakeSocket(url);
      sockets.push(s);
      return s as unknown as WebSocket;
    },
    backoff: () => 0,
  });
  const nth = (n: number) => vi.waitFor(() => {
    const s = sockets[n];
    if (!s) throw new Error("not yet");
    return s;
  });
  return { a, sockets, phases, seen, nth, state: () => phases.at(-1)?.state };
}

describe("Attachment", () => {
  it("reconnects from the last byte and shows each byte once", async () => {
    const t = setup();
    t.a.attach("write");
    const s = t.sockets[0]!;
    expect(s.url).toBe("write@0");
    s.accept();
    s.say({ type: "ready", mode: "write", offset: 0 });
    expect(JSON.parse(s.sent[0] as string)).toEqual({ type: "resize", cols: 80, rows: 24 });
    s.say(frame(0, "hello"));
    s.close();
    expect(t.state()).toBe("waiting");
    const second = await t.nth(1);
    expect(second.url).toBe("write@5");
    second.accept();
    second.say({ type: "ready" });
    second.say(frame(3, "lo you"));
    expect(t.seen.join("")).toBe("hello you");
    expect(t.state()).toBe("attached");
    t.a.close();
  });

  it.each<[string, object, Phase["state"]]>([
    ["exit", { type: "exit", code: 3 }, "exited"],
    ["displaced", { type: "displaced" }, "displaced"],
    ["held by another", { type: "error", code: "TERMINAL_HELD", message: "x" }, "held"],
    ["unknown terminal", { type: "error", code: "TERMINAL_NOT_FOUND", message: "x" }, "gone"],
    ["anything else", { type: "error", code: "PERMISSION_DENIED", message: "no" }, "failed"],
  ])("%s ends the attachment without another try", async (_, text, want) => {
    const t = setup();
    t.a.attach("write");
    t.sockets[0]!.accept();
    t.sockets[0]!.say(text);
    t.sockets[0]!.close(4000);
    await new Promise((r) => setTimeout(r, 5));
    expect(t.state()).toBe(want);
    expect(t.sockets).toHaveLength(1);
  });

  it.each<[number, Phase["state"]]>([[4001, "displaced"], [4004, "gone"], [4009, "held"]])("a close with %d says it too", (code, want) => {
    const t = setup();
    t.a.attach("write");
    t.sockets[0]!.accept();
    t.sockets[0]!.close(code);
    expect(t.state()).toBe(want);
  });

  it("goes on after a complaint about one frame", async () => {
    const t = setup();
    t.a.attach("write");
    t.sockets[0]!.accept();
    t.sockets[0]!.say({ type: "ready" });
    t.sockets[0]!.say({ type: "error", code: "REQUEST_INVALID", message: "cols" });
    expect(t.state()).toBe("attached");
    t.sockets[0]!.close(1006);
    await t.nth(1);
    t.a.close();
  });

  it("waits for its own ghost before it says that another holds the terminal", async () => {
    const t = setup();
    t.a.attach("write");
    t.sockets[0]!.accept();
    t.sockets[0]!.say({ type: "ready" });
    t.sockets[0]!.close();
    for (let i = 1; i <= 5; i++) {
      const s = await t.nth(i);
      s.accept();
      s.say({ type: "error", code: "TERMINAL_HELD" });
    }
    expect(t.state()).toBe("held");
  });

  it("takes over once, and not again after a drop", async () => {
    const t = setup();
    t.a.attach("takeover");
    expect(t.sockets[0]!.url).toBe("takeover@0");
    t.sockets[0]!.accept();
    t.sockets[0]!.say({ type: "ready", mode: "takeover" });
    t.sockets[0]!.close();
    expect((await t.nth(1)).url).toBe("write@0");
    t.a.close();
  });

  it("says that a terminal is gone when a refused connection means that", async () => {
    const t = setup(false);
    t.a.attach("write");
    t.sockets[0]!.close();
    await vi.waitFor(() => expect(t.state()).toBe("gone"));
  });

  it("shows a gap and goes on at what is left", () => {
    const t = setup();
    t.a.attach("write");
    t.sockets[0]!.accept();
    t.sockets[0]!.say({ type: "ready" });
    t.sockets[0]!.say({ type: "gap", oldest: 100 });
    t.sockets[0]!.say(frame(100, "x"));
    expect(t.seen).toEqual(["<gap 100>", "x"]);
    t.a.close();
  });

  it("sends no input while it watches", () => {
    const t = setup();
    t.a.attach("watch");
    t.sockets[0]!.accept();
    t.sockets[0]!.say({ type: "ready", mode: "watch" });
    t.a.input(new Uint8Array([3]));
    t.a.resize(1, 1);
    expect(t.sockets[0]!.sent).toEqual([]);
    t.a.close();
  });
});
