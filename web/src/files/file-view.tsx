// One file: its text in the editor, a picture, or the reason why it can't be shown.

import { useQuery } from "@tanstack/react-query";
import { ArrowLeft, Download } from "lucide-react";
import { lazy, Suspense, useCallback, useEffect, useRef, useState } from "react";
import { api, ApiError } from "../api";
import { t } from "../strings";
import { Button, IconButton } from "../ui/button";
import { bytes } from "../ui/format";
import { Centered, Loading, Problem, Spinner } from "../ui/parts";
import { decode, draft, editorLimit, keepDraft, pictureType } from "./document";
import type { EditorHandle } from "./editor";
import { download } from "./panel";
import { basename, shown } from "./paths";

const Editor = lazy(() => import("./editor"));

const pictureLimit = 20_000_000;

type Shown =
  | { kind: "text"; text: string; crlf: boolean; version: string }
  | { kind: "picture"; blob: Blob }
  | { kind: "binary" }
  | { kind: "large"; size: number };

async function read(id: string, path: string, signal: AbortSignal): Promise<Shown> {
  const type = pictureType(path);
  const c = await api.content(id, path, type ? pictureLimit : editorLimit, signal);
  if (c.tooLarge !== undefined) return { kind: "large", size: c.tooLarge };
  if (type) return { kind: "picture", blob: new Blob([c.blob], { type }) };
  if (c.blob.size > editorLimit) return { kind: "large", size: c.blob.size };
  const text = decode(new Uint8Array(await c.blob.arrayBuffer()));
  return text.kind === "binary" ? text : { ...text, version: c.version };
}

interface Props { id: string; path: string; settled: string; onClose: () => void; onSaved: () => void }

export default function FileView({ id, path, settled, onClose, onSaved }: Props) {
  const q = useQuery({
    queryKey: ["content", id, path],
    queryFn: ({ signal }) => read(id, path, signal),
    staleTime: Infinity,
    gcTime: 0,
    refetchOnWindowFocus: false,
    refetchOnReconnect: false,
    retry: false,
  });
  const { refetch } = q;
  const before = useRef(settled);
  useEffect(() => {
    if (before.current === settled) return;
    before.current = settled;
    void refetch();
  }, [settled, refetch]);

  const [status, setStatus] = useState<React.ReactNode>();
  const name = basename(path);
  const data = q.data;
  const kept = draft(id, path);
  const missing = q.error instanceof ApiError && q.error.status === 404;

  return (
    <section aria-label={name} className="flex h-full flex-col">
      <header className="flex h-10 shrink-0 items-center gap-1 border-b pr-1 pl-1 coarse:h-12">
        <IconButton label={t.editor.back} size="medium" onClick={onClose}><ArrowLeft /></IconButton>
        <h2 className="min-w-0 flex-1 truncate text-[0.8125rem] font-medium" title={path}>{shown(path)}</h2>
        <span className="flex items-center gap-2 pr-1 text-xs text-faint">{status}</span>
        <IconButton label={t.files.download} size="medium" onClick={() => download(api.contentURL(id, path), name)}><Download /></IconButton>
      </header>
      <div className="min-h-0 flex-1">
        {data?.kind === "text" || (missing && kept) ? (
          <TextView
            id={id}
            path={path}
            theirs={data?.kind === "text" && !missing ? data : undefined}
            first={kept ?? (data as Shown & { kind: "text" })}
            refetch={async () => {
              const r = await refetch();
              return r.data?.kind === "text" ? r.data : undefined;
            }}
            setStatus={setStatus}
            onSaved={onSaved}
          />
        ) : q.isPending ? <Loading />
          : q.isError ? <div className="p-3"><Problem title={t.editor.failed} error={q.error} onRetry={() => void refetch()} /></div>
          : data?.kind === "picture" ? <Picture blob={data.blob} name={name} />
          : (
            <Centered>
              <p>{data?.kind === "large" ? t.editor.tooLarge(bytes(data.size)) : t.editor.binary}</p>
              <Button onClick={() => download(api.contentURL(id, path), name)}><Download aria-hidden className="size-4" />{t.files.download}</Button>
            </Centered>
          )}
      </div>
    </section>
  );
}

interface Base { text: string; crlf: boolean; version: string }

