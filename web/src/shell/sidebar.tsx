import { Link, useNavigate } from "@tanstack/react-router";
import { clsx } from "clsx";
import { Ellipsis, Keyboard, Monitor, Moon, Pencil, Plus, Search, Sun, Trash2 } from "lucide-react";
import { useRef, useState } from "react";
import { api, type Conversation } from "../api";
import { t } from "../strings";
import { IconButton } from "../ui/button";
import { ago } from "../ui/format";
import { Menu, MenuChoice, MenuItem } from "../ui/menu";
import { Dot, Problem } from "../ui/parts";
import { setTheme, useTheme, type Theme } from "../ui/theme";
import { stateOf, titleOf, useConversations, useTouch } from "./conversations";
import { useShell } from "./layout";

export function Sidebar({ onShortcuts }: { onShortcuts: () => void }) {
  const navigate = useNavigate();
  const q = useConversations();
  const [filter, setFilter] = useState("");
  const wanted = filter.trim().toLowerCase();
  const list = wanted === "" ? q.list : q.list.filter((c) => titleOf(c).toLowerCase().includes(wanted) || c.id.includes(wanted));

  return (
    <>
      <div className="flex items-center gap-2 px-3 pt-3 pb-2">
        <Link to="/" className="flex items-center gap-2 rounded-md px-1 font-semibold tracking-tight"><Mark />{t.app}</Link>
        <span className="flex-1" />
        <IconButton label={t.list.create} tip={`${t.list.create} (Alt+N)`} onClick={() => void navigate({ to: "/" })}><Plus /></IconButton>
      </div>
      {(q.list.length > 7 || filter !== "") && (
        <label className="mx-3 mb-2 flex h-8 items-center gap-2 rounded-md border bg-raised px-2 focus-within:outline-2 focus-within:outline-focus">
          <Search aria-hidden className="size-3.5 text-faint" />
          <input type="search" aria-label={t.list.filter} placeholder={t.list.filter} value={filter} onChange={(e) => setFilter(e.target.value)}
            className="w-full bg-transparent text-sm outline-none" />
        </label>
      )}
      <nav aria-label={t.list.title} className="min-h-0 flex-1 overflow-y-auto px-2 pb-2">
        {q.isError && q.list.length === 0 && <Problem title={t.list.failed} error={q.error} onRetry={() => void q.refetch()} />}
        {q.isSuccess && q.list.length === 0 && <p className="px-2 py-3 text-sm text-faint">{t.list.empty}</p>}
        {q.list.length > 0 && list.length === 0 && <p className="px-2 py-3 text-sm text-faint">{t.list.noMatch}</p>}
        <ul className="flex flex-col gap-px">
          {list.map((c) => <Row key={c.id} c={c} />)}
        </ul>
        {q.hasNextPage && (
          <button type="button" className="mt-1 h-8 w-full rounded-md text-sm text-soft hover:bg-hover" disabled={q.isFetchingNextPage} onClick={() => void q.fetchNextPage()}>
            {q.isFetchingNextPage ? t.loading : t.list.more}
          </button>
        )}
      </nav>
      <div className="flex items-center border-t px-2 py-1.5">
        <ThemeMenu />
        <span className="flex-1" />
        <IconButton label={t.shortcuts.open} onClick={onShortcuts}><Keyboard /></IconButton>
      </div>
    </>
  );
}

