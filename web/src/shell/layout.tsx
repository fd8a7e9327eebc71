import { Outlet, useNavigate, useRouterState } from "@tanstack/react-router";
import { createContext, useContext, useEffect, useMemo, useState } from "react";
import { t } from "../strings";
import { Sheet } from "../ui/dialog";
import { usePhone } from "../ui/media";
import { DeleteDialog } from "./delete-dialog";
import { ShortcutsDialog } from "./shortcuts-dialog";
import { Sidebar } from "./sidebar";
import { useConversations } from "./conversations";
import { isTyping } from "./keys";
import type { Conversation } from "../api";

interface Shell {
  openList: () => void;
  askDelete: (c: Conversation) => void;
}

const ShellContext = createContext<Shell>({ openList: () => {}, askDelete: () => {} });
export const useShell = () => useContext(ShellContext);

export function Layout() {
  const phone = usePhone();
  const [drawer, setDrawer] = useState(false);
  const [shortcuts, setShortcuts] = useState(false);
  const [deleting, setDeleting] = useState<Conversation>();
  const path = useRouterState({ select: (s) => s.location.pathname });
  useEffect(() => setDrawer(false), [path]);
  useGlobalKeys(() => setShortcuts(true));
  const shell = useMemo<Shell>(() => ({ openList: () => setDrawer(true), askDelete: setDeleting }), []);

  return (
    <ShellContext value={shell}>
      <a href="#main" className="sr-only focus:not-sr-only focus:absolute focus:z-50 focus:rounded-md focus:bg-raised focus:p-2">{t.skip}</a>
      <div className="flex h-dvh overflow-hidden">
        {phone ? (
          <Sheet side="left" open={drawer} onClose={() => setDrawer(false)} title={t.list.title}>
            <Sidebar onShortcuts={() => setShortcuts(true)} />
          </Sheet>
        ) : (
          <aside className="flex w-64 shrink-0 flex-col border-r bg-side"><Sidebar onShortcuts={() => setShortcuts(true)} /></aside>
        )}
        <main id="main" tabIndex={-1} className="min-w-0 flex-1 focus:outline-none"><Outlet /></main>
      </div>
      {deleting && <DeleteDialog conversation={deleting} onClose={() => setDeleting(undefined)} />}
      <ShortcutsDialog open={shortcuts} onClose={() => setShortcuts(false)} />
    </ShellContext>
  );
}

function useGlobalKeys(showShortcuts: () => void) {
  const navigate = useNavigate();
  const { list } = useConversations();
  const path = useRouterState({ select: (s) => s.location.pathname });

  useEffect(() => {
    const onKey = (e: KeyboardEvent) => {
      if (e.defaultPrevented) return;
      if (e.altKey && !e.ctrlKey && !e.metaKey && e.code === "KeyN") {
        e.preventDefault();
        void navigate({ to: "/" });
      } else if (e.altKey && !e.ctrlKey && (e.key === "ArrowUp" || e.key === "ArrowDown")) {
        const at = list.findIndex((c) => path === `/c/${c.id}`);
        const next = list[at < 0 ? 0 : at + (e.key === "ArrowUp" ? -1 : 1)];
        if (next) {
          e.preventDefault();
          void navigate({ to: "/c/$id", params: { id: next.id } });
        }
      } else if (!e.ctrlKey && !e.metaKey && !e.altKey && !isTyping(e.target)) {
        if (e.key === "/") {
          e.preventDefault();
          document.getElementById("composer")?.focus();
        } else if (e.key === "?") {
          e.preventDefault();
          showShortcuts();
        }
      }
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [navigate, list, path, showShortcuts]);
}
