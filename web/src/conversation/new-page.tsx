// The first screen: something can be typed and run at once.

import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Menu as MenuIcon, TriangleAlert } from "lucide-react";
import { useRef, useState } from "react";
import { api, type Finding } from "../api";
import { isShell, useConversations, useEnvironments, useTouch } from "../shell/conversations";
import { useShell } from "../shell/layout";
import { Mark } from "../shell/sidebar";
import { t } from "../strings";
import { IconButton } from "../ui/button";
import { randomId } from "../ui/id";
import { usePhone } from "../ui/media";
import { Problem, reason } from "../ui/parts";
import { Composer, type ComposerHandle } from "./composer";
import { outbox } from "./outbox";

export function NewPage() {
  const navigate = useNavigate();
  const shell = useShell();
  const phone = usePhone();
  const touch = useTouch();
  const { list, isSuccess } = useConversations();
  const agents = useQuery({ queryKey: ["agents"], queryFn: api.agents, staleTime: 60_000 });
  const environments = useEnvironments();
  const doctor = useQuery({ queryKey: ["doctor"], queryFn: api.doctor, staleTime: 60_000, retry: false });
  const [chosen, setChosen] = useState<string>();
  const [busy, setBusy] = useState(false);
  const [failed, setFailed] = useState<string>();
  const composer = useRef<ComposerHandle>(null);
  // The same conversation, when its creation has to be asked for again.
  const attempt = useRef<{ text: string; key: string }>(undefined);

  const all = agents.data ?? [];
  const agent = all.find((a) => a.name === chosen) ?? all.find((a) => isShell(a, environments)) ?? all[0];
  const isShellAgent = !agent || isShell(agent, environments);
  const findings = (doctor.data ?? []).filter((f) => !f.ok);
  // What keeps sandboxes from working is in the way; the rest is there to be looked up.
  const problems = findings.filter((f) => f.severity === "error");
  const remarks = findings.filter((f) => f.severity !== "error");

  const start = async (text: string) => {
    setBusy(true);
    setFailed(undefined);
    if (attempt.current?.text !== text) attempt.current = { text, key: randomId() };
    try {
      const c = await api.create({ agent: agent?.name, title: titleFrom(text) }, attempt.current.key);
      attempt.current = undefined;
      outbox.add(c.id, text);
      touch(c.id, c);
      void navigate({ to: "/c/$id", params: { id: c.id } });
      return true;
    } catch (e) {
      setFailed(t.composer.createFailed(reason(e)));
      return false;
    } finally {
      setBusy(false);
    }
  };

  return (
    <div className="flex h-full flex-col">
      {phone && <header className="flex h-12 shrink-0 items-center gap-1 border-b px-2"><IconButton label={t.list.open} onClick={shell.openList}><MenuIcon /></IconButton><span className="font-semibold">{t.app}</span></header>}
      <div className="min-h-0 flex-1 overflow-y-auto">
        <div className="mx-auto flex min-h-full w-full max-w-2xl flex-col justify-center gap-4 px-4 py-8 pb-[12dvh]">
          <div>
            <Mark className="mb-3 size-7 text-ink" />
            <h1 className="text-2xl font-semibold tracking-tight">{t.first.heading}</h1>
            <p className="mt-1 text-soft">{isShellAgent ? t.first.shell : t.first.other(agent.name)}</p>
          </div>
          {all.length > 1 && (
            <label className="flex items-center gap-2 text-sm text-soft">
              {t.first.agent}
              <select value={agent?.name} onChange={(e) => setChosen(e.target.value)} className="h-8 rounded-md border bg-raised px-2 text-ink">
                {all.map((a) => <option key={a.id} value={a.name}>{a.name}</option>)}
              </select>
            </label>
          )}
          <Composer ref={composer} draftKey="new" shell={isShellAgent} busy={busy} history={[]} onSend={start} autoFocus={!phone} />
          {failed && <Problem error={new Error(failed)} />}
          {isShellAgent && isSuccess && list.length < 3 && (
            <div className="flex flex-col items-start gap-1.5">
              <p className="text-xs text-faint">{t.first.try}</p>
              {t.first.examples.map((x) => (
                <button key={x} type="button" disabled={busy} onClick={() => void start(x)}
                  className="max-w-full truncate rounded-md border bg-raised px-2.5 py-1.5 font-mono text-xs text-soft hover:bg-hover hover:text-ink coarse:py-2.5">
                  {x}
                </button>
              ))}
            </div>
          )}
          {problems.length > 0 && (
            <section aria-label={t.first.doctor} className="rounded-lg border border-wait/30 bg-wait-soft p-3">
              <h2 className="flex items-center gap-2 text-sm font-medium text-wait"><TriangleAlert aria-hidden className="size-4" />{t.first.doctor}</h2>
              <Findings list={problems} />
            </section>
          )}
          {remarks.length > 0 && (
            <details className="text-xs text-faint">
              <summary className="w-fit">{t.first.remarks(remarks.length)}</summary>
              <Findings list={remarks} />
            </details>
          )}
        </div>
      </div>
    </div>
  );
}

function Findings({ list }: { list: Finding[] }) {
  return (
    <ul className="mt-2 flex flex-col gap-2">
      {list.map((f) => (
        <li key={f.id} className="text-soft">
          <p className="first-letter:uppercase">{f.summary}</p>
          {f.fix && <p><span className="text-faint">{t.first.fix}: </span><code className="text-xs wrap-anywhere">{f.fix}</code></p>}
        </li>
      ))}
    </ul>
  );
}

/** The first line without control characters, short enough for a list. */
export function titleFrom(text: string): string {
  const line = text.trim().split(/[\r\n]/, 1)[0]!.replace(/\p{Cc}+/gu, " ").trim();
  const chars = [...line];
  return chars.length > 60 ? `${chars.slice(0, 59).join("").trimEnd()}…` : line;
}
