// One terminal, attached for as long as it is shown: reconnects from the last byte seen, and knows the states a person should see.

import { closeCodes, control, output, pieces, Position, subprotocol, type Mode } from "./frames";

export type Phase =
  | { state: "connecting" }
  | { state: "attached"; mode: Mode }
  | { state: "waiting" }
  | { state: "held" }
  | { state: "displaced" }
  | { state: "exited"; code: number | null }
  | { state: "gone" }
  | { state: "failed"; message: string };

export interface AttachmentOptions {
  url: (since: number, mode: Mode) => string;
  write: (bytes: Uint8Array) => void;
  /** Output was lost on the way: the buffer in the sandbox holds only so much. */
  gap: (bytes: number | undefined) => void;
  phase: (p: Phase) => void;
  /** Whether the terminal still exists: asked when the server refuses the connection without a word. */
  exists: () => Promise<boolean>;
  size: () => { cols: number; rows: number };
  socket?: (url: string, protocol: string) => WebSocket;
  backoff?: (attempt: number) => number;
}

const heartbeatMs = 20_000;

export class Attachment {
  private ws: WebSocket | undefined;
  private position = new Position();
  private mode: Mode = "write";
  private attempt = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private beat: ReturnType<typeof setInterval> | undefined;
  private heard = true;
  private over = false;
  private closed = false;
  private complaint: string | undefined;
  private wasWriter = false;
  private heldTries = 0;
  private current: Phase = { state: "connecting" };

  constructor(private o: AttachmentOptions) {}

  /** Connects, or connects again in another mode. */
  attach(mode: Mode) {
    if (this.closed) return;
    this.mode = mode;
    this.over = false;
    this.attempt = 0;
    this.wasWriter = false;
    this.connect();
  }

  input(bytes: Uint8Array) {
    if (this.ws?.readyState !== WebSocket.OPEN || this.current.state !== "attached" || this.mode === "watch") return;
    for (const p of pieces(bytes)) this.ws.send(p as Uint8Array<ArrayBuffer>);
  }

  resize(cols: number, rows: number) {
    if (this.current.state === "attached" && this.mode !== "watch") this.text({ type: "resize", cols, rows });
  }

  /** Connects at once instead of waiting out the backoff. */
  nudge() {
    if (this.current.state === "waiting") this.connect();
  }

  close() {
    this.closed = true;
    this.drop();
  }

  private connect() {
    this.drop();
    this.to({ state: "connecting" });
    this.complaint = undefined;
    const ws = (this.o.socket ?? ((u, p) => new WebSocket(u, p)))(this.o.url(this.position.next, this.mode), subprotocol);
    ws.binaryType = "arraybuffer";
    this.ws = ws;
    let opened = false;
    ws.onopen = () => {
      opened = true;
      this.heard = true;
      this.beat = setInterval(() => this.heartbeat(ws), heartbeatMs);
    };
    ws.onmessage = (m: MessageEvent<ArrayBuffer | string>) => {
      if (ws !== this.ws) return;
      this.heard = true;
      if (typeof m.data === "string") this.control(m.data);
      else this.output(m.data);
    };
    ws.onclose = (e?: CloseEvent) => {
      if (ws !== this.ws) return;
      this.drop();
      if (this.closed || this.over) return;
      switch (e?.code) {
        case closeCodes.displaced:
          return this.end({ state: "displaced" });
        case closeCodes.notFound:
          return this.end({ state: "gone" });
        case closeCodes.held:
          return this.error("TERMINAL_HELD", "");
        case closeCodes.refused:
          if (this.complaint !== undefined) return this.end({ state: "failed", message: this.complaint });
      }
      void this.lost(opened);
    };
  }

  private output(frame: ArrayBuffer) {
    const f = output(frame);
    if (!f) return;
    const { fresh, missing } = this.position.take(f.offset, f.bytes);
    if (missing > 0) this.o.gap(missing);
    if (fresh.length > 0) this.o.write(fresh);
  }

  private control(text: string) {
    const c = control(text);
    switch (c?.type) {
      case "ready": {
        this.attempt = 0;
        // A take-over happened; a later reconnect must not take the terminal from whoever has it by then.
        if (this.mode === "takeover") this.mode = "write";
        this.heldTries = 0;
        this.wasWriter = this.mode === "write";
        this.to({ state: "attached", mode: this.mode });
        const { cols, rows } = this.o.size();
        this.resize(cols, rows);
        return;
      }
      case "exit":
        this.end({ state: "exited", code: c.code ?? null });
        return;
      case "displaced":
        this.end({ state: "displaced" });
        return;
      case "gap":
        this.o.gap(c.oldest > this.position.next ? c.oldest - this.position.next : undefined);
        this.position.next = c.oldest;
        return;
      case "error":
        this.error(c.code ?? "", c.message ?? "");
    }
  }

  private error(code: string, message: string) {
    switch (code) {
      case "TERMINAL_HELD":
      case "ALREADY_CONNECTED":
        // After a dropped network the server may still hold the connection that we had ourselves, for a moment.
        if (this.wasWriter && this.heldTries < 4) {
          this.heldTries++;
          this.drop();
          void this.lost(true);
          return;
        }
        this.end({ state: "held" });
        return;
      case "TERMINAL_NOT_FOUND":
        this.end({ state: "gone" });
        return;
      case "TERMINAL_REPLAY_GAP":
      case "TERMINAL_OFFSET_INVALID":
        // What was seen doesn't fit what is there: begin again with what is there.
        this.o.gap(undefined);
        this.position.next = 0;
        return;
      case "SERVER_STOPPING":
      case "SANDBOX_UNREACHABLE":
        this.complaint = undefined;
        return; // the close that follows leads to another try
      default:
        // Some complain about one frame only; whether it is over is said by the close.
        this.complaint = message || code;
    }
  }

  /** A state that only a person leads out of. */
  private end(p: Phase) {
    this.over = true;
    this.wasWriter = false;
    this.drop();
    this.to(p);
  }

  private async lost(opened: boolean) {
    this.to({ state: "waiting" });
    // A refused upgrade and a network that is down look the same from here; the list tells them apart.
    if (!opened) {
      let exists = true;
      try {
        exists = await this.o.exists();
      } catch {
        // Not reachable: that is what the wait is for.
      }
      if (this.closed || this.over || this.current.state !== "waiting") return;
      if (!exists) {
        this.end({ state: "gone" });
        return;
      }
    }
    const wait = this.o.backoff ?? ((n: number) => Math.min(10_000, 300 * 2 ** n));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), wait(this.attempt++));
  }

  private heartbeat(ws: WebSocket) {
    if (!this.heard) {
      ws.close();
      // A dead network may take minutes to report the close.
      if (ws === this.ws) ws.onclose?.(new CloseEvent("close", { code: 1006 }));
      return;
    }
    this.heard = false;
    this.text({ type: "ping" });
  }

  private text(value: object) {
    if (this.ws?.readyState === WebSocket.OPEN) this.ws.send(JSON.stringify(value));
  }

  private drop() {
    clearTimeout(this.timer);
    clearInterval(this.beat);
    const ws = this.ws;
    this.ws = undefined;
    if (ws && ws.readyState <= WebSocket.OPEN) ws.close();
  }

  private to(p: Phase) {
    this.current = p;
    this.o.phase(p);
  }
}
