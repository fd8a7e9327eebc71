// Looking at files or a terminal wakes a sandbox that sleeps, which costs something: so it happens when a person asks for it.

import { useEffect, useState } from "react";
import type { RuntimeState } from "../api";
import { t } from "../strings";
import { Button } from "./button";
import { Centered } from "./parts";

const awake = (s: RuntimeState) => s === "ready" || s === "starting" || s === "resuming";

/** Whether the sandbox may be spoken to, and the way to allow it. */
export function useWake(runtime: RuntimeState): { open: boolean; wake: () => void } {
  const [asked, setAsked] = useState(false);
  const up = awake(runtime);
  // The wish is fulfilled once it is awake: when it goes to sleep again or is lost, that is not undone unasked.
  useEffect(() => {
    if (up) setAsked(false);
  }, [up]);
  return { open: up || asked, wake: () => setAsked(true) };
}

export function WakeGate({ runtime, label, onWake }: { runtime: RuntimeState; label: string; onWake: () => void }) {
  const text = runtime === "paused" || runtime === "pausing" ? t.wake.paused : runtime === "lost" ? t.wake.lost : t.wake.none;
  return (
    <Centered>
      <p className="max-w-64">{text}</p>
      <Button look="primary" onClick={onWake}>{label}</Button>
    </Centered>
  );
}
