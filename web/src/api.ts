// Every request the console makes, with the types of what comes back. Nothing else in the console calls fetch
// (uploads apart: they need XMLHttpRequest for progress, see files/uploads.ts).

export type RuntimeState =
  | "none" | "starting" | "ready" | "pausing" | "paused" | "resuming" | "terminating" | "lost";

export type TurnState =
  | "queued" | "delivering" | "running" | "interrupting"
  | "done" | "interrupted" | "failed" | "limit" | "refused" | "undelivered" | "unknown";

export interface Conversation {
  id: string;
  title: string;
  agent: string;
  environment: string;
  state: "active" | "archived" | "deleting" | "deleted";
  runtime: { state: RuntimeState; sandbox_id?: string; reason?: string; since?: string };
  turn: { id: string; state: TurnState } | null;
  queued: number;
  last_seq: number;
  created_at: string;
  updated_at: string;
  destruction?: Destruction;
}

export interface Destruction {
  sandbox_id: string;
  outcome: string;
  detail?: unknown;
}

export interface Turn {
  id: string;
  conversation_id: string;
  client_message_id: string;
  text: string;
  state: TurnState;
  error?: Failure | null;
  created_at: string;
  ended_at?: string | null;
}

export interface Failure {
  code: string;
  message: string;
}

export type EndReason = "done" | "interrupted" | "failed" | "limit" | "refused" | "undelivered" | "unknown";

interface EventData {
  "conversation.created": Record<string, unknown>;
  "message.accepted": { text: string; client_message_id: string };
  "sandbox.starting": { step?: string };
  "sandbox.ready": { sandbox_id: string; ms?: number };
  "sandbox.pausing": Record<string, unknown>;
  "sandbox.paused": Record<string, unknown>;
  "sandbox.resuming": Record<string, unknown>;
  "sandbox.resumed": { sandbox_id: string; ms?: number };
  "sandbox.lost": { reason?: string };
  "sandbox.failed": { reason?: string };
  "sandbox.terminated": { sandbox_id?: string; outcome?: string; detail?: string };
  "turn.started": Record<string, unknown>;
  "text.delta": { text: string };
  "text.done": Record<string, unknown>;
  "thinking.delta": { text: string };
  "tool.started": { call: string; name?: string; kind?: string; title?: string; input?: unknown };
  "tool.output": { call: string; mode: "append" | "replace"; text: string };
  "tool.ended": { call: string; status: "completed" | "failed"; output?: unknown; exit_code?: number | null; cwd?: string; duration_ms?: number | null };
  notice: { level?: string; text: string };
  "turn.ended": { reason: EndReason; error?: Failure | null };
}

export type EventType = keyof EventData;

/** One entry of a conversation's journal. `seq` counts from 1 without gaps. */
export type JournalEvent = {
  [T in EventType]: { seq: number; type: T; turn_id?: string; at: string; data: EventData[T] };
}[EventType];

export interface FileEntry {
  name: string;
  path: string;
  type: "file" | "directory" | "symlink" | "other";
  size: number;
  mode: string;
  owner: string;
  group: string;
  modified_at: string;
  target?: string;
  version: string;
}

export type Content = { tooLarge: number } | { tooLarge?: undefined; version: string; blob: Blob };

export interface TerminalInfo {
  id: string;
  state?: "live" | "gone";
  created_at: string;
}

export interface Environment {
  id: string;
  name: string;
  /** Which Agent program its conversations run. */
  program?: string;
}

export interface Agent {
  id: string;
  name: string;
  environment?: string;
  description?: string;
}

export interface Finding {
  id: string;
  ok: boolean;
  severity?: string;
  summary: string;
  fix?: string;
}

/** A refusal of the server, or the failure to reach it (status 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly retryable: boolean,
    readonly requestId?: string,
  ) {
    super(message);
    this.name = "ApiError";
  }

  get unreachable() {
    return this.status === 0;
  }
}

const root = "/api/v1";

/** Reads a problem document into an error; anything else becomes its status line. */
export function problem(status: number, body: string): ApiError {
  try {
    const p = JSON.parse(body) as Record<string, unknown>;
    const text = [p.detail, p.title].find((v) => typeof v === "string" && v !== "") as string | undefined;
    return new ApiError(status, String(p.code ?? ""), text ?? `HTTP ${status}`, p.retryable === true,
      typeof p.request_id === "string" ? p.request_id : undefined);
  } catch {
    return new ApiError(status, "", `HTTP ${status}`, status >= 500);
  }
}

async function call(method: string, path: string, init: RequestInit = {}): Promise<Response> {
  let res: Response;
  try {
    res = await fetch(root + path, { ...init, method, credentials: "same-origin" });
  } catch (cause) {
    if (init.signal?.aborted) throw cause;
    throw new ApiError(0, "UNREACHABLE", "The server can't be reached.", true);
  }
  if (!res.ok) throw problem(res.status, await res.text().catch(() => ""));
  return res;
}