function Row({ c }: { c: Conversation }) {
  const shell = useShell();
  const [renaming, setRenaming] = useState(false);
  const taken = useRef(false);
  const state = stateOf(c);
  const title = titleOf(c);

  if (renaming) return <li><RenameField conversation={c} onDone={() => setRenaming(false)} className="my-0.5" /></li>;
  return (
    <li className="group relative">
      <Link
        to="/c/$id"
        params={{ id: c.id }}
        className="flex flex-col rounded-md py-1.5 pr-9 pl-2.5 hover:bg-hover coarse:py-2.5"
        activeProps={{ className: "bg-hover", "aria-current": "page" }}
        onKeyDown={(e) => {
          if (e.key === "F2") setRenaming(true);
          if (e.key === "Delete") shell.askDelete(c);
        }}
      >
        <span className={clsx("truncate font-medium", c.title.trim() === "" && "text-soft")}>{title}</span>
        <span className="flex items-center gap-1.5 text-xs text-faint">
          <Dot tone={state.tone} pulse={state.pulse} />
          {state.text}
          <span aria-hidden>·</span>
          <time dateTime={c.updated_at}>{ago(c.updated_at)}</time>
        </span>
      </Link>
      <span className="absolute top-1.5 right-1 opacity-0 group-focus-within:opacity-100 group-hover:opacity-100 has-data-[state=open]:opacity-100 coarse:opacity-100">
        <Menu
          keepFocus={() => taken.current}
          trigger={<IconButton label={t.list.actions(title)} tip={t.more} size="medium" onClick={() => (taken.current = false)}><Ellipsis /></IconButton>}
        >
          <MenuItem icon={<Pencil />} hint="F2" onSelect={() => {
            taken.current = true;
            setRenaming(true);
          }}>{t.list.rename}</MenuItem>
          <MenuItem icon={<Trash2 />} danger onSelect={() => shell.askDelete(c)}>{t.list.remove}</MenuItem>
        </Menu>
      </span>
    </li>
  );
}

/** Renames in place: Enter or leaving the field keeps, Escape drops. */
export function RenameField({ conversation, onDone, className }: { conversation: Conversation; onDone: () => void; className?: string }) {
  const touch = useTouch();
  const over = useRef(false);
  const [failed, setFailed] = useState<string>();
  const keep = async (title: string) => {
    if (over.current) return;
    over.current = true;
    if (title.trim() === "" || title.trim() === conversation.title) return onDone();
    try {
      touch(conversation.id, await api.rename(conversation.id, title.trim()));
      onDone();
    } catch (e) {
      over.current = false;
      setFailed(e instanceof Error ? e.message : String(e));
    }
  };
  return (
    <span className="block w-full">
      <input
        // oxlint-disable-next-line jsx-a11y/no-autofocus -- the person just asked to type here
        autoFocus
        aria-label={t.list.renameLabel}
        aria-invalid={failed !== undefined}
        defaultValue={conversation.title}
        maxLength={200}
        onFocus={(e) => e.target.select()}
        onBlur={(e) => void keep(e.target.value)}
        onKeyDown={(e) => {
          if (e.key === "Enter") void keep(e.currentTarget.value);
          if (e.key === "Escape") {
            over.current = true;
            onDone();
          }
          e.stopPropagation();
        }}
        className={clsx("h-8 w-full rounded-md border bg-raised px-2 text-sm font-medium coarse:text-base", className)}
      />
      {failed && <span role="alert" className="text-xs text-bad">{failed}</span>}
    </span>
  );
}

function ThemeMenu() {
  const theme = useTheme();
  const icons: Record<Theme, React.ReactNode> = { system: <Monitor />, light: <Sun />, dark: <Moon /> };
  return (
    <Menu align="start" trigger={<IconButton label={t.theme.label}>{icons[theme]}</IconButton>}>
      <MenuChoice label={t.theme.label} value={theme} onChange={setTheme}
        options={[["system", t.theme.system, <Monitor key="i" />], ["light", t.theme.light, <Sun key="i" />], ["dark", t.theme.dark, <Moon key="i" />]]} />
    </Menu>
  );
}

export function Mark({ className }: { className?: string }) {
  return (
    <svg viewBox="0 0 20 20" aria-hidden className={clsx("size-5", className)}>
      <path fill="currentColor" d="M10 1c.8 5.7 3 8.2 9 9-6 .8-8.2 3.3-9 9-.8-5.7-3-8.2-9-9 6-.8 8.2-3.3 9-9z" />
    </svg>
  );
}