function TextView({ id, path, theirs, first, refetch, setStatus, onSaved }: {
  id: string; path: string;
  /** What the sandbox has; undefined when the file is gone. */
  theirs: Base | undefined;
  first: Base;
  refetch: () => Promise<Base | undefined>;
  setStatus: (s: React.ReactNode) => void;
  onSaved: () => void;
}) {
  // What the text in the editor is based on; a new epoch puts its text into the editor.
  const [base, setBase] = useState({ ...first, epoch: 0 });
  const [dirty, setDirty] = useState(() => draft(id, path) !== undefined);
  const [saving, setSaving] = useState(false);
  const [saved, setSaved] = useState(false);
  const [error, setError] = useState<unknown>();
  const editor = useRef<EditorHandle>(null);
  const changes = useRef(0);

  const take = useCallback((b: Base) => {
    keepDraft(id, path, undefined);
    setBase((x) => ({ ...b, epoch: x.epoch + 1 }));
    setDirty(false);
    setError(undefined);
  }, [id, path]);

  // Changed by somebody else: shown at once when nothing is lost by it.
  const changed = theirs !== undefined && theirs.version !== base.version;
  useEffect(() => {
    if (changed && !dirty && !saving) take(theirs);
  }, [changed, dirty, saving, theirs, take]);

  const save = useCallback(async (over?: string) => {
    const text = editor.current?.text();
    if (text === undefined || saving) return;
    setSaving(true);
    setError(undefined);
    const at = changes.current;
    try {
      const e = await api.write(id, path, text, over ?? base.version);
      setBase((x) => ({ ...x, version: e.version }));
      if (changes.current === at) {
        keepDraft(id, path, undefined);
        setDirty(false);
        setSaved(true);
      } else keepDraft(id, path, { text: editor.current?.text() ?? text, version: e.version, crlf: base.crlf });
      onSaved();
      await refetch();
    } catch (e) {
      // The version in the sandbox is another one: the banner asks which one to keep.
      if (e instanceof ApiError && (e.status === 412 || e.status === 404)) await refetch();
      else setError(e);
    } finally {
      setSaving(false);
    }
  }, [id, path, base, saving, refetch, onSaved]);

  useEffect(() => {
    if (!saved) return;
    const timer = setTimeout(() => setSaved(false), 2000);
    return () => clearTimeout(timer);
  }, [saved]);
  useEffect(() => {
    setStatus(
      <>
        <span role="status">{saving ? t.editor.saving : dirty ? t.editor.unsaved : saved ? t.editor.saved : ""}</span>
        <Button small look={dirty ? "primary" : "plain"} disabled={!dirty || saving} title="Ctrl+S" onClick={() => void save()}>
          {saving && <Spinner />}
          {t.editor.save}
        </Button>
      </>,
    );
    return () => setStatus(undefined);
  }, [saving, dirty, saved, save, setStatus]);

  return (
    <div className="flex h-full flex-col">
      {dirty && !saving && (changed || theirs === undefined) && (
        <div role="alert" className="flex flex-wrap items-center gap-2 border-b bg-wait-soft px-3 py-2 text-sm">
          <p className="min-w-0 flex-1 basis-52">{theirs ? t.editor.changed : t.editor.deleted}</p>
          {theirs && <Button small onClick={() => take(theirs)}>{t.editor.theirs}</Button>}
          <Button small look="primary" onClick={() => void save(theirs ? theirs.version : "*")}>{t.editor.mine}</Button>
        </div>
      )}
      {error !== undefined && <div className="border-b p-2"><Problem error={error} onRetry={() => void save()} /></div>}
      <div className="min-h-0 flex-1">
        <Suspense fallback={<Loading />}>
          <Editor
            ref={editor}
            path={path}
            text={base.text}
            epoch={base.epoch}
            crlf={base.crlf}
            label={t.editor.label(basename(path))}
            onSave={() => void save()}
            onChange={(text) => {
              changes.current++;
              setSaved(false);
              setDirty(true);
              keepDraft(id, path, { text: text(), version: base.version, crlf: base.crlf });
            }}
          />
        </Suspense>
      </div>
    </div>
  );
}

function Picture({ blob, name }: { blob: Blob; name: string }) {
  const [url, setUrl] = useState<string>();
  useEffect(() => {
    const u = URL.createObjectURL(blob);
    setUrl(u);
    return () => URL.revokeObjectURL(u);
  }, [blob]);
  return <div className="flex h-full items-center justify-center overflow-auto bg-sunken p-4">{url && <img src={url} alt={name} className="max-h-full max-w-full object-contain" />}</div>;
}
