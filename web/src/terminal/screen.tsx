// One terminal on the screen: xterm.js on an attachment, and a bar that says what a person should know.

import { FitAddon } from "@xterm/addon-fit";
import { Terminal, type ITheme } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { useEffect, useRef, useState, type ReactNode } from "react";
import { api } from "../api";
import { t } from "../strings";
import { Button } from "../ui/button";
import { useMedia } from "../ui/media";
import { copy, Spinner } from "../ui/parts";
import { useDark } from "../ui/theme";
import { Attachment, type Phase } from "./attachment";
import { binary } from "./frames";
import { Keys } from "./keys";

/** Lines that can be scrolled back to. */
const scrollback = 10_000;

export default function Screen({ id, tid, n, visible, onCreate, onClose }:
  { id: string; tid: string; n: number; visible: boolean; onCreate: () => void; onClose: () => void }) {
  const host = useRef<HTMLDivElement>(null);
  const parts = useRef<{ term: Terminal; fit: FitAddon; link: Attachment }>(undefined);
  const [phase, setPhase] = useState<Phase>({ state: "connecting" });
  const dark = useDark();
  const touch = useMedia("(pointer: coarse)");

  useEffect(() => {
    const el = host.current!;
    const term = new Terminal({
      scrollback, cursorBlink: true, fontSize: 13, lineHeight: 1.2, fontFamily: getComputedStyle(el).fontFamily, theme: palette(el),
      macOptionIsMeta: true, screenReaderMode: false,
    });
    const fit = new FitAddon();
    term.loadAddon(fit);
    term.open(el);
    term.textarea?.setAttribute("aria-label", `${t.terminal.label(n)}. ${t.terminal.leave}`);
    const encoder = new TextEncoder();
    const link = new Attachment({
      url: (since, mode) => api.attachURL(id, tid, since, mode),
      write: (b) => term.write(b),
      gap: (missing) => term.write(`\r\n\x1b[0;2m${t.terminal.gap(missing)}\x1b[0m\r\n`),
      phase: setPhase,
      exists: () => api.terminals(id).then((l) => l.some((x) => x.id === tid)),
      size: () => ({ cols: term.cols, rows: term.rows }),
    });
    term.onData((d) => link.input(encoder.encode(d)));
    term.onBinary((d) => link.input(binary(d)));
    term.onResize(({ cols, rows }) => link.resize(cols, rows));
    term.attachCustomKeyEventHandler((e) => {
      // Ctrl+C stays the interrupt; with Shift it copies, as in other terminals.
      if (e.type === "keydown" && e.ctrlKey && e.shiftKey && e.code === "KeyC") {
        e.preventDefault();
        void copy(term.getSelection()).then(() => term.focus());
        return false;
      }
      return !(e.ctrlKey && !e.shiftKey && e.code === "Backquote");
    });
    parts.current = { term, fit, link };
    const observer = new ResizeObserver(() => el.clientWidth > 0 && el.clientHeight > 0 && fit.fit());
    observer.observe(el);
    const online = () => link.nudge();
    window.addEventListener("online", online);
    let over = false;
    // Cells are measured with the font: wait for it, but not for ever.
    const font = document.fonts?.load(`13px ${term.options.fontFamily}`).catch(() => {});
    void Promise.race([font, new Promise((r) => setTimeout(r, 1500))]).then(() => {
      if (over) return;
      term.options.fontFamily = `${getComputedStyle(el).fontFamily} `;
      if (el.clientWidth > 0) fit.fit();
      link.attach("write");
    });
    return () => {
      over = true;
      window.removeEventListener("online", online);
      observer.disconnect();
      link.close();
      term.dispose();
      parts.current = undefined;
    };
  }, [id, tid, n]);

  useEffect(() => {
    const p = parts.current;
    if (p && host.current) p.term.options.theme = palette(host.current);
  }, [dark]);
  useEffect(() => {
    if (visible) parts.current?.term.focus();
  }, [visible]);

  const attach = (mode: "takeover" | "watch") => {
    parts.current?.link.attach(mode);
    parts.current?.term.focus();
  };
  const send = (s: string) => {
    parts.current?.link.input(new TextEncoder().encode(s));
    parts.current?.term.focus();
  };

  return (
    <section aria-label={t.terminal.label(n)} className="flex h-full flex-col" data-state={phase.state}>
      <StateBar phase={phase} onAttach={attach} onCreate={onCreate} onClose={onClose} />
      <div className="min-h-0 flex-1 overflow-hidden bg-sunken py-1.5 pl-2.5">
        <div ref={host} className="h-full font-mono" />
      </div>
      {touch && phase.state === "attached" && phase.mode !== "watch" && <Keys onKey={send} />}
    </section>
  );
}

function StateBar({ phase, onAttach, onCreate, onClose }: { phase: Phase; onAttach: (m: "takeover" | "watch") => void; onCreate: () => void; onClose: () => void }) {
  const [late, setLate] = useState(false);
  useEffect(() => {
    setLate(false);
    const timer = setTimeout(() => setLate(true), 500);
    return () => clearTimeout(timer);
  }, [phase.state]);

  const takeOver = <Button key="t" small look="primary" onClick={() => onAttach("takeover")}>{t.terminal.takeOver}</Button>;
  const watch = <Button key="w" small onClick={() => onAttach("watch")}>{t.terminal.watch}</Button>;
  const close = <Button key="c" small onClick={onClose}>{t.close}</Button>;
  const create = <Button key="n" small look="primary" onClick={onCreate}>{t.terminal.create}</Button>;
  let text: ReactNode;
  let actions: ReactNode;
  switch (phase.state) {
    case "attached":
      if (phase.mode !== "watch") return null;
      text = t.terminal.watching;
      actions = takeOver;
      break;
    case "connecting":
    case "waiting":
      // A moment of it is no news.
      if (!late) return null;
      text = <><Spinner />{t.terminal[phase.state]}</>;
      break;
    case "held":
    case "displaced":
      text = t.terminal[phase.state];
      actions = [watch, takeOver];
      break;
    case "exited":
      text = t.terminal.exited(phase.code);
      actions = [close, create];
      break;
    case "gone":
      text = t.terminal.gone;
      actions = [close, create];
      break;
    case "failed":
      text = t.terminal.failed(phase.message);
      actions = [close, takeOver];
  }
  return (
    <div role="status" className="flex shrink-0 flex-wrap items-center gap-2 border-b bg-wait-soft px-3 py-1.5 text-sm">
      <p className="flex min-w-0 flex-1 basis-40 items-center gap-2">{text}</p>
      <span className="flex gap-2">{actions}</span>
    </div>
  );
}

/** xterm wants colours, not variables. */
function palette(el: Element): ITheme {
  const css = getComputedStyle(el);
  const v = (name: string) => css.getPropertyValue(name).trim();
  const names = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "brightBlack", "brightRed", "brightGreen", "brightYellow", "brightBlue", "brightMagenta", "brightCyan", "brightWhite"] as const;
  return {
    background: v("--sunken"), foreground: v("--ink"), cursor: v("--ink"), cursorAccent: v("--sunken"), selectionBackground: `${v("--work")}40`,
    ...Object.fromEntries(names.map((name, i) => [name, v(`--ansi-${i}`)])),
  };
}
