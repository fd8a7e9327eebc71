// What only the stand-in server brings about at will.

import { composer, equal, poll, ready, run, send, timeline } from "./helpers.mjs";

export async function provoked(t) {
  const { id, page } = await ready(t);
  const step = (name, work) => t.step(name, work, page);
  const log = timeline(page);
  const provoke = (what) => fetch(`${t.url}/__mock/${what}?id=${id}`, { method: "POST" });

  await step("a pause and what wakes it are part of the story", async () => {
    await provoke("pause");
    await log.getByText("Sandbox paused").waitFor();
    await page.getByRole("button", { name: "Files", exact: true }).click();
    await page.getByText("The sandbox is paused").waitFor();
    await t.shot(page, "paused");
    await page.getByRole("button", { name: "Open files" }).click();
    await page.getByRole("treeitem", { name: "README.md" }).waitFor();
    await log.getByText("Sandbox resumed in").waitFor();
  });
  await step("a lost sandbox fails its turn and says what is gone", async () => {
    await send(page, "echo busy; sleep 100");
    await log.getByText("busy", { exact: true }).waitFor();
    await provoke("lose");
    await log.getByText(/Sandbox lost: the host was restarted/).waitFor();
    await log.getByText("Failed", { exact: true }).waitFor();
  });
  await step("an undelivered message offers its text back", async () => {
    await provoke("fail-start");
    await send(page, "echo precious text");
    await log.getByText("Not delivered").waitFor();
    await t.shot(page, "undelivered");
    await log.getByRole("button", { name: "Put the text back" }).click();
    await poll("the text is back", async () => (await composer(page).inputValue()) === "echo precious text");
  });
  await step("dropped connections: nothing twice", async () => {
    await composer(page).fill("");
    await send(page, "for i in 1 2 3 4 5; do echo cut-$i; sleep 0.3; done");
    for (let i = 0; i < 4; i++) {
      await page.waitForTimeout(350);
      await provoke("drop");
    }
    await log.getByText("cut-5", { exact: true }).waitFor({ timeout: 30_000 });
    for (let i = 1; i <= 5; i++) if ((await log.getByText(`cut-${i}`, { exact: true }).count()) !== 1) throw new Error(`cut-${i}`);
  });
  await step("a long conversation shows its end first, and the rest when it is looked for", async () => {
    const long = await t.api("POST", "/conversations", {});
    for (let i = 0; i < 90; i++) await t.api("POST", `/conversations/${long.id}/messages`, { client_message_id: `m${i}`, text: `echo number-${i}` });
    await run(t, long.id, "echo the-end");
    await page.goto(`${t.url}/c/${long.id}`);
    await log.getByText("the-end", { exact: true }).waitFor();
    equal(await log.getByText("number-3", { exact: true }).count(), 0, "the beginning isn't there yet");
    await log.hover();
    await poll("the beginning, by scrolling up", async () => {
      await page.mouse.wheel(0, -1500);
      return (await log.getByText("number-0", { exact: true }).count()) === 1;
    }, 30_000);
    await page.getByRole("button", { name: "Jump to the latest" }).click();
    await poll("the end", () => log.evaluate((e) => e.scrollHeight - e.scrollTop - e.clientHeight < 50));
  });
  await page.context().close();
}