async function json<T>(method: string, path: string, body?: unknown, init: RequestInit = {}): Promise<T> {
  const headers = new Headers(init.headers);
  if (body !== undefined) headers.set("Content-Type", "application/json");
  const res = await call(method, path, { ...init, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await res.text();
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

const conv = (id: string) => `/conversations/${encodeURIComponent(id)}`;
const query = (values: Record<string, string | number | undefined>) => {
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(values)) if (v !== undefined) q.set(k, String(v));
  const s = q.toString();
  return s === "" ? "" : `?${s}`;
};

/** Servers write an empty list as null now and then. */
const items = <T>(r: { items?: T[] | null }) => r.items ?? [];

export const api = {
  conversations: (cursor?: string, signal?: AbortSignal) =>
    json<{ items: Conversation[] | null; next_cursor?: string | null }>("GET", `/conversations${query({ limit: 50, cursor })}`, undefined, { signal }),
  conversation: (id: string, signal?: AbortSignal) => json<Conversation>("GET", conv(id), undefined, { signal }),
  create: (body: { agent?: string; title?: string }, key: string) =>
    json<Conversation>("POST", "/conversations", body, { headers: { "Idempotency-Key": key } }),
  rename: (id: string, title: string) => json<Conversation>("PATCH", conv(id), { title }),
  /** `confirmed` is false while the server has no proof yet that the sandbox is gone. */
  remove: async (id: string): Promise<{ confirmed: boolean; conversation?: Conversation }> => {
    const res = await call("DELETE", conv(id));
    const text = await res.text();
    return { confirmed: res.status !== 202, conversation: text === "" ? undefined : (JSON.parse(text) as Conversation) };
  },

  send: (id: string, clientMessageId: string, text: string) =>
    json<Turn>("POST", `${conv(id)}/messages`, { client_message_id: clientMessageId, text }),
  interrupt: (id: string) => json<unknown>("POST", `${conv(id)}/interrupt`),
  stream: (id: string, after: number, signal: AbortSignal) =>
    call("GET", `${conv(id)}/events/stream${query({ after })}`, {
      signal,
      headers: { Accept: "text/event-stream", ...(after > 0 ? { "Last-Event-ID": String(after) } : {}) },
      cache: "no-store",
    }),

  list: async (id: string, path: string, signal?: AbortSignal) => {
    const r = await json<{ path: string; entries: FileEntry[] | null }>("GET", `${conv(id)}/files${query({ path, depth: 1 })}`, undefined, { signal });
    return r.entries ?? [];
  },
  archiveURL: (id: string, path: string) => `${root}${conv(id)}/files/archive${query({ path, format: "zip" })}`,
  contentURL: (id: string, path: string) => `${root}${conv(id)}/files/content${query({ path })}`,
  /** Reads a file. One with more than `most` bytes isn't transferred: its size comes back instead. */
  content: async (id: string, path: string, most: number, signal?: AbortSignal): Promise<Content> => {
    const res = await call("GET", `${conv(id)}/files/content${query({ path })}`, { signal, cache: "no-store" });
    const size = Number(res.headers.get("Content-Length") ?? "0");
    if (size > most) {
      void res.body?.cancel();
      return { tooLarge: size };
    }
    return { version: unquote(res.headers.get("ETag") ?? ""), blob: await res.blob() };
  },
  /** Writes a file. `version` "*" means that it must not exist yet; undefined writes whatever is there. */
  write: (id: string, path: string, body: BodyInit, version?: string) =>
    call("PUT", `${conv(id)}/files/content${query({ path })}`, { body, headers: writeHeaders(version) })
      .then((r) => r.json() as Promise<FileEntry>),
  mkdir: (id: string, path: string) => json<unknown>("POST", `${conv(id)}/files/mkdir`, { path }),
  move: (id: string, from: string, to: string) => json<unknown>("POST", `${conv(id)}/files/move`, { from, to }),
  deleteFiles: (id: string, paths: string[]) => json<unknown>("POST", `${conv(id)}/files/delete`, { paths }),

  terminals: (id: string) => json<{ items: TerminalInfo[] | null }>("GET", `${conv(id)}/terminals`).then(items).then((l) => l.filter((x) => x.state !== "gone")),
  createTerminal: (id: string, size: { cols: number; rows: number }) =>
    json<TerminalInfo>("POST", `${conv(id)}/terminals`, size),
  deleteTerminal: (id: string, tid: string) => json<unknown>("DELETE", `${conv(id)}/terminals/${encodeURIComponent(tid)}`),
  attachURL: (id: string, tid: string, since: number, mode: string) => {
    const u = new URL(`${root}${conv(id)}/terminals/${encodeURIComponent(tid)}/attach${query({ since, mode })}`, location.href);
    u.protocol = u.protocol === "https:" ? "wss:" : "ws:";
    return u.toString();
  },

  environments: () => json<{ items: Environment[] | null }>("GET", "/environments").then(items),
  agents: () => json<{ items: Agent[] | null }>("GET", "/agents").then(items),
  doctor: () => json<{ items: Finding[] | null }>("GET", "/doctor").then(items),
};

export function writeHeaders(version?: string): Record<string, string> {
  const h: Record<string, string> = { "Content-Type": "application/octet-stream" };
  if (version === "*") h["If-None-Match"] = "*";
  else if (version !== undefined) h["If-Match"] = `"${version}"`;
  return h;
}

export function unquote(etag: string): string {
  const s = etag.replace(/^W\//, "");
  return s.length >= 2 && s.startsWith('"') && s.endsWith('"') ? s.slice(1, -1) : s;
}
