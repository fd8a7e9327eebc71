// Server-sent events as the HTML standard writes them, cut out of a byte stream. Only what AstraBox sends: id, data, comments.

export interface Message {
  id?: string;
  data: string;
}

/** Takes decoded text in any pieces and gives the messages that are complete. */
export class SSEParser {
  private rest = "";
  private data: string[] = [];
  private id: string | undefined;

  push(text: string): Message[] {
    const out: Message[] = [];
    this.rest += text;
    let at = 0;
    for (;;) {
      const end = this.lineEnd(at);
      if (!end) break;
      const line = this.rest.slice(at, end.stop);
      at = end.next;
      if (line === "") {
        if (this.data.length > 0) out.push({ id: this.id, data: this.data.join("\n") });
        this.data = [];
        this.id = undefined;
        continue;
      }
      this.field(line);
    }
    this.rest = this.rest.slice(at);
    return out;
  }

  /** The end of a line: LF, CRLF or CR. A CR at the very end waits for what follows it. */
  private lineEnd(from: number): { stop: number; next: number } | undefined {
    for (let i = from; i < this.rest.length; i++) {
      const c = this.rest.charCodeAt(i);
      if (c === 10) return { stop: i, next: i + 1 };
      if (c === 13) {
        if (i + 1 === this.rest.length) return undefined;
        return { stop: i, next: this.rest.charCodeAt(i + 1) === 10 ? i + 2 : i + 1 };
      }
    }
    return undefined;
  }

  private field(line: string) {
    if (line.startsWith(":")) return;
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (name === "data") this.data.push(value);
    else if (name === "id" && !value.includes("\0")) this.id = value;
  }
}
