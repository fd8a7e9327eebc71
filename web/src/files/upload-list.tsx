import { X } from "lucide-react";
import { useSyncExternalStore } from "react";
import { t } from "../strings";
import { Button, IconButton } from "../ui/button";
import { bytes } from "../ui/format";
import type { Upload, Uploads } from "./uploads";

export function UploadList({ uploads }: { uploads: Uploads }) {
  const list = useSyncExternalStore(uploads.subscribe, uploads.list);
  if (list.length === 0) return null;
  const over = list.some((u) => u.state !== "waiting" && u.state !== "sending");
  return (
    <section aria-label={t.uploads.title} className="max-h-56 shrink-0 overflow-auto border-t bg-side">
      <header className="sticky top-0 flex h-8 items-center justify-between bg-side pr-1 pl-3 text-xs font-medium coarse:h-10">
        {t.uploads.title}
        {over && <Button look="quiet" small onClick={() => uploads.clear()}>{t.uploads.clear}</Button>}
      </header>
      <ul>
        {list.map((u) => (
          <li key={u.id} className="flex min-h-8 items-center gap-2 pr-3 pl-3 text-xs">
            <span className="min-w-0 flex-1">
              <span className="block truncate" title={u.path}>{u.name}</span>
              {u.state === "sending" && <progress aria-label={u.name} value={u.sent} max={Math.max(1, u.size)} className="block h-1 w-full accent-work" />}
            </span>
            <Status u={u} />
            {u.state === "exists" && (
              <>
                <Button small onClick={() => uploads.replace(u.id)}>{t.uploads.replace}</Button>
                <Button small look="quiet" onClick={() => uploads.cancel(u.id)}>{t.uploads.skip}</Button>
              </>
            )}
            {(u.state === "sending" || u.state === "waiting") && <IconButton label={t.uploads.cancel(u.name)} size="small" onClick={() => uploads.cancel(u.id)}><X /></IconButton>}
            {u.state === "failed" && <Button small onClick={() => uploads.again(u.id)}>{t.retry}</Button>}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Status({ u }: { u: Upload }) {
  switch (u.state) {
    case "sending":
      return <span className="text-faint tabular-nums">{u.size === 0 ? "" : `${Math.floor((u.sent / u.size) * 100)} %`}</span>;
    case "failed":
      return <span role="alert" className="max-w-40 text-bad">{u.error}</span>;
    case "exists":
      return <span role="alert" className="text-wait">{t.uploads.exists}</span>;
    case "done":
      return <span className="text-faint">{bytes(u.size)}, <span className="text-ok">{t.uploads.done}</span></span>;
    default:
      return <span className="text-faint">{t.uploads[u.state]}</span>;
  }
}
