import { CircleAlert, CircleStop, Moon, Sparkle, Unplug } from "lucide-react";
import { memo } from "react";
import type { StoryPart } from "../journal/view";
import { t } from "../strings";
import { duration, timestamp } from "../ui/format";
import { Spinner } from "../ui/parts";

/** A line about the sandbox: what happened to it is part of the conversation. */
export const Story = memo(function Story({ part }: { part: StoryPart }) {
  const steps = timed(part);
  const bad = part.phase === "lost" || part.phase === "failed";
  return (
    <div className="flex gap-2 py-0.5 text-xs text-faint" title={timestamp(part.at)}>
      <span className="flex h-4 shrink-0 items-center">{icon(part)}</span>
      <p className="flex min-w-0 flex-wrap gap-x-3">
        <span className={bad ? "text-bad wrap-anywhere" : undefined}>{text(part)}</span>
        {steps.length > 0 && (
          <span className="flex flex-wrap gap-x-3" role="list" aria-label={t.story.steps}>
            {steps.map((s, i) => (
              <span key={i} role="listitem" className="tabular-nums">
                {t.story.stepNames[s.name] ?? s.name}
                {s.ms === undefined ? "…" : ` ${duration(s.ms)}`}
              </span>
            ))}
          </span>
        )}
        {part.phase === "lost" && <span>{t.story.lostHint}</span>}
      </p>
    </div>
  );
});

/**
 * How long each step took: until the next one began, or the sandbox was ready. A single step that is over tells nothing that
 * the whole doesn't.
 */
export function timed(p: StoryPart): { name: string; ms?: number }[] {
  const over = p.phase !== "starting" && p.phase !== "resuming";
  if (over && p.steps.length === 1) return [];
  return p.steps.map((s, i) => {
    const end = p.steps[i + 1]?.at ?? (over ? p.at : undefined);
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
