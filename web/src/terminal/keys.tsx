import { t } from "../strings";

const keys: [string, string][] = [
  ["Esc", "\x1b"], ["Tab", "\t"], ["Ctrl-C", "\x03"], ["Ctrl-D", "\x04"], ["↑", "\x1b[A"], ["↓", "\x1b[B"], ["←", "\x1b[D"], ["→", "\x1b[C"],
];

/** The keys that a phone's keyboard lacks. */
export function Keys({ onKey }: { onKey: (bytes: string) => void }) {
  return (
    <div role="toolbar" aria-label={t.terminal.keys} className="flex shrink-0 gap-1 overflow-x-auto border-t bg-side p-1 pb-[max(0.25rem,env(safe-area-inset-bottom))]">
      {keys.map(([label, bytes]) => (
        <button key={label} type="button" className="h-9 min-w-10 shrink-0 rounded-md border bg-raised px-2 font-mono text-xs active:bg-hover"
          // The terminal keeps the focus, and with it the phone's keyboard stays.
          onPointerDown={(e) => e.preventDefault()} onClick={() => onKey(bytes)}>
          {label}
        </button>
      ))}
    </div>
  );
}
