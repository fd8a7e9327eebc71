// One conversation: its timeline and composer, and beside them (or as tabs, where there is no room) files and terminals.

import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { clsx } from "clsx";
import { lazy, Suspense, useCallback, useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { api, ApiError, type Conversation, type RuntimeState } from "../api";
import { isOpen, type View } from "../journal/view";
import { useJournal } from "../journal/use-journal";
import { t } from "../strings";
import { Button } from "../ui/button";
import { useTabs } from "../ui/media";
import { Centered, Loading, Problem, reason, Spinner } from "../ui/parts";
import { isShell, stateOf, titleOf, useConversation, useEnvironments, useTouch } from "../shell/conversations";
import { conversationRoute, type Panel } from "../shell/router";
import { isTyping } from "../shell/keys";
import { Composer, type ComposerHandle } from "./composer";
import { Header, PanelTabs } from "./header";
import { outbox, useOutbox } from "./outbox";
import { Splitter } from "./splitter";
import { Timeline } from "./timeline";
import { EntryView, Pending } from "./turn";

const FilesPanel = lazy(() => import("../files/panel"));
const TerminalPanel = lazy(() => import("../terminal/panel"));

/** Entries shown at first, and how many more at a time: a long conversation must not cost what isn't looked at. */
const page = 40;

export function ConversationPage({ id }: { id: string }) {
  const { data, error, isError } = useConversation(id);
  const navigate = useNavigate();
  const missing = error instanceof ApiError && (error.status === 404 || error.status === 410);
  if (missing || data?.state === "deleted") {
    return (
      <Centered>
        <h1 className="text-base font-semibold text-ink">{data?.state === "deleted" ? t.conversation.deleted : t.conversation.missing}</h1>
        {missing && <p>{t.conversation.missingHint}</p>}
        <Button look="primary" onClick={() => void navigate({ to: "/" })}>{t.list.create}</Button>
      </Centered>
    );
  }
  if (!data) return isError ? <Centered><Problem error={error} /></Centered> : <Loading />;
  return <Loaded conversation={data} />;
}

function Loaded({ conversation: c }: { conversation: Conversation }) {
  const { panel, file } = conversationRoute.useSearch();
  const navigate = useNavigate();
  const tabs = useTabs();
  const { view, link, error } = useJournal(c.id);
  const shell = isShell({ name: c.agent, environment: c.environment }, useEnvironments());
  const runtime = runtimeOf(c, view);
  const live = useMemo(() => ({ ...c, runtime }), [c, runtime]);

  const show = useCallback((to: Panel | undefined, more?: { file?: string }) =>
    void navigate({ to: "/c/$id", params: { id: c.id }, search: (s) => ({ panel: to, file: s.file, ...more }), replace: true }), [navigate, c.id]);
  useTitle(live);
  useJournalTouch(c.id, view);

  // A panel that was opened stays as it is while another is looked at.
  const opened = useRef(new Set<Panel>());
  if (panel) opened.current.add(panel);
  const settled = useMemo(() => lastEnded(view), [view]);

  useEffect(() => {
    const onKey = (e: KeyboardEvent) => {
      const terminal = e.ctrlKey && !e.shiftKey && !e.altKey && e.code === "Backquote";
      const files = (e.ctrlKey || e.metaKey) && e.shiftKey && e.code === "KeyE";
      if (!terminal && !files) return;
      e.preventDefault();
      e.stopPropagation();
      const which: Panel = terminal ? "terminal" : "files";
      // Out of the terminal by the key that leads into it.
      if (panel === which) {
        if (tabs || !terminal || inTerminal(e.target)) show(undefined);
        document.getElementById("composer")?.focus();
        return;
      }
      show(which);
    };
    // Before the terminal sees it.
    document.addEventListener("keydown", onKey, true);
    return () => document.removeEventListener("keydown", onKey, true);
  }, [panel, show, tabs]);

  const panels = (
    <Suspense fallback={<Loading />}>
      {opened.current.has("files") && (
        <div className={clsx("h-full", panel !== "files" && "hidden")}>
          <FilesPanel id={c.id} runtime={runtime.state} settled={settled} visible={panel === "files"} file={file} onFile={(f) => show("files", { file: f })} />
        </div>
      )}
      {opened.current.has("terminal") && (
        <div className={clsx("h-full", panel !== "terminal" && "hidden")}>
          <TerminalPanel id={c.id} runtime={runtime.state} visible={panel === "terminal"} />
        </div>
      )}
    </Suspense>
  );
  const talk = <Talk conversation={c} view={view} link={link} error={error} shell={shell} runtime={runtime.state} hidden={tabs && panel !== undefined} />;

  return (
    <div className="flex h-full flex-col">
      <Header conversation={live} panel={panel} tabs={tabs} onPanel={show} />
      {tabs ? (
        <>
          <PanelTabs panel={panel} onPanel={show} />
          <div className={clsx("min-h-0 flex-1", panel !== undefined && "hidden")}>{talk}</div>
          <div className={clsx("min-h-0 flex-1", panel === undefined && "hidden")} id="panel">{panels}</div>
        </>
      ) : (
        <Split panel={panel !== undefined} main={talk} side={<div className="h-full" id="panel">{panels}</div>} />
      )}
    </div>
  );
}

const inTerminal = (target: EventTarget | null) => target instanceof Element && target.closest(".xterm") !== null;

function Split({ panel, main, side }: { panel: boolean; main: ReactNode; side: ReactNode }) {
  const [width, setWidth] = useState(Splitter.load);
  return (
    <div className="flex min-h-0 flex-1">
      <div className="min-w-0 flex-1">{main}</div>
      {panel && <Splitter width={width} onWidth={setWidth} />}
      <div className={clsx("min-w-0 shrink-0", !panel && "hidden")} style={{ width: `min(${width}px, 62%)` }}>{side}</div>
    </div>
  );
}

function Talk({ conversation: c, view, link, error, shell, runtime, hidden }: {
  conversation: Conversation; view: View; link: string; error?: ApiError; shell: boolean; runtime: RuntimeState; hidden: boolean;
}) {
  const composer = useRef<ComposerHandle>(null);
  const [shown, setShown] = useState(page);
  const earlier = useCallback(() => setShown((n) => n + page), []);
  const pending = useOutbox(c.id);
  const queries = useQueryClient();
  // How much there was when the page came: less than that isn't worth showing yet.
  const [target] = useState(c.last_seq);
  const loading = view.lastSeq < target && link !== "refused";

  const known = useMemo(() => {
    const ids = new Set<string>();
    const texts: string[] = [];
    for (const e of view.entries) {
      if (e.kind !== "turn") continue;
      ids.add(e.clientMessageId);
      if (texts.at(-1) !== e.text) texts.push(e.text);
    }
    return { ids, texts };
  }, [view.entries]);
  useEffect(() => outbox.settle(c.id, known.ids), [c.id, known.ids, pending]);
  const waiting = pending.filter((m) => !known.ids.has(m.id));

  const openTurns = view.entries.filter((e) => e.kind === "turn" && isOpen(e)).length;
  const running = openTurns > 0 || (view.lastSeq <= c.last_seq && c.turn !== null);
  const stop = useMutation({
    // When nothing was running any more, the journal says how it ended.
    mutationFn: () => api.interrupt(c.id).catch((e: unknown) => {
      if (!(e instanceof ApiError && e.code === "TURN_NOT_RUNNING")) throw e;
    }),
    onSettled: () => queries.invalidateQueries({ queryKey: ["conversation", c.id] }),
  });
  const current = view.entries.find((e) => e.kind === "turn" && isOpen(e))?.key;
  const { reset, mutate } = stop;
  useEffect(() => reset(), [current, reset]);
  const stopping = running && (stop.isPending || stop.isSuccess || c.turn?.state === "interrupting");

  useEffect(() => {
    const onKey = (e: KeyboardEvent) => {
      if ((e.ctrlKey || e.metaKey) && e.key === "." && running && !stopping) {
        e.preventDefault();
        mutate();
      }
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [running, stopping, mutate]);

  const takeBack = useCallback((text: string) => composer.current?.insert(text), []);
  const usable = c.state === "active" && link !== "refused";

  return (
    <div className="flex h-full flex-col">
      <LinkBar link={link} loading={loading} />
      <Timeline onEarlier={!loading && view.entries.length > shown ? earlier : undefined}>
        {loading ? <div className="py-16"><Loading /></div> : (
          <>
            {view.entries.slice(-shown).map((e) => <EntryView key={e.key} entry={e} shell={shell} onTakeBack={takeBack} />)}
            {waiting.map((m) => (
              <Pending key={m.id} m={m} shell={shell} onRetry={() => outbox.retry(c.id, m.id)} onDiscard={() => outbox.discard(c.id, m.id)}
                onTakeBack={() => {
                  outbox.discard(c.id, m.id);
                  takeBack(m.text);
                }} />
            ))}
            {view.entries.length === 0 && waiting.length === 0 && <p className="py-10 text-center text-soft">{shell ? t.conversation.emptyShell : t.conversation.empty}</p>}
          </>
        )}
        {link === "refused" && <Problem error={error} />}
      </Timeline>
      <Announcer view={view} loading={loading} />
      <div className="mx-auto w-full max-w-3xl px-4 pb-[max(0.75rem,env(safe-area-inset-bottom))]">
        {stop.isError && <div className="mb-2"><Problem error={new Error(t.composer.stopFailed(reason(stop.error)))} /></div>}
        {!usable && c.state !== "active" && <p className="mb-2 text-sm text-soft">{stateOf(c).text}</p>}
        {usable && (
          <Composer
            ref={composer}
            draftKey={c.id}
            shell={shell}
            running={running || waiting.some((m) => m.state === "sending") || runtime === "starting"}
            stopping={stopping}
            history={known.texts}
            onSend={(text) => outbox.add(c.id, text)}
            onStop={running ? () => stop.mutate() : undefined}
            autoFocus={!hidden && !window.matchMedia("(pointer: coarse)").matches && !isTyping(document.activeElement)}
          />
        )}
      </div>
    </div>
  );
}

/** Appears only when the link has been away for a moment. */
function LinkBar({ link, loading }: { link: string; loading: boolean }) {
  const away = link === "waiting" || link === "connecting";
  const [late, setLate] = useState(false);
  useEffect(() => {
    if (!away) return setLate(false);
    const timer = setTimeout(() => setLate(true), 1200);
    return () => clearTimeout(timer);
  }, [away]);
  if (!away || !late) return null;
  return (
    <p role="status" className="flex items-center justify-center gap-2 border-b bg-wait-soft px-3 py-1 text-xs text-wait">
      <Spinner />
      {loading ? t.conversation.reconnecting : t.conversation.offline}
    </p>
  );
}

/** Says what ended, for those who listen: streamed output itself isn't read out. */
function Announcer({ view, loading }: { view: View; loading: boolean }) {
  const [said, setSaid] = useState("");
  const last = view.entries.at(-1);
  const state = last?.kind === "turn" ? last.state : undefined;
  const before = useRef(state);
  useEffect(() => {
    const was = before.current;
    before.current = state;
    if (loading || was === state || last?.kind !== "turn" || isOpen(last)) return;
    const tool = last.parts.findLast((p) => p.kind === "tool");
    setSaid(state === "done" ? t.turn.finished(tool?.exitCode) : String(t.turn[state as "failed"] ?? ""));
  }, [state, last, loading]);
  return <p role="status" className="sr-only">{said}</p>;
}

/** The journal is newer than the conversation's own record, or the other way round. */
function runtimeOf(c: Conversation, view: View): Conversation["runtime"] {
  if (view.runtime === undefined || view.lastSeq <= c.last_seq || view.runtime === c.runtime.state) return c.runtime;
  return { ...c.runtime, state: view.runtime };
}

/** Which tool call or turn ended last: files may have changed with it. */
function lastEnded(view: View): string {
  for (let i = view.entries.length - 1; i >= 0 && i >= view.entries.length - 3; i--) {
    const e = view.entries[i]!;
    const tool = e.parts.findLast((p) => p.kind === "tool" && p.status !== "running");
    if (tool) return `${e.key}/${tool.key}`;
  }
  return "";
}

function useTitle(c: Conversation) {
  const title = titleOf(c);
  const busy = stateOf(c).pulse;
  useEffect(() => {
    document.title = `${busy ? "● " : ""}${title} – ${t.app}`;
    return () => void (document.title = t.app);
  }, [title, busy]);
}

/** Asks again for the record when the journal tells of a change. */
function useJournalTouch(id: string, view: View) {
  const touch = useTouch();
  const open = view.entries.filter((e) => e.kind === "turn" && isOpen(e)).map((e) => (e.kind === "turn" ? e.state : "")).join();
  const mark = `${view.entries.length} ${view.runtime} ${open}`;
  const first = useRef(mark);
  useEffect(() => {
    if (first.current === mark) return;
    first.current = mark;
    const timer = setTimeout(() => touch(id), 60);
    return () => clearTimeout(timer);
  }, [mark, id, touch]);
}
