// The tree as the rows that are seen. Pure.

import type { FileEntry } from "../api";

export interface Row {
  entry: FileEntry;
  level: number;
  open: boolean;
}

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

/** Folders first, then names as people count. */
export const order = (a: FileEntry, b: FileEntry) =>
  Number(b.type === "directory") - Number(a.type === "directory") || collator.compare(a.name, b.name);

export function rows(root: string, open: ReadonlySet<string>, entries: (dir: string) => FileEntry[] | undefined): Row[] {
  const out: Row[] = [];
  const walk = (dir: string, level: number) => {
    for (const entry of [...(entries(dir) ?? [])].sort(order)) {
      const isOpen = entry.type === "directory" && open.has(entry.path);
      out.push({ entry, level, open: isOpen });
      if (isOpen) walk(entry.path, level + 1);
    }
  };
  walk(root, 1);
  return out;
}
