// Output of a command in a block of its own: colours, progress lines as they ended, the newest part first shown.

import { memo, useEffect, useLayoutEffect, useRef, useState } from "react";
import type { ToolPart } from "../journal/view";
import { t } from "../strings";
import { bytes } from "../ui/format";
import { colour, OutputScreen, type Line, type Style } from "./ansi";

/** Lines shown until a person asks for more, and how many more at a time. */
const page = 300;

/** Goes on where it was when output was appended, begins anew when it was replaced or cut. */
export function useScreen(part: Pick<ToolPart, "output" | "dropped" | "generation">): OutputScreen {
  const state = useRef({ screen: new OutputScreen(), length: 0, dropped: 0, generation: 0 });
  const s = state.current;
  if (s.generation !== part.generation || s.dropped !== part.dropped || part.output.length < s.length) {
    state.current = { screen: new OutputScreen(), length: 0, dropped: part.dropped, generation: part.generation };
  }
  const now = state.current;
  if (part.output.length > now.length) {
    now.screen.write(part.output.slice(now.length));
    now.length = part.output.length;
  }
  return now.screen;
}

export function Output({ part, label }: { part: ToolPart; label: string }) {
  const screen = useScreen(part);
  const [shown, setShown] = useState(page);
  const box = useRef<HTMLDivElement>(null);
  const stick = useRef(true);
  const lines = screen.lines;
  const from = Math.max(0, lines.length - shown);

  useLayoutEffect(() => {
    if (stick.current && part.status === "running" && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  useEffect(() => {
    // A finished command is read from its top, unless the person scrolled it meanwhile.
    if (part.status === "failed" && stick.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [part.status]);

  return (
    <div
      ref={box}
      // Scrolls by keyboard, so it takes the focus.
      // oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex
      tabIndex={0}
      role="region"
      aria-label={label}
      onScroll={(e) => {
        const b = e.currentTarget;
        stick.current = b.scrollHeight - b.scrollTop - b.clientHeight < 24;
      }}
      className="max-h-96 overflow-auto bg-sunken px-3 py-2.5 font-mono text-[0.8125rem] leading-5"
    >
      {part.dropped > 0 && from === 0 && <p className="mb-1 font-sans text-xs text-faint">{t.tool.dropped(bytes(part.dropped))}</p>}
      {from > 0 && (
        <button type="button" className="mb-1 rounded font-sans text-xs text-work hover:underline" onClick={() => setShown((n) => n + Math.max(page, n))}>
          {t.tool.earlier(from)}
        </button>
      )}
      <pre className="wrap-anywhere whitespace-pre-wrap">
        {lines.slice(from).map((l, i) => <OutputLine key={from + i} line={l} />)}
      </pre>
    </div>
  );
}

const OutputLine = memo(function OutputLine({ line }: { line: Line }) {
  return (
    <div className="min-h-5">
      {line.spans.map((s, i) => {
        const style = css(s.style);
        return style ? <span key={i} style={style}>{s.text}</span> : s.text;
      })}
    </div>
  );
});

function css(s: Style): React.CSSProperties | undefined {
  let fg = s.fg === undefined ? undefined : colour(s.bold && typeof s.fg === "number" && s.fg < 8 ? s.fg + 8 : s.fg);
  let bg = s.bg === undefined ? undefined : colour(s.bg);
  if (s.inverse) [fg, bg] = [bg ?? "var(--sunken)", fg ?? "var(--ink)"];
  const lines = [s.underline && "underline", s.strike && "line-through"].filter(Boolean).join(" ");
  if (!fg && !bg && !s.bold && !s.dim && !s.italic && !lines) return undefined;
  return {
    color: fg, backgroundColor: bg, fontWeight: s.bold ? 650 : undefined, opacity: s.dim ? 0.65 : undefined,
    fontStyle: s.italic ? "italic" : undefined, textDecoration: lines || undefined,
  };
}
