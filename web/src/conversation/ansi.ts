// Output of a command as a person would have seen it on a terminal's last lines: colours, carriage returns, backspaces, erased
// line ends. Not a terminal: the cursor never leaves the last line, and what would move it elsewhere is left out.

/** How a run of characters looks. Colours are palette numbers 0–255 or "#rrggbb". */
export interface Style {
  fg?: number | string;
  bg?: number | string;
  bold?: boolean;
  dim?: boolean;
  italic?: boolean;
  underline?: boolean;
  strike?: boolean;
  inverse?: boolean;
}

export interface Span { text: string; style: Style }
export interface Line { spans: Span[] }

const plain: Style = {};

/** Longest line that is laid out character by character; the rest of a longer one is cut off. */
export const lineLimit = 20_000;

/** Takes output in any pieces. `lines` grows in place; lines that didn't change keep their identity. */
export class OutputScreen {
  readonly lines: Line[] = [];
  private cells: { ch: string; style: Style }[] = [];
  private col = 0;
  private style: Style = plain;
  private rest = "";

  write(text: string) {
    const s = this.rest + text;
    this.rest = "";
    let i = 0;
    while (i < s.length) {
      const c = s.charCodeAt(i);
      if (c === 0x1b) {
        const n = this.escape(s, i);
        if (n < 0) {
          // An escape sequence cut in two waits for the rest, within reason.
          if (s.length - i < 4096) this.rest = s.slice(i);
          break;
        }
        i = n;
        continue;
      }
      if (c === 10) this.newline();
      else if (c === 13) this.col = 0;
      else if (c === 8) this.col = Math.max(0, this.col - 1);
      else if (c === 9) this.tab();
      else if (c >= 32 && c !== 127) {
        const cp = s.codePointAt(i)!;
        const ch = String.fromCodePoint(cp);
        this.put(ch);
        i += ch.length;
        continue;
      }
      i++;
    }
    if (this.cells.length > 0 || this.lastShown) this.showLast();
  }

  private put(ch: string) {
    // A character that joins the one before it takes no cell of its own.
    if (this.col > 0 && this.col <= this.cells.length && joins(ch)) {
      const before = this.cells[this.col - 1]!;
      if (before.ch.length < 32) this.cells[this.col - 1] = { ...before, ch: before.ch + ch };
      return;
    }
    if (this.col >= lineLimit) return;
    while (this.cells.length < this.col) this.cells.push({ ch: " ", style: plain });
    this.cells[this.col++] = { ch, style: this.style };
  }

  private tab() {
    const to = Math.min(lineLimit, (Math.floor(this.col / 8) + 1) * 8);
    while (this.col < to) {
      if (this.col >= this.cells.length) this.cells.push({ ch: " ", style: plain });
      this.col++;
    }
  }

  private newline() {
    this.showLast();
    this.lastShown = false;
    this.cells = [];
    this.col = 0;
  }

  private lastShown = false;

  /** Puts the line in progress into `lines`. An empty one after the last newline isn't shown. */
  private showLast() {
    const line = { spans: joinCells(this.cells) };
    if (this.lastShown) this.lines[this.lines.length - 1] = line;
    else this.lines.push(line);
    this.lastShown = true;
  }

  /** Handles an escape sequence at i and returns where text goes on, or -1 when it isn't complete. */
  private escape(s: string, i: number): number {
    if (i + 1 >= s.length) return -1;
    const kind = s[i + 1]!;
    if (kind === "[") {
      let j = i + 2;
      while (j < s.length && !(s.charCodeAt(j) >= 0x40 && s.charCodeAt(j) <= 0x7e)) j++;
      if (j >= s.length) return -1;
      this.csi(s[j]!, s.slice(i + 2, j));
      return j + 1;
    }
    if (kind === "]" || kind === "P" || kind === "_" || kind === "^") {
      // Titles, links, device strings: up to BEL or ESC \.
      for (let j = i + 2; j < s.length; j++) {
        if (s.charCodeAt(j) === 7) return j + 1;
        if (s.charCodeAt(j) === 0x1b) {
          if (j + 1 >= s.length) return -1;
          return s[j + 1] === "\\" ? j + 2 : j;
        }
      }
      return -1;
    }
    if ("()*+#% ".includes(kind)) return i + 2 < s.length ? i + 3 : -1;
    return i + 2;
  }

