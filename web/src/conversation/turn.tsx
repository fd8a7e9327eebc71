import { clsx } from "clsx";
import { CircleAlert, Info, TriangleAlert } from "lucide-react";
import { lazy, memo, Suspense, type ReactNode } from "react";
import { isOpen, type Entry, type NoticePart, type Part, type TurnEntry } from "../journal/view";
import { t } from "../strings";
import { Button } from "../ui/button";
import { time, timestamp } from "../ui/format";
import { CopyButton, Spinner } from "../ui/parts";
import type { Outgoing } from "./outbox";
import { Story } from "./story";
import { ToolCard } from "./tool-card";

const AgentText = lazy(() => import("./markdown"));

export const EntryView = memo(function EntryView({ entry, shell, onTakeBack }: { entry: Entry; shell: boolean; onTakeBack: (text: string) => void }) {
  if (entry.kind === "loose") return <div className="entry flex flex-col gap-1">{entry.parts.map((p) => <PartView key={p.key} part={p} message="" />)}</div>;
  return (
    <article className="entry flex flex-col gap-2" aria-label={`${t.conversation.you}: ${entry.text.slice(0, 80)}`} aria-busy={entry.state === "running"}>
      <Message text={entry.text} shell={shell} at={entry.at} status={waiting(entry)} dim={entry.state === "undelivered"} />
      {entry.parts.map((p) => <PartView key={p.key} part={p} message={entry.text} />)}
      <Ending turn={entry} onTakeBack={onTakeBack} />
    </article>
  );
});

function waiting(turn: TurnEntry): ReactNode {
  if (turn.state === "queued") return turn.parts.length > 0 ? undefined : t.turn.queued;
  if (turn.state === "delivering") return t.turn.delivering;
  return undefined;
}

/** What the person wrote. For the shell it is a command, so it looks like one. */
export function Message({ text, shell, at, status, dim }: { text: string; shell: boolean; at?: string; status?: ReactNode; dim?: boolean }) {
  return (
    <div className={clsx("group flex items-start gap-2.5 border-t pt-3.5", dim && "text-soft")}>
      <span aria-hidden className={clsx("shrink-0 leading-6 text-work select-none", shell ? "font-mono" : "font-semibold")}>{shell ? "❯" : "›"}</span>
      <span className="sr-only">{t.conversation.you}</span>
      <p className={clsx("min-w-0 flex-1 leading-6 font-medium wrap-anywhere whitespace-pre-wrap", shell && "font-mono text-[0.8125rem]")}>{text}</p>
      <span className="flex shrink-0 items-center gap-1 text-xs leading-6 text-faint">
        <CopyButton label={t.copy} text={() => text} className="-my-0.5 opacity-0 group-hover:opacity-100 focus-visible:opacity-100 max-sm:hidden" />
        {status ?? (at && <time dateTime={at} title={timestamp(at)}>{time(at)}</time>)}
      </span>
    </div>
  );
}

function PartView({ part, message }: { part: Part; message: string }) {
  switch (part.kind) {
    case "text":
      return <Suspense fallback={<p className="whitespace-pre-wrap">{part.text}</p>}><AgentText text={part.text} /></Suspense>;
    case "thinking":
      return (
        <details className="text-sm text-soft">
          <summary className="w-fit text-xs text-faint">{t.thinking}</summary>
          <p className="mt-1 border-l-2 pl-3 whitespace-pre-wrap">{part.text}</p>
        </details>
      );
    case "tool":
      return <ToolCard part={part} message={message} />;
    case "story":
      return <Story part={part} />;
    case "notice":
      return <Notice part={part} />;
  }
}

function Notice({ part }: { part: NoticePart }) {
  const bad = part.level === "error";
  const warn = part.level === "warning" || part.level === "warn";
  const Icon = bad ? CircleAlert : warn ? TriangleAlert : Info;
  return (
    <p className={clsx("flex gap-2 rounded-lg px-3 py-2 text-xs", bad ? "bg-bad-soft text-bad" : warn ? "bg-wait-soft text-wait" : "bg-sunken text-soft")}>
      <Icon aria-hidden className="mt-0.5 size-3.5 shrink-0" />
      <span className="wrap-anywhere whitespace-pre-wrap">{part.text}</span>
    </p>
  );
}

/** How a turn ended, when it isn't simply done. */
function Ending({ turn, onTakeBack }: { turn: TurnEntry; onTakeBack: (text: string) => void }) {
  if (turn.state === "done" || isOpen(turn)) return null;
  const label = t.turn[turn.state as keyof typeof t.turn] as string;
  if (turn.state === "interrupted") return <p className="text-xs text-faint">{label}</p>;
  const back = turn.state === "undelivered" || turn.state === "unknown";
  return (
    <div role="group" aria-label={label} className="flex flex-wrap items-center gap-x-3 gap-y-2 rounded-lg border border-bad/30 bg-bad-soft px-3 py-2 text-sm">
      <p className="min-w-0 flex-1 basis-60">
        <span className="font-medium text-bad">{label}</span>
        {turn.error?.message && <span className="text-soft wrap-anywhere"> {turn.error.message}</span>}
      </p>
      {back && <Button small onClick={() => onTakeBack(turn.text)}>{t.turn.takeBack}</Button>}
    </div>
  );
}

/** A message that the journal doesn't have yet. */
export function Pending({ m, shell, onRetry, onDiscard, onTakeBack }:
  { m: Outgoing; shell: boolean; onRetry: () => void; onDiscard: () => void; onTakeBack: () => void }) {
  return (
    <article className="flex flex-col gap-2">
      <Message text={m.text} shell={shell} dim status={m.state === "sending" ? <span className="flex items-center gap-1.5"><Spinner />{t.turn.sending}</span> : t.turn.unsent} />
      {m.state !== "sending" && (
        <div role="alert" className="flex flex-wrap items-center gap-x-3 gap-y-2 rounded-lg border border-wait/30 bg-wait-soft px-3 py-2 text-sm">
          <p className="min-w-0 flex-1 basis-60 text-soft">{m.state === "unsure" ? t.turn.unsure : m.error}</p>
          <span className="flex gap-2">
            <Button small onClick={onTakeBack}>{t.turn.takeBack}</Button>
            <Button small onClick={onDiscard}>{t.turn.discard}</Button>
            <Button small look="primary" onClick={onRetry}>{t.turn.send}</Button>
          </span>
        </div>
      )}
    </article>
  );
}
