// Light, dark, or as the system has it.

import { useSyncExternalStore } from "react";
import { load, save } from "./storage";

export type Theme = "system" | "light" | "dark";

const listeners = new Set<() => void>();
const dark = () => window.matchMedia("(prefers-color-scheme: dark)");

export const theme = (): Theme => load<Theme>("theme", "system");

export const isDark = () => {
  const chosen = theme();
  return chosen === "dark" || (chosen === "system" && dark().matches);
};

function show() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
  for (const l of listeners) l();
}

export function startTheme() {
  dark().addEventListener("change", show);
  show();
}

export function setTheme(to: Theme) {
  save("theme", to);
  show();
}

const subscribe = (l: () => void) => {
  listeners.add(l);
  return () => void listeners.delete(l);
};

export const useTheme = () => useSyncExternalStore(subscribe, theme);
export const useDark = () => useSyncExternalStore(subscribe, isDark);