  private csi(final: string, body: string) {
    if (final === "m") {
      if (!/^[<>=?]/.test(body)) this.style = sgr(this.style, body);
      return;
    }
    if (/[^0-9;]/.test(body)) return;
    const n = Math.min(lineLimit, Number(body.split(";")[0] || "1"));
    switch (final) {
      case "K":
        this.eraseLine(Number(body || "0"));
        return;
      case "G":
        this.col = Math.max(0, n - 1);
        return;
      case "C":
        this.col = Math.min(lineLimit, this.col + n);
        return;
      case "D":
        this.col = Math.max(0, this.col - n);
        return;
      case "P":
        this.cells.splice(this.col, n);
    }
  }

  private eraseLine(mode: number) {
    if (mode === 0) this.cells.length = Math.min(this.cells.length, this.col);
    else if (mode === 2) this.cells = [];
    else for (let k = 0; k <= this.col && k < this.cells.length; k++) this.cells[k] = { ch: " ", style: plain };
  }
}

/** Changes a style as the numbers of an SGR sequence say. */
export function sgr(from: Style, body: string): Style {
  const codes = body.split(/[;:]/).map((x) => (x === "" ? 0 : Number(x)));
  let s: Style = { ...from };
  for (let i = 0; i < codes.length; i++) {
    const c = codes[i]!;
    if (c === 0) s = {};
    else if (c === 1) s.bold = true;
    else if (c === 2) s.dim = true;
    else if (c === 3) s.italic = true;
    else if (c === 4) s.underline = true;
    else if (c === 7) s.inverse = true;
    else if (c === 9) s.strike = true;
    else if (c === 22) s.bold = s.dim = undefined;
    else if (c === 23) s.italic = undefined;
    else if (c === 24) s.underline = undefined;
    else if (c === 27) s.inverse = undefined;
    else if (c === 29) s.strike = undefined;
    else if (c >= 30 && c <= 37) s.fg = c - 30;
    else if (c >= 90 && c <= 97) s.fg = c - 90 + 8;
    else if (c === 39) s.fg = undefined;
    else if (c >= 40 && c <= 47) s.bg = c - 40;
    else if (c >= 100 && c <= 107) s.bg = c - 100 + 8;
    else if (c === 49) s.bg = undefined;
    else if (c === 38 || c === 48) {
      let colour: number | string | undefined;
      if (codes[i + 1] === 5) {
        colour = clamp(codes[i + 2]);
        i += 2;
      } else if (codes[i + 1] === 2) {
        const hex = [codes[i + 2], codes[i + 3], codes[i + 4]].map((v) => clamp(v).toString(16).padStart(2, "0"));
        colour = `#${hex.join("")}`;
        i += 4;
      }
      if (c === 38) s.fg = colour;
      else s.bg = colour;
    }
  }
  return Object.values(s).some((v) => v !== undefined) ? s : plain;
}

const clamp = (n: number | undefined) => Math.max(0, Math.min(255, Number.isFinite(n) ? n! : 0));

const joins = (ch: string) => ch.charCodeAt(0) >= 0x300 && (ch === "\u200d" || ch === "\ufe0f" || /^\p{M}$/u.test(ch));

function joinCells(cells: { ch: string; style: Style }[]): Span[] {
  const spans: Span[] = [];
  for (const { ch, style } of cells) {
    const last = spans.at(-1);
    if (last && last.style === style) last.text += ch;
    else spans.push({ text: ch, style });
  }
  return spans;
}

/** The CSS colour of a palette number: 0–15 come from the theme, the rest are fixed. */
export function colour(c: number | string): string {
  if (typeof c === "string") return c;
  if (c < 16) return `var(--ansi-${c})`;
  if (c >= 232) {
    const g = 8 + (c - 232) * 10;
    return `rgb(${g} ${g} ${g})`;
  }
  const n = c - 16;
  const level = (v: number) => (v === 0 ? 0 : 55 + v * 40);
  return `rgb(${level(Math.floor(n / 36))} ${level(Math.floor(n / 6) % 6)} ${level(n % 6)})`;
}
