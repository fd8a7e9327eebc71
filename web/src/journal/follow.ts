// Follows a conversation's journal for as long as it is shown: from the first event to the last, over dropped
// connections, silent networks and server restarts, each event once and in order.

import { ApiError, type JournalEvent } from "../api";
import { apply, emptyView, JournalGap, type View } from "./view";
import { SSEParser } from "./sse";

export type Link = "connecting" | "live" | "waiting" | "refused";

export interface Snapshot {
  view: View;
  link: Link;
  /** Why the link is refused: the conversation is gone, or this page may not see it. */
  error?: ApiError;
}

export interface FollowOptions {
  open: (after: number, signal: AbortSignal) => Promise<Response>;
  /** A link that says nothing for so long is dead: the server sends a comment every 15 s. */
  silenceMs?: number;
  /** Collects changes for one redraw. */
  schedule?: (flush: () => void) => void;
  backoff?: (attempt: number) => number;
}

const defaultBackoff = (attempt: number) => Math.min(10_000, 300 * 2 ** attempt) * (0.75 + Math.random() / 2);

/** The journal of one conversation as an external store for React. */
export class Follower {
  private snap: Snapshot = { view: emptyView, link: "connecting" };
  private pending: JournalEvent[] = [];
  /** Sequence number of the newest event received, applied or not. */
  private received = 0;
  private scheduled = false;
  private listeners = new Set<() => void>();
  private stopper: AbortController | undefined;
  private wake: (() => void) | undefined;

  constructor(private options: FollowOptions) {}

  getSnapshot = () => this.snap;

  subscribe = (listener: () => void) => {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  };

  start() {
    if (this.stopper) return;
    const stopper = new AbortController();
    this.stopper = stopper;
    void this.run(stopper.signal);
  }

  stop() {
    this.stopper?.abort();
    this.stopper = undefined;
  }

  /** Tries at once instead of waiting out the backoff: the network is back, the page is seen again. */
  nudge() {
    this.wake?.();
  }

  private async run(signal: AbortSignal) {
    let attempt = 0;
    while (!signal.aborted) {
      try {
        if (await this.once(signal)) attempt = 0;
      } catch (e) {
        if (signal.aborted) return;
        if (e instanceof ApiError && refusal(e)) {
          this.set({ link: "refused", error: e });
          return;
        }
      }
      if (signal.aborted) return;
      this.set({ link: "waiting" });
      await this.pause((this.options.backoff ?? defaultBackoff)(attempt++), signal);
      if (!signal.aborted) this.set({ link: "connecting" });
    }
  }

  /** One connection, until it ends. Reports whether anything came. */
  private async once(signal: AbortSignal): Promise<boolean> {
    const link = new AbortController();
    const stop = () => link.abort();
    signal.addEventListener("abort", stop, { once: true });
    let silence: ReturnType<typeof setTimeout> | undefined;
    const alive = () => {
      clearTimeout(silence);
      silence = setTimeout(stop, this.options.silenceMs ?? 40_000);
    };
    let came = false;
    try {
      alive();
      const res = await this.options.open(this.received, link.signal);
      if (!res.body) throw new Error("no body");
      this.set({ link: "live", error: undefined });
      const reader = res.body.getReader();
      const decoder = new TextDecoder();
      const parser = new SSEParser();
      for (;;) {
        alive();
        const { done, value } = await reader.read();
        if (done) return came;
        came = true;
        for (const m of parser.push(decoder.decode(value, { stream: true }))) this.take(JSON.parse(m.data) as JournalEvent);
      }
    } finally {
      clearTimeout(silence);
      signal.removeEventListener("abort", stop);
      // Also when an event couldn't be used: the connection must not stay behind.
      link.abort();
    }
  }

  private take(e: JournalEvent) {
    if (typeof e.seq !== "number" || e.seq <= this.received) return;
    // A hole means that this connection can't be trusted: the next one asks again from where we are.
    if (e.seq !== this.received + 1) throw new JournalGap(this.received, e.seq);
    this.received = e.seq;
    this.pending.push(e);
    if (this.scheduled) return;
    this.scheduled = true;
    (this.options.schedule ?? frame)(() => {
      this.scheduled = false;
      const batch = this.pending;
      this.pending = [];
      this.set({ view: apply(this.snap.view, batch) });
    });
  }

  private pause(ms: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        signal.removeEventListener("abort", done);
        this.wake = undefined;
        resolve();
      };
      const timer = setTimeout(done, ms);
      signal.addEventListener("abort", done, { once: true });
      this.wake = done;
    });
  }

  private set(change: Partial<Snapshot>) {
    this.snap = { ...this.snap, ...change };
    for (const l of this.listeners) l();
  }
}

/** Answers that a repeat won't change. */
const refusal = (e: ApiError) => e.status >= 400 && e.status < 500 && e.status !== 408 && e.status !== 429;

/** Once per frame; in a hidden tab, where frames don't come, soon. */
function frame(flush: () => void) {
  if (document.hidden) setTimeout(flush, 100);
  else {
    let ran = false;
    const once = () => {
      if (!ran) {
        ran = true;
        flush();
      }
    };
    requestAnimationFrame(once);
    setTimeout(once, 200);
  }
}
