import AxeBuilder from "axe-core";

export const composer = (page) => page.getByRole("textbox", { name: "Message" });
export const timeline = (page) => page.getByRole("log", { name: "Conversation" });

export async function send(page, text) {
  await composer(page).fill(text);
  await composer(page).press("Enter");
}

/** A conversation made over the API, with a sandbox that is ready, shown in a page. */
export async function ready(t, options = {}) {
  const c = await t.api("POST", "/conversations", {});
  await run(t, c.id, options.first ?? "echo ready");
  const page = await t.open({ path: `/c/${c.id}`, ...options });
  await composer(page).waitFor();
  return { id: c.id, page };
}

/** Runs a message over the API and waits until its turn has ended. */
export async function run(t, id, text) {
  const turn = await t.api("POST", `/conversations/${id}/messages`, { client_message_id: `e2e-${Date.now()}-${Math.random()}`, text });
  for (let after = 0, until = Date.now() + 60_000; Date.now() < until;) {
    const page = await t.api("GET", `/conversations/${id}/events?after=${after}&limit=500`);
    for (const e of page.items ?? []) {
      after = e.seq;
      if (e.type === "turn.ended" && e.turn_id === turn.id) return e;
    }
    await new Promise((r) => setTimeout(r, 100));
  }
  throw new Error(`the turn of ${text} didn't end`);
}

/** What the timeline says, without times of day and what only shows under the pointer. */
export const picture = (page) => timeline(page).evaluate((e) => e.innerText.replace(/\d\d:\d\d( [AP]M)?/g, "").replace(/\s+/g, " ").trim());

export async function poll(what, check, ms = 15_000) {
  const until = Date.now() + ms;
  let last;
  while (Date.now() < until) {
    try {
      if (await check()) return;
    } catch (e) {
      last = e;
    }
    await new Promise((r) => setTimeout(r, 100));
  }
  throw new Error(`${what}: not within ${ms} ms${last ? ` (${last})` : ""}`);
}

export function equal(got, want, what) {
  if (got !== want) throw new Error(`${what}:\n got ${JSON.stringify(got)}\nwant ${JSON.stringify(want)}`);
}

/** Serious accessibility faults of what is shown. */
export async function axe(page, where) {
  await page.evaluate(AxeBuilder.source);
  const r = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const bad = r.violations.filter((v) => v.impact === "serious" || v.impact === "critical");
  if (bad.length > 0) throw new Error(`${where}: ${bad.map((v) => `${v.id}: ${v.help}\n  ${v.nodes.slice(0, 3).map((n) => `${n.target} ${n.failureSummary}`).join("\n  ")}`).join("\n")}`);
}
