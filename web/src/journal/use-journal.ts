import { useEffect, useSyncExternalStore } from "react";
import { api } from "../api";
import { Follower, type Snapshot } from "./follow";

/** Journals read so far, newest last: going back to a conversation shows it at once and resumes where it was. */
const kept = new Map<string, Follower>();
const keptLimit = 8;
/** A tab that nobody sees gives its connection back: browsers allow six to a server. */
const hiddenMs = 60_000;

function follower(id: string): Follower {
  const f = kept.get(id) ?? new Follower({ open: (after, signal) => api.stream(id, after, signal) });
  kept.delete(id);
  kept.set(id, f);
  while (kept.size > keptLimit) kept.delete(kept.keys().next().value!);
  return f;
}

export function useJournal(id: string): Snapshot {
  const f = kept.get(id) ?? follower(id);
  useEffect(() => {
    follower(id);
    f.start();
    let hidden: ReturnType<typeof setTimeout> | undefined;
    const seen = () => {
      clearTimeout(hidden);
      if (document.hidden) hidden = setTimeout(() => f.stop(), hiddenMs);
      else {
        f.start();
        f.nudge();
      }
    };
    const online = () => f.nudge();
    document.addEventListener("visibilitychange", seen);
    window.addEventListener("online", online);
    return () => {
      clearTimeout(hidden);
      document.removeEventListener("visibilitychange", seen);
      window.removeEventListener("online", online);
      f.stop();
    };
  }, [f, id]);
  return useSyncExternalStore(f.subscribe, f.getSnapshot);
}
