import { t } from "../strings";

const keys: [string, string][] = [
  ["Esc", "\x1b"], ["Tab", "\t"], ["^C", "\x03"], ["^D", "\x04"], ["↑", "\x1b[A"], ["↓", "\x1b[B"], ["←", "\x1b[D"], ["→", "\x1b[C"],
];

const names: Record<string, string> = { "^C": "Ctrl+C", "^D": "Ctrl+D" };

/** The keys that a phone's keyboard lacks. */
export function Keys({ onKey }: { onKey: (bytes: string) => void }) {
  return (
    <div role="toolbar" aria-label={t.terminal.keys} className="flex shrink-0 gap-1 overflow-x-auto border-t bg-side p-1 pb-[max(0.25rem,env(safe-area-inset-bottom))]">
      {keys.map(([label, bytes]) => (
        <button key={label} type="button" aria-label={names[label] ?? label} className="h-9 min-w-10 flex-1 rounded-md border bg-raised px-1 font-mono text-xs active:bg-hover"
          // The terminal keeps the focus, and with it the phone's keyboard stays.
          onPointerDown={(e) => e.preventDefault()} onClick={() => onKey(bytes)}>
          {label}
        </button>
      ))}
    </div>
  );
}
