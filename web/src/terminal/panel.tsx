// The Terminal panel: several terminals as tabs; those of another page are there too, to watch or take over.

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { clsx } from "clsx";
import { Plus, X } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { api, type RuntimeState, type TerminalInfo } from "../api";
import { t } from "../strings";
import { Button, IconButton } from "../ui/button";
import { Question, QuestionCancel } from "../ui/dialog";
import { Centered, Loading, Problem, Spinner } from "../ui/parts";
import { useWake, WakeGate } from "../ui/wake";
import Screen from "./screen";

interface Props { id: string; runtime: RuntimeState; visible: boolean }

export default function TerminalPanel(props: Props) {
  const { open, wake } = useWake(props.runtime);
  // Terminals that were on the screen stay there and say what became of them.
  const [used, setUsed] = useState(false);
  if (!open && !used) return <WakeGate runtime={props.runtime} label={t.wake.terminal} onWake={wake} />;
  return <Terminals {...props} onUsed={setUsed} />;
}

/** A tab: its number stays when others close. */
interface Tab { id: string; n: number }

function Terminals({ id, visible, onUsed }: Props & { onUsed: (used: boolean) => void }) {
  const queries = useQueryClient();
  const [tabs, setTabs] = useState<Tab[]>([]);
  const [current, setCurrent] = useState<string>();
  const [ending, setEnding] = useState<Tab>();
  const next = useRef(1);

  const known = useQuery({ queryKey: ["terminals", id], queryFn: () => api.terminals(id), staleTime: 5_000, refetchOnWindowFocus: false, retry: false });
  const create = useMutation({
    mutationFn: () => api.createTerminal(id, { cols: 80, rows: 24 }),
    onSuccess: (x) => {
      add([x]);
      setCurrent(x.id);
      void queries.invalidateQueries({ queryKey: ["terminals", id] });
    },
  });

  const have = useRef(new Set<string>());
  const add = (list: TerminalInfo[]) => {
    const fresh = list.filter((x) => !have.current.has(x.id)).map((x) => ({ id: x.id, n: next.current++ }));
    if (fresh.length === 0) return;
    for (const f of fresh) have.current.add(f.id);
    setTabs((l) => [...l, ...fresh]);
  };

  // What is there is shown; where nothing is, a terminal is made: that is what the panel was opened for.
  const begun = useRef(false);
  const { mutate } = create;
  useEffect(() => {
    if (!known.data) return;
    add([...known.data].sort((a, b) => a.created_at.localeCompare(b.created_at)));
    if (!begun.current && known.data.length === 0 && visible) mutate();
    if (visible) begun.current = true;
  }, [known.data, visible, mutate]);
  useEffect(() => onUsed(tabs.length > 0), [tabs.length, onUsed]);

  const shown = tabs.find((x) => x.id === current) ?? tabs[0];
  const drop = (tab: Tab) => {
    const at = tabs.indexOf(tab);
    const rest = tabs.filter((x) => x !== tab);
    setTabs(rest);
    if (shown === tab) setCurrent((rest[at] ?? rest[at - 1])?.id);
  };
  const end = async (tab: Tab) => {
    setEnding(undefined);
    drop(tab);
    // One that ended by itself is gone already.
    await api.deleteTerminal(id, tab.id).catch(() => {});
    await queries.invalidateQueries({ queryKey: ["terminals", id] });
  };

  return (
    <div className="flex h-full flex-col bg-canvas">
      <div className="flex h-10 shrink-0 items-center border-b pr-1 pl-1 coarse:h-12">
        <div role="tablist" aria-label={t.terminal.tabs} className="flex min-w-0 flex-1 gap-0.5 overflow-x-auto"
          onKeyDown={(e) => {
            const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
            if (step === 0 || !shown) return;
            const to = (tabs.indexOf(shown) + step + tabs.length) % tabs.length;
            setCurrent(tabs[to]!.id);
            e.currentTarget.querySelectorAll<HTMLElement>("[role=tab]")[to]?.focus();
          }}
        >
          {tabs.map((tab) => (
            <button key={tab.id} type="button" role="tab" aria-selected={tab === shown} tabIndex={tab === shown ? 0 : -1} onClick={() => setCurrent(tab.id)}
              className="h-7 shrink-0 rounded-md px-2.5 text-[0.8125rem] text-soft hover:bg-hover focus-visible:-outline-offset-2 aria-selected:bg-hover aria-selected:font-medium aria-selected:text-ink coarse:h-9">
              {t.terminal.label(tab.n)}
            </button>
          ))}
        </div>
        <IconButton label={t.terminal.create} size="medium" disabled={create.isPending} onClick={() => create.mutate()}>{create.isPending ? <Spinner /> : <Plus />}</IconButton>
        {shown && <IconButton label={t.terminal.end(shown.n)} size="medium" onClick={() => setEnding(shown)}><X /></IconButton>}
      </div>
      {create.isError && <div className="border-b p-2"><Problem error={create.error} onRetry={() => create.mutate()} /></div>}
      <div className="relative min-h-0 flex-1">
        {tabs.map((tab) => (
          <div key={tab.id} role="tabpanel" aria-label={t.terminal.label(tab.n)} className={clsx("absolute inset-0", tab !== shown && "invisible")}>
            <Screen id={id} tid={tab.id} n={tab.n} visible={visible && tab === shown} onCreate={() => {
              drop(tab);
              create.mutate();
            }} onClose={() => void end(tab)} />
          </div>
        ))}
        {tabs.length === 0 && (known.isPending || create.isPending) && <Loading />}
        {tabs.length === 0 && known.isError && <div className="p-3"><Problem error={known.error} onRetry={() => void known.refetch()} /></div>}
        {tabs.length === 0 && known.isSuccess && !create.isPending && !create.isError && (
          <Centered><Button look="primary" onClick={() => create.mutate()}>{t.terminal.create}</Button></Centered>
        )}
      </div>
      {ending && (
        <Question open onClose={() => setEnding(undefined)} title={t.terminal.endTitle}
          actions={<>
            <QuestionCancel asChild><Button>{t.cancel}</Button></QuestionCancel>
            <Button look="danger" onClick={() => void end(ending)}>{t.terminal.endConfirm}</Button>
          </>}>
          <p>{t.terminal.endBody}</p>
        </Question>
      )}
    </div>
  );
}
