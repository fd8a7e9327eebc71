import { axe, equal, poll, ready, run } from "./helpers.mjs";

const text = (page) => page.locator(".xterm-rows:visible").first().innerText().then((s) => s.replaceAll("\u00a0", " "));
const has = (page, want) => poll(`the terminal shows ${want}`, async () => (await text(page)).includes(want), 20_000);

async function type(page, line) {
  await page.locator(".xterm-helper-textarea:visible").first().focus();
  await page.keyboard.type(line);
  await page.keyboard.press("Enter");
}

export async function terminal(t) {
  const { id, page } = await ready(t);
  const step = (name, work) => t.step(name, work, page);
  const panel = page.locator("#panel");

  await step("the panel opens a terminal at once", async () => {
    await page.keyboard.press("Control+Backquote");
    await has(page, "$");
    await type(page, "echo sum-$((40+2)); tty");
    await has(page, "sum-42");
    await has(page, "/dev/pts");
    await axe(page, "terminal");
  });
  await step("colours and UTF-8", async () => {
    await type(page, String.raw`printf '\033[32mgrün\033[0m ✓ 中文\n'`);
    await has(page, "grün ✓");
  });
  await step("Ctrl+C interrupts", async () => {
    await type(page, "sleep 300; echo not-this");
    await page.waitForTimeout(400);
    await page.keyboard.press("Control+c");
    await has(page, "^C");
    await type(page, "echo back-$((1+1))");
    await has(page, "back-2");
  });
  await step("the terminal has the size of its panel, also after a change", async () => {
    const size = async (mark) => {
      await type(page, `echo ${mark}=$(stty size)=`);
      const answer = new RegExp(`${mark}=(\\d+) (\\d+)=`);
      await poll("an answer", async () => answer.test(await text(page)));
      return answer.exec(await text(page)).slice(1).map(Number);
    };
    const [rows, cols] = await size("before");
    if (t.mock) return; // its terminals keep their size
    await page.setViewportSize({ width: 1500, height: 950 });
    await page.waitForTimeout(500);
    const [more] = await size("after");
    if (!(more > rows)) throw new Error(`rows ${rows} → ${more}, columns ${cols}`);
    await page.setViewportSize({ width: 1280, height: 800 });
  });
  await step("full-screen programs and much output", async () => {
    await type(page, "clear; seq 1 30000 | tail -n 30000; echo end-$((2+2))");
    await has(page, "end-4");
  });
  await step("a dropped network loses and doubles nothing", async () => {
    await type(page, "clear; for i in 1 2 3 4 5 6 7 8; do echo line-$i; sleep 0.4; done; echo over-$((3+3))");
    await has(page, "line-1");
    await page.context().setOffline(true);
    // Being offline doesn't cut a WebSocket that is open: cut it as a dead network would.
    await page.evaluate(() => window.dispatchEvent(new Event("offline")));
    await page.waitForTimeout(1200);
    await page.context().setOffline(false);
    await has(page, "over-6");
    const shown = await text(page);
    for (let i = 1; i <= 8; i++) equal(shown.split("\n").filter((l) => l.trim() === `line-${i}`).length, 1, `line-${i}`);
  });
  await step("a reload brings the terminal back with what it showed", async () => {
    await type(page, "clear; echo kept-$((5+5))");
    await has(page, "kept-10");
    await page.reload();
    await has(page, "kept-10");
    await type(page, "echo after-$((6+6))");
    await has(page, "after-12");
  });
  await step("a second terminal beside the first", async () => {
    await page.getByRole("button", { name: "New terminal" }).click();
    await page.getByRole("tab", { name: "Terminal 2" }).waitFor();
    await has(page, "$");
    await type(page, "echo second-$((7+7))");
    await has(page, "second-14");
    await page.getByRole("tab", { name: "Terminal 1" }).click();
    await has(page, "after-12");
    await t.shot(page, "terminal");
  });
  await step("another page may watch or take over, and the first one sees it", async () => {
    const other = await t.open({ path: `/c/${id}?panel=terminal` });
    await other.getByText("used from elsewhere").first().waitFor();
    await t.shot(other, "terminal-held");
    await other.getByRole("button", { name: "Watch" }).first().click();
    await other.getByText("Another page writes").first().waitFor();
    await type(page, "echo watched-$((8+8))");
    await has(other, "watched-16");
    await other.getByRole("button", { name: "Take over" }).first().click();
    await page.getByText("took this terminal over").waitFor();
    await t.shot(page, "terminal-displaced");
    await type(other, "echo mine-$((9+9))");
    await has(other, "mine-18");
    await other.context().close();
    await panel.getByRole("button", { name: "Take over" }).first().click();
    await has(page, "mine-18");
  });
  await step("a shell that ends says so", async () => {
    await type(page, "exit 7");
    await page.getByText("ended with exit code 7").waitFor();
    await t.shot(page, "terminal-exited");
    await panel.getByRole("button", { name: "Close", exact: true }).first().click();
    await poll("its tab is gone", async () => (await page.getByRole("tab", { name: "Terminal 1" }).count()) === 0);
  });
  await step("ending a terminal asks first", async () => {
    await page.getByRole("button", { name: "End terminal 2" }).click();
    await page.getByRole("alertdialog").getByRole("button", { name: "End it" }).click();
    await poll("none is left", async () => ((await t.api("GET", `/conversations/${id}/terminals`)).items ?? []).length === 0);
  });
  await step("the key that leads in leads out", async () => {
    await page.getByRole("button", { name: "New terminal" }).last().click();
    await has(page, "$");
    await page.locator(".xterm-helper-textarea:visible").first().focus();
    await page.keyboard.press("Control+Backquote");
    await poll("focus in the composer", () => page.evaluate(() => document.activeElement?.id === "composer"));
  });
  await run(t, id, "true");
  await page.context().close();
}
