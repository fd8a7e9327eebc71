import { CircleAlert, CircleStop, Moon, Sparkle, Unplug } from "lucide-react";
import { memo } from "react";
import type { StoryPart } from "../journal/view";
import { t } from "../strings";
import { duration, timestamp } from "../ui/format";
import { Spinner } from "../ui/parts";

/** A line about the sandbox: what happened to it is part of the conversation. */
export const Story = memo(function Story({ part }: { part: StoryPart }) {
  const steps = timed(part);
  return (
    <div className="flex flex-wrap items-center gap-x-2 gap-y-0.5 py-0.5 text-xs text-faint" title={timestamp(part.at)}>
      {icon(part)}
      <span className={part.phase === "lost" || part.phase === "failed" ? "text-bad" : undefined}>{text(part)}</span>
      {steps.length > 0 && (
        <span className="flex flex-wrap gap-x-3 before:text-line-strong before:content-['/']" role="list" aria-label={t.story.steps}>
          {steps.map((s, i) => (
            <span key={i} role="listitem" className="tabular-nums">
              {t.story.stepNames[s.name] ?? s.name}
              {s.ms === undefined ? "…" : ` ${duration(s.ms)}`}
            </span>
          ))}
        </span>
      )}
      {part.phase === "lost" && <span>{t.story.lostHint}</span>}
    </div>
  );
});

/** How long each step took: until the next one began, or the sandbox was ready. */
export function timed(p: StoryPart): { name: string; ms?: number }[] {
  return p.steps.map((s, i) => {
    const end = p.steps[i + 1]?.at ?? (p.phase === "starting" || p.phase === "resuming" ? undefined : p.at);
    return { name: s.name, ms: end === undefined ? undefined : Math.max(0, Date.parse(end) - Date.parse(s.at)) };
  });
}

function text(p: StoryPart): string {
  switch (p.phase) {
    case "ready":
      return p.ms === undefined ? t.story.ready : t.story.readyIn(duration(p.ms));
    case "resumed":
      return p.ms === undefined ? t.story.resumed : t.story.resumedIn(duration(p.ms));
    case "lost":
    case "failed":
      return p.reason ? `${t.story[p.phase]}: ${p.reason}` : t.story[p.phase];
    case "terminated":
      return p.outcome ? `${t.story.terminated}: ${t.remove.outcomes[p.outcome] ?? p.outcome}` : t.story.terminated;
    default:
      return t.story[p.phase];
  }
}

function icon(p: StoryPart) {
  const size = "size-3.5 shrink-0";
  switch (p.phase) {
    case "starting":
    case "resuming":
    case "pausing":
      return <Spinner className="text-work" />;
    case "ready":
    case "resumed":
      return <Sparkle aria-hidden className={`${size} text-ok`} />;
    case "paused":
      return <Moon aria-hidden className={`${size} text-wait`} />;
    case "lost":
      return <Unplug aria-hidden className={`${size} text-bad`} />;
    case "failed":
      return <CircleAlert aria-hidden className={`${size} text-bad`} />;
    case "terminated":
      return <CircleStop aria-hidden className={size} />;
  }
}
