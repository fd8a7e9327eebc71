import { t } from "../strings";
import { Sheet } from "../ui/dialog";

export function ShortcutsDialog({ open, onClose }: { open: boolean; onClose: () => void }) {
  return (
    <Sheet open={open} onClose={onClose} title={t.shortcuts.title}>
      <dl className="mt-3 flex flex-col">
        {t.shortcuts.list.map(([keys, what]) => (
          <div key={keys} className="flex items-center justify-between border-b py-2 last:border-0">
            <dt className="text-soft">{what}</dt>
            <dd><kbd className="rounded border bg-sunken px-1.5 py-0.5 text-xs">{keys}</kbd></dd>
          </div>
        ))}
      </dl>
    </Sheet>
  );
}
