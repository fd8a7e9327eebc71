import { clsx } from "clsx";
import { ChevronRight, Download, Ellipsis, File, FileSymlink, Folder, FolderOpen, Pencil, Trash2 } from "lucide-react";
import { useEffect, useRef, useState, type KeyboardEvent } from "react";
import type { FileEntry } from "../api";
import { t } from "../strings";
import { IconButton } from "../ui/button";
import { bytes, timestamp } from "../ui/format";
import { Menu, MenuItem } from "../ui/menu";
import { dirname, isName } from "./paths";
import type { Row } from "./rows";

export interface TreeActions {
  open: (e: FileEntry) => void;
  toggle: (path: string, open: boolean) => void;
  rename: (e: FileEntry, name: string) => void;
  remove: (e: FileEntry) => void;
  download: (e: FileEntry) => void;
  create: (name: string | undefined) => void;
}

export function Tree({ root, rows, current, chosen, onChoose, creating, dropAt, loading, actions }: {
  root: string;
  rows: Row[];
  /** The file in the editor. */
  current?: string;
  /** The row that keys act on. */
  chosen?: string;
  onChoose: (path: string) => void;
  creating?: { dir: string; folder: boolean };
  dropAt?: string;
  loading: (dir: string) => boolean;
  actions: TreeActions;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [renaming, setRenaming] = useState<string>();
  const at = rows.findIndex((r) => r.entry.path === chosen);

  const focus = (i: number) => {
    const r = rows[i];
    if (!r) return;
    onChoose(r.entry.path);
    [...(box.current?.querySelectorAll<HTMLElement>("[data-path]") ?? [])].find((e) => e.dataset.path === r.entry.path)?.focus();
  };
  const onKey = (e: KeyboardEvent) => {
    if (e.target instanceof HTMLInputElement || e.ctrlKey || e.metaKey || e.altKey) return;
    const r = rows[at];
    const dir = r?.entry.type === "directory";
    const keys: Record<string, () => void> = {
      ArrowDown: () => focus(at + 1),
      ArrowUp: () => focus(Math.max(0, at - 1)),
      Home: () => focus(0),
      End: () => focus(rows.length - 1),
      ArrowRight: () => r && dir && (r.open ? focus(at + 1) : actions.toggle(r.entry.path, true)),
      ArrowLeft: () => {
        if (r && dir && r.open) actions.toggle(r.entry.path, false);
        else if (r) focus(rows.findIndex((x) => x.entry.path === dirname(r.entry.path)));
      },
      Enter: () => r && (dir ? actions.toggle(r.entry.path, !r.open) : actions.open(r.entry)),
      F2: () => r && setRenaming(r.entry.path),
      Delete: () => r && actions.remove(r.entry),
    };
    const run = keys[e.key];
    if (!run || (e.target as HTMLElement).getAttribute("role") !== "treeitem") return;
    e.preventDefault();
    e.stopPropagation();
    run();
  };

  return (
    <div ref={box} role="tree" aria-label={t.files.tree} onKeyDown={onKey} className="py-1">
      {creating?.dir === root && <NameField level={1} folder={creating.folder} dir={root} onDone={actions.create} />}
      {rows.map((r, i) => (
        <div key={r.entry.path} role="none">
          {renaming === r.entry.path ? (
            <NameField level={r.level} folder={r.entry.type === "directory"} name={r.entry.name} dir={dirname(r.entry.path)}
              onDone={(name) => {
                setRenaming(undefined);
                if (name !== undefined && name !== r.entry.name) actions.rename(r.entry, name);
              }} />
          ) : (
            <Item row={r} current={current === r.entry.path} first={at < 0 ? i === 0 : i === at} drop={dropAt === r.entry.path}
              onFocus={() => onChoose(r.entry.path)} onRename={() => setRenaming(r.entry.path)} actions={actions} />
          )}
          {creating?.dir === r.entry.path && <NameField level={r.level + 1} folder={creating.folder} dir={r.entry.path} onDone={actions.create} />}
          {r.open && rows[i + 1]?.level !== r.level + 1 && (
            <p className="py-1 text-xs text-faint" style={{ paddingLeft: indent(r.level + 1) + 20 }}>{loading(r.entry.path) ? t.loading : t.files.empty}</p>
          )}
        </div>
      ))}
    </div>
  );
}

const indent = (level: number) => 8 + (level - 1) * 14;

function Item({ row: { entry: e, level, open }, current, first, drop, onFocus, onRename, actions }: {
  row: Row; current: boolean; first: boolean; drop: boolean; onFocus: () => void; onRename: () => void; actions: TreeActions;
}) {
  const dir = e.type === "directory";
  const taken = useRef(false);
  const Icon = dir ? (open ? FolderOpen : Folder) : e.type === "symlink" ? FileSymlink : File;
  return (
    <div
      role="treeitem"
      aria-level={level}
      aria-expanded={dir ? open : undefined}
      aria-selected={current}
      tabIndex={first ? 0 : -1}
      data-path={e.path}
      data-dir={dir ? e.path : undefined}
      title={`${e.target ? `${t.files.link(e.target)}\n` : ""}${e.mode} ${e.owner}:${e.group}${dir ? "" : `\n${bytes(e.size)}`}\n${timestamp(e.modified_at)}`}
      onFocus={onFocus}
      onClick={() => (dir ? actions.toggle(e.path, !open) : actions.open(e))}
      // The tree handles keys for all its items.
      onKeyDown={() => {}}
      style={{ paddingLeft: indent(level) }}
      className={clsx(
        "group flex h-7 cursor-default items-center gap-1.5 pr-2.5 text-[0.8125rem] hover:bg-hover focus-visible:-outline-offset-2 coarse:h-10",
        current && "bg-hover font-medium",
        drop && "bg-hover outline-2 -outline-offset-2 outline-focus",
      )}
    >
      <ChevronRight aria-hidden className={clsx("size-3.5 shrink-0 text-faint transition-transform", open && "rotate-90", !dir && "invisible")} />
      <Icon aria-hidden className="size-4 shrink-0 text-faint" />
      <span className="min-w-0 flex-1 truncate">{e.name}</span>
      {/* Drawn, so that the name of the row stays the name of the file. */}
      {!dir && <span aria-hidden data-size={bytes(e.size)} className="shrink-0 text-2xs text-faint tabular-nums group-focus-within:hidden group-hover:hidden after:content-[attr(data-size)] coarse:inline" />}
      <span
        className="hidden group-focus-within:inline-flex group-hover:inline-flex has-data-[state=open]:inline-flex coarse:inline-flex"
        // What is pressed here isn't pressed on the row.
        role="none"
        onClick={(ev) => ev.stopPropagation()}
        onKeyDown={(ev) => ev.stopPropagation()}
      >
        <Menu keepFocus={() => taken.current} trigger={
          <IconButton label={t.files.actions(e.name)} tip={t.more} tabIndex={first ? 0 : -1} size="small" onClick={() => (taken.current = false)}><Ellipsis /></IconButton>
        }>
          {!dir && <MenuItem icon={<File />} hint="Enter" onSelect={() => actions.open(e)}>{t.files.openFile}</MenuItem>}
          {(dir || e.type === "file") && (
            <MenuItem icon={<Download />} onSelect={() => actions.download(e)}>{dir ? t.files.downloadZip : t.files.download}</MenuItem>
          )}
          <MenuItem icon={<Pencil />} hint="F2" onSelect={() => {
            taken.current = true;
            onRename();
          }}>{t.files.rename}</MenuItem>
          <MenuItem icon={<Trash2 />} danger hint="Del" onSelect={() => actions.remove(e)}>{t.files.remove}</MenuItem>
        </Menu>
      </span>
    </div>
  );
}

/** A name being written, where the file will stand. undefined means that it was given up. */
function NameField({ level, folder, dir, name, onDone }: { level: number; folder: boolean; dir: string; name?: string; onDone: (name: string | undefined) => void }) {
  const over = useRef(false);
  const field = useRef<HTMLInputElement>(null);
  const [bad, setBad] = useState(false);
  useEffect(() => {
    const f = field.current;
    if (!f) return;
    f.focus();
    const dot = f.value.lastIndexOf(".");
    f.setSelectionRange(0, !folder && dot > 0 ? dot : f.value.length);
  }, [folder]);
  const end = (value: string | undefined) => {
    if (over.current) return;
    over.current = true;
    onDone(value);
  };
  const Icon = folder ? Folder : File;
  return (
    <div className="flex min-h-7 items-center gap-1.5 pr-2" style={{ paddingLeft: indent(level) }}>
      <span className="size-3.5 shrink-0" />
      <Icon aria-hidden className="size-4 shrink-0 text-faint" />
      <span className="min-w-0 flex-1">
        <input
          ref={field}
          aria-label={name ? t.files.name : t.files.nameNew(folder ? t.files.newFolder : t.files.newFile, dir)}
          aria-invalid={bad}
          defaultValue={name}
          maxLength={255}
          spellCheck={false}
          autoCapitalize="off"
          className="h-6 w-full rounded border bg-raised px-1 text-[0.8125rem] aria-invalid:border-bad coarse:h-9 coarse:text-base"
          onChange={() => setBad(false)}
          onBlur={(e) => end(isName(e.target.value.trim()) ? e.target.value.trim() : undefined)}
          onKeyDown={(e) => {
            e.stopPropagation();
            if (e.key === "Escape") end(undefined);
            if (e.key === "Enter") {
              const v = e.currentTarget.value.trim();
              if (isName(v)) end(v);
              else setBad(true);
            }
          }}
        />
        {bad && <span role="alert" className="text-xs text-bad">{t.files.badName}</span>}
      </span>
    </div>
  );
}
