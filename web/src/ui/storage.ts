// What the browser keeps: drafts, messages not yet confirmed, looks. A browser that keeps nothing still works.

const prefix = "astrabox.";

export function load<T>(key: string, otherwise: T): T {
  try {
    const s = localStorage.getItem(prefix + key);
    return s === null ? otherwise : (JSON.parse(s) as T);
  } catch {
    return otherwise;
  }
}

export function save(key: string, value: unknown) {
  try {
    if (value === undefined || value === "" || (Array.isArray(value) && value.length === 0)) localStorage.removeItem(prefix + key);
    else localStorage.setItem(prefix + key, JSON.stringify(value));
  } catch {
    // Full or forbidden.
  }
}
