import { clsx } from "clsx";
import { Ellipsis, FolderTree, Menu as MenuIcon, MessageSquare, Pencil, SquareTerminal, Trash2 } from "lucide-react";
import { Popover } from "radix-ui";
import { useRef, useState } from "react";
import type { Conversation } from "../api";
import { t } from "../strings";
import { IconButton } from "../ui/button";
import { timestamp } from "../ui/format";
import { usePhone } from "../ui/media";
import { Menu, MenuItem } from "../ui/menu";
import { CopyButton, Dot } from "../ui/parts";
import { stateOf, titleOf } from "../shell/conversations";
import { useShell } from "../shell/layout";
import type { Panel } from "../shell/router";
import { RenameField } from "../shell/sidebar";

type OnPanel = (p: Panel | undefined) => void;

export function Header({ conversation: c, panel, tabs, onPanel }: { conversation: Conversation; panel?: Panel; tabs: boolean; onPanel: OnPanel }) {
  const shell = useShell();
  const phone = usePhone();
  const [renaming, setRenaming] = useState(false);
  const taken = useRef(false);

  return (
    <header className="flex h-12 shrink-0 items-center gap-1 border-b px-2 md:pl-4">
      {phone && <IconButton label={t.list.open} onClick={shell.openList}><MenuIcon /></IconButton>}
      {renaming ? <RenameField conversation={c} onDone={() => setRenaming(false)} className="max-w-96" /> : (
        <h1 className="min-w-0">
          <button type="button" title={t.conversation.title} onClick={() => setRenaming(true)}
            className={clsx("block max-w-full truncate rounded-md px-1.5 py-0.5 font-semibold hover:bg-hover", c.title.trim() === "" && "text-soft")}>
            {titleOf(c)}
          </button>
        </h1>
      )}
      <RuntimeChip conversation={c} />
      <span className="flex-1" />
      {!tabs && (
        <>
          <PanelButton which="files" panel={panel} onPanel={onPanel} keys="Ctrl+Shift+E" />
          <PanelButton which="terminal" panel={panel} onPanel={onPanel} keys="Ctrl+`" />
        </>
      )}
      <Menu keepFocus={() => taken.current} trigger={<IconButton label={t.list.actions(titleOf(c))} tip={t.more} onClick={() => (taken.current = false)}><Ellipsis /></IconButton>}>
        <MenuItem icon={<Pencil />} onSelect={() => {
          taken.current = true;
          setRenaming(true);
        }}>{t.list.rename}</MenuItem>
        <MenuItem icon={<Trash2 />} danger onSelect={() => shell.askDelete(c)}>{t.list.remove}</MenuItem>
      </Menu>
    </header>
  );
}

const icons = { files: FolderTree, terminal: SquareTerminal };

function PanelButton({ which, panel, onPanel, keys }: { which: Panel; panel?: Panel; onPanel: OnPanel; keys: string }) {
  const Icon = icons[which];
  const on = panel === which;
  return (
    <IconButton label={t.conversation[which]} tip={`${t.conversation[which]} (${keys})`} aria-pressed={on} aria-controls="panel" onClick={() => onPanel(on ? undefined : which)}>
      <Icon />
    </IconButton>
  );
}

/** Where there is no room side by side: one of three at a time. */
export function PanelTabs({ panel, onPanel }: { panel?: Panel; onPanel: OnPanel }) {
  const all: [Panel | undefined, string, typeof FolderTree][] = [
    [undefined, t.conversation.tab, MessageSquare], ["files", t.conversation.files, FolderTree], ["terminal", t.conversation.terminal, SquareTerminal],
  ];
  return (
    <div role="tablist" aria-label={t.conversation.panels} className="flex shrink-0 border-b bg-side"
      onKeyDown={(e) => {
        const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
        if (step === 0) return;
        const at = all.findIndex(([p]) => p === panel);
        const next = (at + step + all.length) % all.length;
        onPanel(all[next]![0]);
        (e.currentTarget.children[next] as HTMLElement).focus();
      }}
    >
      {all.map(([p, label, Icon]) => (
        <button
          key={label}
          type="button"
          role="tab"
          aria-selected={panel === p}
          tabIndex={panel === p ? 0 : -1}
          onClick={() => onPanel(p)}
          className="flex h-10 flex-1 items-center justify-center gap-1.5 border-b-2 border-transparent text-sm text-soft aria-selected:border-ink aria-selected:font-medium aria-selected:text-ink focus-visible:-outline-offset-2 [&_svg]:size-4"
        >
          <Icon aria-hidden />
          {label}
        </button>
      ))}
    </div>
  );
}

function RuntimeChip({ conversation: c }: { conversation: Conversation }) {
  const state = stateOf(c);
  const r = c.runtime;
  return (
    <Popover.Root>
      <Popover.Trigger className="flex h-7 shrink-0 items-center gap-1.5 rounded-full px-2 text-xs text-soft hover:bg-hover">
        <Dot tone={state.tone} pulse={state.pulse} />
        {state.text}
      </Popover.Trigger>
      <Popover.Portal>
        <Popover.Content align="start" sideOffset={6} collisionPadding={8} className="z-50 w-80 max-w-[calc(100vw-1rem)] rounded-lg border bg-raised p-3 text-sm shadow-float focus:outline-none">
          <p className="text-soft">{t.runtime.explain[r.state]}</p>
          <dl className="mt-3 grid grid-cols-[auto_1fr] items-center gap-x-4 gap-y-1 text-xs [&_dt]:text-faint">
            <dt>{t.runtime.title}</dt>
            <dd className="flex min-w-0 items-center font-mono">
              <span className="truncate">{r.sandbox_id || t.runtime.noId}</span>
              {r.sandbox_id && <CopyButton label={t.copy} text={() => r.sandbox_id ?? ""} className="-my-1" />}
            </dd>
            {r.reason && <><dt>{t.runtime.reason}</dt><dd className="wrap-anywhere">{r.reason}</dd></>}
            {r.since && <><dt>{t.runtime.since}</dt><dd>{timestamp(r.since)}</dd></>}
            <dt>{t.runtime.agent}</dt><dd>{c.agent}</dd>
            <dt>{t.runtime.environment}</dt><dd>{c.environment}</dd>
          </dl>
        </Popover.Content>
      </Popover.Portal>
    </Popover.Root>
  );
}
