import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate, useRouterState } from "@tanstack/react-router";
import { ShieldCheck, TriangleAlert } from "lucide-react";
import { useEffect, useState } from "react";
import { api, ApiError, type Conversation, type Destruction } from "../api";
import { t } from "../strings";
import { Button } from "../ui/button";
import { Question, QuestionCancel } from "../ui/dialog";
import { Problem, Spinner } from "../ui/parts";
import { titleOf, useForget, useTouch } from "./conversations";

type Step = { at: "ask" } | { at: "working" } | { at: "pending"; proof?: Destruction } | { at: "done"; proof?: Destruction } | { at: "failed"; error: unknown };

/** Asks, deletes, and shows what proves that the sandbox is gone. */
export function DeleteDialog({ conversation: c, onClose }: { conversation: Conversation; onClose: () => void }) {
  const [step, setStep] = useState<Step>({ at: "ask" });
  const touch = useTouch();
  const queries = useQueryClient();
  const navigate = useNavigate();
  const shown = useRouterState({ select: (s) => s.location.pathname === `/c/${c.id}` });

  const remove = async () => {
    setStep({ at: "working" });
    try {
      const r = await api.remove(c.id);
      setStep({ at: r.confirmed ? "done" : "pending", proof: r.conversation?.destruction });
      touch();
    } catch (error) {
      // Deleted meanwhile, from another page: that is what was asked for.
      if (error instanceof ApiError && (error.status === 404 || error.status === 410)) setStep({ at: "done" });
      else setStep({ at: "failed", error });
      touch(c.id);
    }
  };

  // While it isn't proven, ask until it is.
  const later = useQuery({
    queryKey: ["deleting", c.id],
    enabled: step.at === "pending",
    refetchInterval: 3_000,
    retry: false,
    queryFn: ({ signal }) => api.conversation(c.id, signal),
  });
  useEffect(() => {
    if (step.at !== "pending") return;
    if (later.data?.state === "deleted") setStep({ at: "done", proof: later.data.destruction });
    else if (later.error instanceof ApiError && (later.error.status === 404 || later.error.status === 410)) setStep({ at: "done", proof: step.proof });
  }, [step, later.data, later.error]);

  const forget = useForget();
  const close = () => {
    onClose();
    if (step.at === "done" || step.at === "pending") {
      if (shown) void navigate({ to: "/" });
      queries.removeQueries({ queryKey: ["conversation", c.id] });
      if (step.at === "done") forget(c.id);
      touch();
    }
  };
  const asking = step.at === "ask" || step.at === "working" || step.at === "failed";

  return (
    <Question
      open
      onClose={close}
      busy={step.at === "working"}
      title={asking ? t.remove.title : titleOf(c)}
      actions={asking ? (
        <>
          <QuestionCancel asChild><Button disabled={step.at === "working"}>{t.cancel}</Button></QuestionCancel>
          <Button look="danger" disabled={step.at === "working"} onClick={() => void remove()}>
            {step.at === "working" && <Spinner />}
            {t.remove.confirm}
          </Button>
        </>
      ) : <QuestionCancel asChild><Button look="primary">{t.done}</Button></QuestionCancel>}
    >
      <div aria-live="polite">
        {step.at === "ask" && <p>{t.remove.body(titleOf(c))}</p>}
        {step.at === "working" && <p>{t.remove.working}</p>}
        {step.at === "failed" && <Problem title={t.remove.failed} error={step.error} />}
        {step.at === "pending" && <Proof proof={step.proof} pending />}
        {step.at === "done" && <Proof proof={step.proof} />}
      </div>
    </Question>
  );
}

function Proof({ proof, pending }: { proof?: Destruction; pending?: boolean }) {
  const outcome = proof?.outcome ?? "";
  const sure = !pending && (outcome === "gone" || outcome === "nothing_named" || proof === undefined);
  const text = pending ? t.remove.pending
    : outcome === "gone" ? t.remove.proven
    : outcome === "retained" ? t.remove.retained
    : sure ? t.remove.provenNone
    : t.remove.notProven;
  return (
    <>
      <p className="flex gap-2.5">
        {pending ? <Spinner className="mt-0.5 text-wait" /> : sure ? <ShieldCheck aria-hidden className="mt-px size-5 shrink-0 text-ok" /> : <TriangleAlert aria-hidden className="mt-px size-5 shrink-0 text-wait" />}
        <span className="text-ink">{text}</span>
      </p>
      {proof && (
        <dl className="mt-3 grid grid-cols-[auto_1fr] gap-x-4 gap-y-1.5 rounded-lg border bg-sunken px-3 py-2.5 text-xs">
          {proof.sandbox_id && <><dt className="text-faint">{t.remove.sandbox}</dt><dd className="font-mono break-all">{proof.sandbox_id}</dd></>}
          <dt className="text-faint">{t.remove.outcome}</dt><dd>{t.remove.outcomes[outcome] ?? outcome}</dd>
          {proof.detail !== undefined && proof.detail !== null && proof.detail !== "" && (
            <><dt className="text-faint">{t.remove.checked}</dt><dd className="wrap-anywhere whitespace-pre-wrap">{detail(proof.detail)}</dd></>
          )}
        </dl>
      )}
    </>
  );
}

const detail = (d: unknown) => (typeof d === "string" ? d : JSON.stringify(d, null, 1));
