// Uploads: two at a time, with progress, each file whole or not at all. An existing file is replaced only when a person says so.

import { api, ApiError, problem, writeHeaders } from "../api";
import { randomId } from "../ui/id";
import { t } from "../strings";
import { dirname, join } from "./paths";

export interface Upload {
  id: string;
  path: string;
  name: string;
  size: number;
  sent: number;
  state: "waiting" | "sending" | "done" | "exists" | "failed" | "cancelled";
  error?: string;
}

/** A file and where it goes below the folder it was dropped on. */
export interface Dropped { file: File; path: string }

type Put = (path: string, file: File, replace: boolean, progress: (sent: number) => void, signal: AbortSignal) => Promise<unknown>;

const atOnce = 2;

export class Uploads {
  private all: Upload[] = [];
  private files = new Map<string, { file: File; replace: boolean; stop: AbortController }>();
  private listeners = new Set<() => void>();
  /** Folders made for this drop, so that each is made once. */
  private folders = new Map<string, Promise<void>>();

  constructor(private put: Put, private mkdir: (path: string) => Promise<unknown>, private changed: (dir: string) => void) {}

  subscribe = (l: () => void) => {
    this.listeners.add(l);
    return () => void this.listeners.delete(l);
  };
  list = () => this.all;

  add(dir: string, dropped: Dropped[]) {
    const fresh = dropped.map(({ file, path }): Upload => {
      const id = randomId();
      this.files.set(id, { file, replace: false, stop: new AbortController() });
      return { id, path: join(dir, path), name: path, size: file.size, sent: 0, state: "waiting" };
    });
    this.folders.clear();
    this.set([...this.all, ...fresh]);
    for (const d of dropped) if (d.path.includes("/")) this.needed(dir, d.path);
    this.pump();
  }

  replace(id: string) {
    const f = this.files.get(id);
    if (f) f.replace = true;
    this.again(id);
  }

  again(id: string) {
    if (!this.files.has(id)) return;
    this.change(id, { state: "waiting", error: undefined });
    this.pump();
  }

  cancel(id: string) {
    this.files.get(id)?.stop.abort();
    this.files.delete(id);
    this.change(id, { state: "cancelled" });
  }

  /** Takes what is over off the list. */
  clear() {
    this.set(this.all.filter((u) => u.state === "waiting" || u.state === "sending"));
  }

  private needed(dir: string, path: string) {
    const parts = path.split("/").slice(0, -1);
    let at = dir;
    let before = Promise.resolve();
    for (const part of parts) {
      at = join(at, part);
      const here = at;
      before = this.folders.get(here) ?? before.then(() => this.mkdir(here)).then(() => {}, (e) => {
        if (!(e instanceof ApiError && e.code === "FILE_EXISTS")) throw e;
      });
      before.catch(() => {});
      this.folders.set(here, before);
    }
  }

  private pump() {
    let busy = this.all.filter((u) => u.state === "sending").length;
    for (const u of this.all) {
      if (busy >= atOnce) return;
      if (u.state !== "waiting") continue;
      busy++;
      this.change(u.id, { state: "sending", sent: 0 });
      void this.one(u);
    }
  }

  private async one(u: Upload) {
    const f = this.files.get(u.id);
    if (!f) return;
    try {
      await this.folders.get(dirname(u.path));
      await this.put(u.path, f.file, f.replace, (sent) => this.change(u.id, { sent }), f.stop.signal);
      this.files.delete(u.id);
      this.change(u.id, { state: "done", sent: u.size });
      this.changed(dirname(u.path));
    } catch (e) {
      if (!f.stop.signal.aborted) {
        const exists = e instanceof ApiError && !f.replace && (e.code === "FILE_EXISTS" || e.status === 412);
        this.change(u.id, exists ? { state: "exists" } : { state: "failed", error: e instanceof Error ? e.message : String(e) });
      }
    }
    this.pump();
  }

  private change(id: string, to: Partial<Upload>) {
    this.set(this.all.map((u) => (u.id === id ? { ...u, ...to } : u)));
  }

  private set(all: Upload[]) {
    this.all = all;
    for (const l of this.listeners) l();
  }
}

/** fetch tells nothing of the progress of a request's body; this does. */
export function put(conversation: string): Put {
  return (path, file, replace, progress, signal) => new Promise((resolve, reject) => {
    const x = new XMLHttpRequest();
    const stop = () => x.abort();
    x.open("PUT", api.contentURL(conversation, path));
    for (const [k, v] of Object.entries(writeHeaders(replace ? undefined : "*"))) x.setRequestHeader(k, v);
    x.upload.onprogress = (e) => progress(e.loaded);
    x.onload = () => (x.status < 300 ? resolve(undefined) : reject(problem(x.status, x.responseText)));
    x.onerror = () => reject(new ApiError(0, "UNREACHABLE", t.conversation.offline, true));
    x.onabort = () => reject(new ApiError(0, "CANCELLED", t.uploads.cancelled, false));
    x.onloadend = () => signal.removeEventListener("abort", stop);
    if (signal.aborted) return reject(new ApiError(0, "CANCELLED", t.uploads.cancelled, false));
    signal.addEventListener("abort", stop);
    x.send(file);
  });
}

/** What was dropped, folders walked through. Must be called within the drop event. */
export async function dropped(data: DataTransfer): Promise<Dropped[]> {
  const entries = [...data.items].map((i) => (i.kind === "file" ? i.webkitGetAsEntry?.() : null)).filter((e) => e !== null && e !== undefined);
  if (entries.length === 0) return [...data.files].map((file) => ({ file, path: file.name }));
  const out: Dropped[] = [];
  const walk = async (e: FileSystemEntry, prefix: string): Promise<void> => {
    if (e.isFile) {
      const file = await new Promise<File>((ok, no) => (e as FileSystemFileEntry).file(ok, no));
      out.push({ file, path: prefix + e.name });
      return;
    }
    const reader = (e as FileSystemDirectoryEntry).createReader();
    for (;;) {
      // A reader gives a hundred at a time.
      const some = await new Promise<FileSystemEntry[]>((ok, no) => reader.readEntries(ok, no));
      if (some.length === 0) return;
      for (const s of some) await walk(s, `${prefix}${e.name}/`);
    }
  };
  for (const e of entries) await walk(e, "");
  return out;
}
