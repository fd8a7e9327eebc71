// The Files panel: the workspace as a tree, a file in the editor beside it or, where it is narrow, in its place.

import { useQueries, useQueryClient } from "@tanstack/react-query";
import { clsx } from "clsx";
import { FilePlus2, FolderPlus, RefreshCw, Upload as UploadIcon } from "lucide-react";
import { lazy, Suspense, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { api, type FileEntry, type RuntimeState } from "../api";
import { t } from "../strings";
import { Button, IconButton } from "../ui/button";
import { Question, QuestionCancel } from "../ui/dialog";
import { Centered, Loading, Problem, Spinner } from "../ui/parts";
import { useWake, WakeGate } from "../ui/wake";
import { basename, dirname, join, shown, within, workspace } from "./paths";
import { rows as rowsOf } from "./rows";
import { Tree, type TreeActions } from "./tree";
import { UploadList } from "./upload-list";
import { dropped, put, Uploads } from "./uploads";

const FileView = lazy(() => import("./file-view"));

interface Props {
  id: string;
  runtime: RuntimeState;
  /** Changes when something ran that may have changed files. */
  settled: string;
  visible: boolean;
  file?: string;
  onFile: (path: string | undefined) => void;
}

export default function FilesPanel(props: Props) {
  const { open, wake } = useWake(props.runtime);
  if (!open) return <WakeGate runtime={props.runtime} label={t.wake.files} onWake={wake} />;
  return <Files {...props} />;
}

function Files({ id, settled, visible, file, onFile }: Props) {
  const queries = useQueryClient();
  const [open, setOpen] = useState<ReadonlySet<string>>(() => new Set(file ? parents(file) : []));
  const [chosen, setChosen] = useState<string>();
  const [creating, setCreating] = useState<{ dir: string; folder: boolean }>();
  const [removing, setRemoving] = useState<FileEntry>();
  const [problem, setProblem] = useState<unknown>();
  const [dropAt, setDropAt] = useState<string>();
  const picker = useRef<HTMLInputElement>(null);

  const dirs = useMemo(() => [workspace, ...open], [open]);
  const results = useQueries({
    queries: dirs.map((dir) => ({
      queryKey: ["files", id, dir],
      queryFn: ({ signal }: { signal: AbortSignal }) => api.list(id, dir, signal),
      enabled: visible,
      // Asked again when something ran or a person changed something; never by a clock, which would keep the sandbox awake.
      staleTime: Infinity,
      refetchOnWindowFocus: false,
      refetchOnReconnect: false,
    })),
  });
  const at = (dir: string) => results[dirs.indexOf(dir)];
  const rows = rowsOf(workspace, open, (dir) => at(dir)?.data);
  const root = results[0]!;
  const byPath = (path: string | undefined) => rows.find((r) => r.entry.path === path)?.entry;

  const refresh = useCallback((dir?: string) => queries.invalidateQueries({ queryKey: dir ? ["files", id, dir] : ["files", id] }), [queries, id]);
  const before = useRef(settled);
  useEffect(() => {
    if (before.current === settled) return;
    before.current = settled;
    void refresh();
  }, [settled, refresh]);
  // Folders that are no longer there close.
  const goneDirs = dirs.filter((_, i) => i > 0 && results[i]!.isError).join("\n");
  useEffect(() => {
    if (goneDirs !== "") setOpen((o) => new Set([...o].filter((d) => !goneDirs.split("\n").some((g) => within(d, g)))));
  }, [goneDirs]);

  const uploads = useMemo(() => new Uploads(put(id), (p) => api.mkdir(id, p), () => void refresh()), [id, refresh]);
  const toggle = (path: string, to: boolean) => setOpen((o) => {
    const n = new Set(o);
    if (to) n.add(path);
    else n.delete(path);
    return n;
  });
  /** Where something new goes: the chosen folder, the folder of the chosen file, the workspace. */
  const target = () => {
    const e = byPath(chosen);
    return !e ? workspace : e.type === "directory" ? e.path : dirname(e.path);
  };
  const create = (folder: boolean) => {
    const dir = target();
    if (dir !== workspace) toggle(dir, true);
    setCreating({ dir, folder });
  };
  const attempt = async (work: () => Promise<unknown>) => {
    setProblem(undefined);
    try {
      await work();
    } catch (e) {
      setProblem(e);
    }
    await refresh();
  };

  const actions: TreeActions = {
    open: (e) => {
      setChosen(e.path);
      onFile(e.path);
    },
    toggle,
    download: (e) => (e.type === "directory" ? download(api.archiveURL(id, e.path), `${e.name}.zip`) : download(api.contentURL(id, e.path), e.name)),
    remove: setRemoving,
    rename: (e, name) => void attempt(async () => {
      const to = join(dirname(e.path), name);
      await api.move(id, e.path, to);
      setChosen(to);
      if (file && within(file, e.path)) onFile(to + file.slice(e.path.length));
      setOpen((o) => new Set([...o].map((d) => (within(d, e.path) ? to + d.slice(e.path.length) : d))));
    }),
    create: (name) => {
      const c = creating;
      setCreating(undefined);
      if (!c || name === undefined) return;
      const path = join(c.dir, name);
      void attempt(async () => {
        if (c.folder) await api.mkdir(id, path);
        else await api.write(id, path, "", "*");
        setChosen(path);
        if (!c.folder) onFile(path);
      });
    },
  };

  const remove = (e: FileEntry) => {
    setRemoving(undefined);
    return attempt(async () => {
      await api.deleteFiles(id, [e.path]);
      if (file && within(file, e.path)) onFile(undefined);
    });
  };

  const onDrop = async (e: React.DragEvent) => {
    e.preventDefault();
    const dir = dropAt ?? workspace;
    setDropAt(undefined);
    const files = await dropped(e.dataTransfer);
    if (dir !== workspace) toggle(dir, true);
    if (files.length > 0) uploads.add(dir, files);
  };

  return (
    <div className="@container h-full bg-canvas">
      <div className="flex h-full">
        <section
          aria-label={t.conversation.files}
          className={clsx("relative flex min-w-0 flex-col", file ? "hidden w-60 shrink-0 border-r @2xl:flex" : "w-full")}
          onDragOver={(e) => {
            if (!e.dataTransfer.types.includes("Files")) return;
            e.preventDefault();
            const over = (e.target as Element).closest<HTMLElement>("[data-path]");
            const path = over?.dataset.path;
            setDropAt(over?.dataset.dir ?? (path ? dirname(path) : workspace));
          }}
          onDragLeave={(e) => !e.currentTarget.contains(e.relatedTarget as Node | null) && setDropAt(undefined)}
          onDrop={(e) => void onDrop(e)}
        >
          <div className="flex h-10 shrink-0 items-center border-b pr-1 pl-3 coarse:h-12">
            <h2 className="min-w-0 flex-1 truncate font-mono text-xs text-soft">/{t.files.root}</h2>
            <IconButton label={t.files.newFile} size="medium" onClick={() => create(false)}><FilePlus2 /></IconButton>
            <IconButton label={t.files.newFolder} size="medium" onClick={() => create(true)}><FolderPlus /></IconButton>
            <IconButton label={t.files.upload} size="medium" onClick={() => picker.current?.click()}><UploadIcon /></IconButton>
            <IconButton label={t.files.refresh} size="medium" onClick={() => void refresh()}>{root.isFetching ? <Spinner /> : <RefreshCw />}</IconButton>
            <input
              ref={picker}
              type="file"
              multiple
              hidden
              aria-label={t.files.upload}
              onChange={(e) => {
                uploads.add(target(), [...(e.target.files ?? [])].map((f) => ({ file: f, path: f.name })));
                e.target.value = "";
              }}
            />
          </div>
          <div className="min-h-0 flex-1 overflow-auto">
            {problem !== undefined && <div className="p-2"><Problem error={problem}><Button small onClick={() => setProblem(undefined)}>{t.close}</Button></Problem></div>}
            {root.isPending ? <Loading />
              : root.isError && !root.data ? <div className="p-2"><Problem error={root.error} onRetry={() => void root.refetch()} /></div>
              : rows.length === 0 && !creating ? <Centered>{t.files.emptyRoot}</Centered>
              : <Tree root={workspace} rows={rows} current={file} chosen={chosen} onChoose={setChosen} creating={creating} dropAt={dropAt}
                  loading={(dir) => at(dir)?.isPending ?? false} actions={actions} />}
          </div>
          <UploadList uploads={uploads} />
          {dropAt && (
            <p className="pointer-events-none absolute inset-x-3 bottom-3 rounded-lg bg-ink px-3 py-2 text-center text-xs text-invert">
              {t.files.drop(shown(dropAt) || t.files.root)}
            </p>
          )}
        </section>
        {file && (
          <div className="min-w-0 flex-1">
            <Suspense fallback={<Loading />}>
              <FileView key={file} id={id} path={file} settled={settled} onClose={() => onFile(undefined)} onSaved={() => void refresh(dirname(file))} />
            </Suspense>
          </div>
        )}
      </div>
      {removing && (
        <Question open onClose={() => setRemoving(undefined)} title={t.files.removeTitle(basename(removing.path))}
          actions={<>
            <QuestionCancel asChild><Button>{t.cancel}</Button></QuestionCancel>
            <Button look="danger" onClick={() => void remove(removing)}>{t.files.remove}</Button>
          </>}>
          <p>{removing.type === "directory" ? t.files.removeFolder : t.files.removeFile}</p>
        </Question>
      )}
    </div>
  );
}

function parents(path: string): string[] {
  const out: string[] = [];
  for (let d = dirname(path); within(d, workspace) && d !== workspace; d = dirname(d)) out.unshift(d);
  return out;
}

export function download(url: string, name: string) {
  const a = document.createElement("a");
  a.href = url;
  a.download = name;
  a.click();
}
