// Small parts that several screens share.

import { clsx } from "clsx";
import { Check, Copy, LoaderCircle } from "lucide-react";
import { useEffect, useState, type ReactNode } from "react";
import { ApiError } from "../api";
import { t } from "../strings";
import { Button, IconButton } from "./button";

export function Spinner({ className }: { className?: string }) {
  return <LoaderCircle aria-hidden className={clsx("size-3.5 shrink-0 animate-spin", className)} />;
}

export type Tone = "ok" | "work" | "wait" | "bad" | "none";

const tones: Record<Tone, string> = {
  ok: "bg-ok", work: "bg-work", wait: "bg-wait", bad: "bg-bad", none: "bg-transparent ring-1 ring-inset ring-line-strong",
};

/** A state at a glance. What it means is said in text beside it or read out. */
export function Dot({ tone, pulse }: { tone: Tone; pulse?: boolean }) {
  return (
    <span aria-hidden className="relative inline-flex size-2 shrink-0">
      {pulse && <span className={clsx("absolute inset-0 animate-ping rounded-full opacity-60", tones[tone])} />}
      <span className={clsx("size-2 rounded-full", tones[tone])} />
    </span>
  );
}

export function CopyButton({ text, label, className }: { text: () => string; label: string; className?: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  return (
    <IconButton
      label={copied ? t.copied : label}
      size="medium"
      className={className}
      onClick={() => void copy(text()).then(setCopied)}
    >
      {copied ? <Check /> : <Copy />}
    </IconButton>
  );
}

/** Copies text, also where the clipboard API doesn't exist (plain http on another machine). */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "fixed opacity-0";
    const before = document.activeElement as HTMLElement | null;
    document.body.append(area);
    area.select();
    const ok = document.execCommand("copy");
    area.remove();
    before?.focus();
    return ok;
  }
}

export const reason = (e: unknown): string => (e instanceof Error ? e.message : String(e));

/** What went wrong, and what can be done about it. */
export function Problem({ title, error, onRetry, children }:
  { title?: string; error?: unknown; onRetry?: () => void; children?: ReactNode }) {
  const id = error instanceof ApiError ? error.requestId : undefined;
  return (
    <div role="alert" className="rounded-lg border border-bad/30 bg-bad-soft px-3 py-2.5 text-sm">
      {title && <p className="font-medium text-bad">{title}</p>}
      {error !== undefined && <p className={title ? "mt-0.5 text-soft" : "text-ink"}>{reason(error)}</p>}
      {id && <p className="mt-0.5 font-mono text-2xs text-faint">{t.requestId(id)}</p>}
      {(onRetry ?? children) && (
        <div className="mt-2 flex flex-wrap gap-2">
          {onRetry && <Button small onClick={onRetry}>{t.retry}</Button>}
          {children}
        </div>
      )}
    </div>
  );
}

export function Centered({ children }: { children: ReactNode }) {
  return <div className="flex h-full flex-col items-center justify-center gap-3 p-6 text-center text-soft">{children}</div>;
}

export function Loading() {
  return (
    <Centered>
      <span role="status" className="flex items-center gap-2"><Spinner />{t.loading}</span>
    </Centered>
  );
}
