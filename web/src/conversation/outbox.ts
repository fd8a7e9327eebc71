// Messages on their way. One leaves this list when it is seen in the journal; until then it is kept across a reload, under the id
// that makes sending it again harmless.

import { useSyncExternalStore } from "react";
import { api, ApiError } from "../api";
import { randomId } from "../ui/id";
import { load, save } from "../ui/storage";

export interface Outgoing {
  id: string;
  text: string;
  /** unsure: the page was closed while it was being sent. */
  state: "sending" | "failed" | "unsure";
  error?: string;
}

type Send = (conversation: string, id: string, text: string) => Promise<unknown>;

const none: Outgoing[] = [];

export class Outbox {
  private lists = new Map<string, Outgoing[]>();
  private chains = new Map<string, Promise<void>>();
  private listeners = new Set<() => void>();

  constructor(private send: Send, private wait = (attempt: number) => new Promise<void>((r) => setTimeout(r, 500 * 2 ** attempt))) {}

  subscribe = (l: () => void) => {
    this.listeners.add(l);
    return () => void this.listeners.delete(l);
  };

  list(conversation: string): Outgoing[] {
    let l = this.lists.get(conversation);
    if (!l) {
      const before = load<Outgoing[]>(`outbox.${conversation}`, []);
      l = before.length === 0 ? none : before.map((m) => (m.state === "sending" ? { ...m, state: "unsure" as const } : m));
      this.lists.set(conversation, l);
    }
    return l;
  }

  add(conversation: string, text: string) {
    const m: Outgoing = { id: randomId(), text, state: "sending" };
    this.set(conversation, [...this.list(conversation), m]);
    this.enqueue(conversation, m);
  }

  retry(conversation: string, id: string) {
    const m = this.list(conversation).find((x) => x.id === id);
    if (!m || m.state === "sending") return;
    this.change(conversation, id, { state: "sending", error: undefined });
    this.enqueue(conversation, m);
  }

  discard(conversation: string, id: string) {
    this.set(conversation, this.list(conversation).filter((m) => m.id !== id));
  }

  /** Forgets what the journal has. */
  settle(conversation: string, accepted: ReadonlySet<string>) {
    const l = this.list(conversation);
    if (l.some((m) => accepted.has(m.id))) this.set(conversation, l.filter((m) => !accepted.has(m.id)));
  }

  /** One at a time, so that messages arrive in the order in which they were written. */
  private enqueue(conversation: string, m: Outgoing) {
    const before = this.chains.get(conversation) ?? Promise.resolve();
    this.chains.set(conversation, before.then(() => this.deliver(conversation, m)));
  }

  private async deliver(conversation: string, m: Outgoing) {
    for (let attempt = 0; ; attempt++) {
      if (!this.list(conversation).some((x) => x.id === m.id)) return;
      try {
        await this.send(conversation, m.id, m.text);
        return;
      } catch (e) {
        const again = e instanceof ApiError ? e.unreachable || e.status >= 500 || e.retryable : false;
        if (!again || attempt >= 4) {
          this.change(conversation, m.id, { state: "failed", error: e instanceof Error ? e.message : String(e) });
          return;
        }
        await this.wait(attempt);
      }
    }
  }

  private change(conversation: string, id: string, to: Partial<Outgoing>) {
    this.set(conversation, this.list(conversation).map((m) => (m.id === id ? { ...m, ...to } : m)));
  }

  private set(conversation: string, l: Outgoing[]) {
    this.lists.set(conversation, l.length === 0 ? none : l);
    save(`outbox.${conversation}`, l);
    for (const f of this.listeners) f();
  }
}

export const outbox = new Outbox((c, id, text) => api.send(c, id, text));

export const useOutbox = (conversation: string) => useSyncExternalStore(outbox.subscribe, () => outbox.list(conversation));
