import { useSyncExternalStore } from "react";

export function useMedia(query: string): boolean {
  return useSyncExternalStore(
    (changed) => {
      const m = window.matchMedia(query);
      m.addEventListener("change", changed);
      return () => m.removeEventListener("change", changed);
    },
    () => window.matchMedia(query).matches,
  );
}

/** One column: the list is a drawer. */
export const usePhone = () => useMedia("(max-width: 767px)");

/** Not wide enough for a conversation with a panel beside it: they become tabs. */
export const useTabs = () => useMedia("(max-width: 1099px)");
