import { describe, expect, it } from "vitest";
import { colour, OutputScreen, sgr, type Style } from "./ansi";

function lines(...chunks: string[]): string[] {
  const s = new OutputScreen();
  for (const c of chunks) s.write(c);
  return s.lines.map((l) => l.spans.map((x) => x.text).join(""));
}

describe("OutputScreen", () => {
  it.each<[string, string, string[]]>([
    ["nothing", "", []],
    ["lines without a last newline", "a\nb", ["a", "b"]],
    ["no empty line after the last newline", "a\n", ["a"]],
    ["empty lines between", "a\n\n\nb\n", ["a", "", "", "b"]],
    ["an empty first line", "\na", ["", "a"]],
    ["a progress bar", "10%\r50%\r100%\ndone\n", ["100%", "done"]],
    ["a shorter text over a longer one", "12345\rab", ["ab345"]],
    ["an erased line", "working...\r\x1b[Kok\n", ["ok"]],
    ["all of a line erased", "working\x1b[2K\rok", ["ok"]],
    ["CRLF", "a\r\nb\r\n", ["a", "b"]],
    ["backspace", "abc\b\bX", ["aXc"]],
    ["tabs", "a\tb\n12345678\tc", ["a       b", "12345678        c"]],
    ["cursor to a column", "abcdef\x1b[3GX", ["abXdef"]],
    ["moves elsewhere are left out", "a\x1b[2J\x1b[1;1Hb\x1b[5A", ["ab"]],
    ["titles and links", "\x1b]0;title\x07x\x1b]8;;http://h\x1b\\y", ["xy"]],
    ["private modes", "\x1b[?25la\x1b[?2004h", ["a"]],
    ["combining characters", "e\u0301x\r\u0061", ["ax"]],
    ["characters outside the plane", "🙂\rok", ["ok"]],
    ["other control characters", "a\x07\x00b\x7f", ["ab"]],
  ])("%s", (_, text, want) => expect(lines(text)).toEqual(want));

  it("gives the same lines whatever the pieces", () => {
    const text = "\x1b[1;31mred\x1b[0m ok\r\x1b[Kdone\n\x1b]0;t\x1b\\next\x1b[38;5;200mx";
    const whole = new OutputScreen();
    whole.write(text);
    for (let at = 1; at < text.length; at++) {
      const s = new OutputScreen();
      s.write(text.slice(0, at));
      s.write(text.slice(at));
      expect(s.lines, `cut at ${at}`).toEqual(whole.lines);
    }
  });

  it("keeps lines that didn't change", () => {
    const s = new OutputScreen();
    s.write("a\nb");
    const first = s.lines[0];
    s.write("c\nd");
    expect(s.lines[0]).toBe(first);
    expect(s.lines).toHaveLength(3);
  });

  it("is not made to allocate by a hostile column", () => {
    const s = new OutputScreen();
    s.write("\x1b[999999999Gx\x1b[999999999Cy\n");
    expect(s.lines[0]!.spans.map((x) => x.text).join("").length).toBeLessThanOrEqual(20_000);
  });
});

describe("sgr", () => {
  it.each<[string, Style]>([
    ["", {}],
    ["1;31", { bold: true, fg: 1 }],
    ["97;104", { fg: 15, bg: 12 }],
    ["38;5;208", { fg: 208 }],
    ["48;2;1;2;255", { bg: "#0102ff" }],
    ["31;0;4", { underline: true }],
    ["1;22", {}],
  ])("%s", (body, want) => expect(sgr({}, body)).toEqual(want));
});

it("colour gives the palette", () => {
  expect(colour(1)).toBe("var(--ansi-1)");
  expect(colour(16)).toBe("rgb(0 0 0)");
  expect(colour(231)).toBe("rgb(255 255 255)");
  expect(colour(232)).toBe("rgb(8 8 8)");
});
