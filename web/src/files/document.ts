// A file as text, and what can be said before it is shown as such. Pure, apart from the drafts.

export const editorLimit = 2_000_000;

export type Text = { kind: "text"; text: string; crlf: boolean } | { kind: "binary" };

/** Text is valid UTF-8 without NUL. A byte order mark stays part of it, so that saving changes nothing unasked. */
export function decode(bytes: Uint8Array): Text {
  if (bytes.includes(0)) return { kind: "binary" };
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    // Lines end in CRLF only where all do; mixed endings stay as they are, character by character.
    const crlf = text.includes("\r\n") && !/(^|[^\r])\n/.test(text) && !/\r(?!\n)/.test(text);
    return { kind: "text", text, crlf };
  } catch {
    return { kind: "binary" };
  }
}

const pictures: Record<string, string> = {
  png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp", avif: "image/avif", svg: "image/svg+xml", ico: "image/x-icon", bmp: "image/bmp",
};

export const extension = (path: string) => /\.([^./]+)$/.exec(path)?.[1]?.toLowerCase() ?? "";
export const pictureType = (path: string): string | undefined => pictures[extension(path)];

/** Changes not saved yet, kept while other files are looked at. */
export interface Draft { text: string; version: string; crlf: boolean }

const drafts = new Map<string, Draft>();
const key = (id: string, path: string) => `${id}\n${path}`;

export const draft = (id: string, path: string) => drafts.get(key(id, path));

export function keepDraft(id: string, path: string, d: Draft | undefined) {
  if (d) drafts.set(key(id, path), d);
  else drafts.delete(key(id, path));
}

if (typeof window !== "undefined") {
  window.addEventListener("beforeunload", (e) => {
    if (drafts.size > 0) e.preventDefault();
  });
}
