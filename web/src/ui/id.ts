/** A random id. Not crypto.randomUUID: that exists on https and localhost only. */
export function randomId(): string {
  const b = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(b, (x) => x.toString(16).padStart(2, "0")).join("");
}
