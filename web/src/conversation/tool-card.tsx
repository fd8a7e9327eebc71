import { clsx } from "clsx";
import { Ban, Check, ChevronDown, CircleAlert } from "lucide-react";
import { memo, useEffect, useState } from "react";
import type { ToolPart } from "../journal/view";
import { t } from "../strings";
import { IconButton, Tip } from "../ui/button";
import { duration } from "../ui/format";
import { CopyButton, Spinner } from "../ui/parts";
import { Output } from "./output";

/** What a tool call ran, in one line. */
export function commandOf(p: Pick<ToolPart, "input" | "title" | "name">): string {
  const c = (p.input as { command?: unknown } | undefined | null)?.command;
  if (typeof c === "string" && c !== "") return c;
  if (Array.isArray(c)) return c.join(" ");
  return p.title || p.name;
}

/** `message` is what the person wrote: when it is the command itself, the card doesn't repeat it. */
export const ToolCard = memo(function ToolCard({ part, message }: { part: ToolPart; message: string }) {
  const command = commandOf(part);
  const repeated = command.trim() === message.trim();
  const [open, setOpen] = useState(true);
  const hasOutput = part.output !== "" || part.dropped > 0;
  const input = !repeated && part.toolKind !== "execute" && part.input !== undefined && part.input !== null ? JSON.stringify(part.input, null, 2) : undefined;

  return (
    <section aria-label={command} className="overflow-hidden rounded-lg border bg-raised">
      <header className="flex min-h-9 items-center gap-2 pr-1 pl-3 text-xs">
        <Status part={part} />
        {repeated
          ? <span className="min-w-0 flex-1 truncate text-faint">{part.cwd ? <Tip text={t.tool.cwd(part.cwd)}><span className="font-mono">{part.cwd}</span></Tip> : part.name || part.title}</span>
          : <code className="min-w-0 flex-1 truncate text-[0.8125rem] text-ink" title={command}>{part.toolKind === "execute" && <span aria-hidden className="text-faint">$ </span>}{command}</code>}
        <Facts part={part} />
        <span className="flex">
          {hasOutput && <CopyButton label={t.tool.copyOutput} text={() => part.output} />}
          {!repeated && <CopyButton label={t.tool.copyCommand} text={() => command} className="max-sm:hidden" />}
          {(hasOutput || input) && (
            <IconButton label={open ? t.tool.collapse : t.tool.expand} aria-expanded={open} size="medium" onClick={() => setOpen(!open)}>
              <ChevronDown className={clsx("transition-transform", !open && "-rotate-90")} />
            </IconButton>
          )}
        </span>
      </header>
      {open && input && (
        <details className="border-t px-3 py-1.5 text-xs">
          <summary className="text-soft">{t.tool.input}</summary>
          <pre className="mt-1 max-h-64 overflow-auto whitespace-pre-wrap wrap-anywhere">{input}</pre>
        </details>
      )}
      {open && hasOutput && <div className="border-t"><Output part={part} label={t.tool.output(command)} /></div>}
      {!hasOutput && part.status !== "running" && part.toolKind === "execute" && <p className="border-t px-3 py-1.5 text-xs text-faint">{t.tool.noOutput}</p>}
    </section>
  );
});

function Status({ part }: { part: ToolPart }) {
  const label = t.tool[part.status];
  const icon = {
    running: <Spinner className="text-work" />,
    completed: <Check aria-hidden className="size-3.5 text-ok" />,
    failed: <CircleAlert aria-hidden className="size-3.5 text-bad" />,
    stopped: <Ban aria-hidden className="size-3.5 text-wait" />,
  }[part.status];
  return <span className="inline-flex">{icon}<span className="sr-only">{label}</span></span>;
}

function Facts({ part }: { part: ToolPart }) {
  const running = part.status === "running";
  const ticking = useElapsed(part.startedAt, running);
  const ms = running ? ticking : part.ms;
  return (
    <span className="flex shrink-0 items-center gap-2 text-faint tabular-nums">
      {part.exitCode !== undefined && (
        <span className={clsx("font-mono", part.exitCode === 0 ? "text-ok" : "text-bad")}>{t.tool.exit(part.exitCode)}</span>
      )}
      {ms !== undefined && <span>{duration(ms)}</span>}
    </span>
  );
}

/** Counts up while something runs; shown from the first second on. */
function useElapsed(startedAt: string, running: boolean): number | undefined {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [running]);
  const ms = Math.floor((now - Date.parse(startedAt)) / 1000) * 1000;
  return running && ms >= 1000 ? ms : undefined;
}
