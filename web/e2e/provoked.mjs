// What only the stand-in server brings about at will.

import { composer, poll, ready, send, timeline } from "./helpers.mjs";

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
  await page.context().close();
}
