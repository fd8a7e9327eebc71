import { axe, composer, equal, picture, poll, ready, send, timeline } from "./helpers.mjs";

export async function conversation(t) {
  const page = await t.open();
  const step = (name, work) => t.step(name, work, page);
  const log = timeline(page);

  await step("the first screen says what Shell is and takes a command at once", async () => {
    await page.getByText("There is no model behind it").waitFor();
    await poll("focus in the composer", () => composer(page).evaluate((e) => e === document.activeElement));
    await axe(page, "first screen");
    await t.shot(page, "first-run");
  });
  await step("a first command starts a sandbox and shows its output", async () => {
    await send(page, "echo hello from $(whoami); pwd");
    await page.waitForURL(/\/c\/conv_/);
    await log.getByText("hello from").first().waitFor({ timeout: 60_000 });
    await log.getByText("exit 0").waitFor();
    await log.getByText(/Sandbox ready in/).waitFor();
    await axe(page, "conversation");
  });
  await step("output shows as it comes, and a message sent meanwhile waits for its turn", async () => {
    await send(page, "for i in 1 2 3 4 5; do echo tick-$i; sleep 0.6; done");
    await log.getByText("tick-1", { exact: true }).waitFor();
    equal(await log.getByText("tick-5", { exact: true }).count(), 0, "the end isn't there yet");
    await composer(page).fill("echo queued-one");
    await page.getByRole("button", { name: "Queue" }).click();
    await log.getByText("Queued", { exact: true }).waitFor();
    await t.shot(page, "streaming-and-queued");
    await log.getByText("queued-one", { exact: true }).nth(0).waitFor();
    await poll("the queued command ran", async () => (await log.getByText("exit 0").count()) === 3);
    equal(await log.getByText("tick-5", { exact: true }).count(), 1, "each line once");
  });
  await step("colours and progress lines look as on a terminal", async () => {
    await send(page, String.raw`printf '\033[31mred\033[0m plain\n'; printf '10%%\r50%%\r100%%\n'; exit 3`);
    await log.getByText("exit 3", { exact: true }).waitFor();
    const red = await log.getByText("red", { exact: true }).evaluate((e) => getComputedStyle(e).color);
    if (red === (await log.evaluate((e) => getComputedStyle(e).color))) throw new Error("red isn't red");
    equal(await log.getByText("100%", { exact: true }).count(), 1, "the last state of the progress line");
    // innerText of the output only: the command itself has 10% in it.
    equal((await page.getByRole("region", { name: /^Output of printf/ }).innerText()).includes("50%"), false, "earlier states are gone");
  });
  await step("the working directory carries over", async () => {
    await send(page, "mkdir -p sub && cd sub");
    await poll("ended", async () => (await log.getByText("exit 0").count()) === 4);
    await send(page, "pwd");
    await log.getByText("/workspace/sub", { exact: true }).first().waitFor();
  });
  await step("stop ends what is running", async () => {
    await send(page, "echo begun; sleep 300");
    await log.getByText("begun", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Stop", exact: true }).click();
    await log.getByText("Stopped", { exact: true }).waitFor();
    await page.getByRole("button", { name: "Send" }).waitFor();
  });
  await step("the up arrow brings back what was sent", async () => {
    await composer(page).press("ArrowUp");
    equal(await composer(page).inputValue(), "echo begun; sleep 300", "newest");
    await composer(page).press("ArrowUp");
    equal(await composer(page).inputValue(), "pwd", "the one before");
    await composer(page).fill("");
  });
  await step("a reload and a second page show the same picture", async () => {
    const before = await picture(page);
    await page.reload();
    await poll("the same after a reload", async () => (await picture(page)) === before);
    const second = await t.open({ path: new URL(page.url()).pathname });
    await poll("the same in a second page", async () => (await picture(second)) === before);
    await send(second, "echo from-the-second");
    await log.getByText("from-the-second", { exact: true }).waitFor();
    await poll("both the same", async () => (await picture(page)) === (await picture(second)));
    await second.context().close();
  });
  await step("after a dropped network everything is there, once", async () => {
    await send(page, "for i in 1 2 3 4 5 6; do echo drop-$i; sleep 0.5; done");
    await log.getByText("drop-1", { exact: true }).waitFor();
    await page.context().setOffline(true);
    await page.waitForTimeout(2000);
    await page.context().setOffline(false);
    await log.getByText("drop-6", { exact: true }).waitFor({ timeout: 30_000 });
    for (let i = 1; i <= 6; i++) equal(await log.getByText(`drop-${i}`, { exact: true }).count(), 1, `drop-${i}`);
  });
  await step("a message written while offline is sent once when the network is back", async () => {
    await page.context().setOffline(true);
    await send(page, "echo offline-$((1+1))");
    await page.waitForTimeout(700);
    await page.context().setOffline(false);
    await log.getByText("offline-2", { exact: true }).waitFor({ timeout: 30_000 });
    equal(await log.getByText("echo offline-$((1+1))", { exact: true }).count(), 1, "one message");
  });
  await step("long output stays usable", async () => {
    await send(page, "seq 1 20000");
    await poll("the last line", async () => (await log.getByText("20000", { exact: true }).count()) > 0, 30_000);
    await log.getByRole("button", { name: /earlier lines/ }).waitFor();
  });
  await page.context().close();
}

export async function lifecycle(t) {
  const { id, page } = await ready(t);
  const step = (name, work) => t.step(name, work, page);

  await step("renaming changes the title here and in the list", async () => {
    await page.getByRole("heading", { level: 1 }).getByRole("button").click();
    await page.getByRole("textbox", { name: "Title of the conversation" }).fill("Renamed by hand");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Renamed by hand" }).waitFor();
    await page.getByRole("navigation").getByText("Renamed by hand").waitFor();
    equal((await t.api("GET", `/conversations/${id}`)).title, "Renamed by hand", "the server's title");
  });
  await step("the state of the sandbox can be looked at", async () => {
    await page.getByRole("banner").or(page.locator("header")).getByRole("button", { name: "Idle" }).click();
    const c = await t.api("GET", `/conversations/${id}`);
    await page.getByText(c.runtime.sandbox_id).waitFor();
    await page.keyboard.press("Escape");
  });
  await step("deleting asks first, and shows what proves that the sandbox is gone", async () => {
    await page.locator("header").getByRole("button", { name: /^Actions for/ }).click();
    await page.getByRole("menuitem", { name: "Delete…" }).click();
    const dialog = page.getByRole("alertdialog");
    await dialog.getByText("can't be undone").waitFor();
    await axe(page, "delete dialog");
    await dialog.getByRole("button", { name: "Delete" }).click();
    await dialog.getByText("gone (proven)").waitFor({ timeout: 40_000 });
    await t.shot(page, "deleted-with-proof");
    await dialog.getByRole("button", { name: "Done" }).click();
    await page.waitForURL(t.url + "/");
    equal(await page.getByRole("navigation").getByText("Renamed by hand").count(), 0, "not in the list any more");
  });
  await step("an unknown conversation says so", async () => {
    await page.goto(`${t.url}/c/conv_00000000000000000000000000`);
    await page.getByText("There is no such conversation.").waitFor();
  });
  await step("keys: shortcuts, new conversation", async () => {
    await page.locator("body").press("?");
    await page.getByRole("dialog", { name: "Keyboard" }).waitFor();
    await page.keyboard.press("Escape");
    await page.keyboard.press("Alt+n");
    await page.waitForURL(t.url + "/");
  });
  await page.context().close();
}
