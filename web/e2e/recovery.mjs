// What a person sees when the server dies and comes back, and when a sandbox falls asleep.

import { composer, equal, poll, ready, send, timeline } from "./helpers.mjs";

export async function recovery(t) {
  const { id, page } = await ready(t);
  const step = (name, work) => t.step(name, work, page);
  const log = timeline(page);
  const rows = () => page.locator(".xterm-rows").first().innerText().then((s) => s.replaceAll("\u00a0", " "));
  const shows = (want) => poll(`the terminal shows ${want}`, async () => (await rows()).includes(want), 30_000);

  await page.keyboard.press("Control+Backquote");
  await shows("$");
  await page.locator(".xterm-helper-textarea").focus();
  await page.keyboard.type("for i in 1 2 3 4 5 6 7 8 9; do echo t-$i; sleep 0.5; done\n");
  await send(page, "for i in 1 2 3 4 5 6 7 8 9 10; do echo n-$i; sleep 0.5; done");
  await log.getByText("n-2", { exact: true }).waitFor();
  await t.server.kill();
  await step("a server that is away is said to be", async () => {
    await page.getByText("Connection lost").first().waitFor();
    await t.shot(page, "server-away");
  });
  await t.server.start(["--idle-after", "6s"]);
  await step("a turn goes on over the server's death, each line once", async () => {
    await log.getByText("n-10", { exact: true }).waitFor({ timeout: 30_000 });
    await poll("its end", async () => (await log.getByText("exit 0", { exact: true }).count()) === 2);
    for (let i = 1; i <= 10; i++) equal(await log.getByText(`n-${i}`, { exact: true }).count(), 1, `n-${i}`);
  });
  await step("so does a terminal", async () => {
    await shows("t-9");
    const lines = (await rows()).split("\n").map((l) => l.trim());
    for (let i = 1; i <= 9; i++) equal(lines.filter((l) => l === `t-${i}`).length, 1, `t-${i}`);
  });
  await step("an idle sandbox pauses, which is told, and its terminal is gone", async () => {
    // A terminal that is attached is no use by itself; one that is looked at may be.
    await page.getByRole("button", { name: "Terminal", exact: true }).click();
    await log.getByText("Sandbox paused").waitFor({ timeout: 60_000 });
    await page.getByRole("button", { name: "Terminal", exact: true }).click();
    await page.getByText("This terminal is gone").waitFor();
    await t.shot(page, "terminal-gone");
  });
  await step("looking at files wakes it when a person says so", async () => {
    await page.getByRole("button", { name: "Files", exact: true }).click();
    await page.getByText("The sandbox is paused").waitFor();
    await page.getByRole("button", { name: "Open files" }).click();
    await log.getByText(/Sandbox resumed/).waitFor();
  });
  await step("a message runs in it", async () => {
    await send(page, "echo again-$((2+2))");
    await log.getByText("again-4", { exact: true }).waitFor();
  });
  await step("a deletion elsewhere is told here", async () => {
    await t.api("DELETE", `/conversations/${id}`);
    await page.getByText(/was deleted|no such conversation/).first().waitFor();
    equal(await composer(page).count(), 0, "nothing to write into");
  });
  await page.context().close();
}
