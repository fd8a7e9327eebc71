// The frames of a terminal attachment (`astrabox.terminal.v1`), as bytes and objects.

export const subprotocol = "astrabox.terminal.v1";

/** How the server closes an attachment, beside the standard codes. */
export const closeCodes = { refused: 4000, displaced: 4001, notFound: 4004, held: 4009 };

export type Mode = "write" | "takeover" | "watch";

export type Control =
  | { type: "ready"; mode?: string; offset?: number }
  | { type: "exit"; code?: number | null }
  | { type: "displaced" }
  | { type: "gap"; oldest: number }
  | { type: "error"; code?: string; message?: string }
  | { type: "pong" };

/** Splits a binary frame into where its bytes stand in the terminal's output and the bytes. */
export function output(frame: ArrayBuffer): { offset: number; bytes: Uint8Array } | undefined {
  if (frame.byteLength < 8) return undefined;
  const offset = Number(new DataView(frame).getBigUint64(0, false));
  if (!Number.isSafeInteger(offset)) return undefined;
  return { offset, bytes: new Uint8Array(frame, 8) };
}

/** Reads a text frame; one that isn't understood is undefined and ignored. */
export function control(text: string): Control | undefined {
  try {
    const c = JSON.parse(text) as Control;
    return typeof c === "object" && c !== null && typeof c.type === "string" ? c : undefined;
  } catch {
    return undefined;
  }
}

/** Where output stands: gives each byte to the screen once, whatever is sent again after a reconnect. */
export class Position {
  constructor(public next = 0) {}

  /** The part of a frame that wasn't seen yet, and how many bytes were skipped over before it. */
  take(offset: number, bytes: Uint8Array): { fresh: Uint8Array; missing: number } {
    const end = offset + bytes.length;
    if (end <= this.next) return { fresh: bytes.subarray(bytes.length), missing: 0 };
    const from = Math.max(0, this.next - offset);
    const missing = Math.max(0, offset - this.next);
    this.next = end;
    return { fresh: bytes.subarray(from), missing };
  }
}

/** Cuts input so that one paste doesn't become one huge frame. */
export function* pieces(bytes: Uint8Array, max = 32 * 1024): Generator<Uint8Array> {
  for (let i = 0; i < bytes.length; i += max) yield bytes.subarray(i, i + max);
}

/** What xterm calls a binary string: one byte per character. */
export const binary = (s: string) => Uint8Array.from(s, (c) => c.charCodeAt(0) & 0xff);
