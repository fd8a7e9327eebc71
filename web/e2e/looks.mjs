// Pictures of the main screens: desktop and phone, light and dark. For a person to look at.

import { axe, poll, ready, run } from "./helpers.mjs";

const demo = [
  "ls -la --color=always",
  String.raw`printf '\033[1mTests\033[0m\n\033[32m  ✓\033[0m parses a header\n\033[32m  ✓\033[0m keeps the order\n\033[31m  ✗ rejects a long line\033[0m\n    expected 413, got 200\n\n\033[33m1 failed\033[0m, 2 passed\n'; exit 1`,
  "df -h / | tail -n 2",
];

export async function looks(t) {
  const { id, page: first } = await ready(t, { first: "mkdir -p src docs && echo '# Notes' > README.md && printf 'package main\\n\\nimport \"fmt\"\\n\\n// main greets.\\nfunc main() {\\n\\tfor i := range 3 {\\n\\t\\tfmt.Println(\"hello\", i)\\n\\t}\\n}\\n' > src/main.go && echo made" });
  await first.context().close();
  for (const text of demo) await run(t, id, text);
  await t.api("PATCH", `/conversations/${id}`, { title: "A look around the sandbox" });

  for (const [name, size] of [["desktop", { width: 1280, height: 800 }], ["phone", { width: 390, height: 844, phone: true }]]) {
    for (const dark of [false, true]) {
      const look = `${name}-${dark ? "dark" : "light"}`;
      const page = await t.open({ ...size, dark });
      const go = (path) => page.goto(t.url + path);
      const check = async (screen) => {
        await t.step(`${look}: ${screen} is accessible and fits`, async () => {
          await axe(page, screen);
          const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
          if (over > 0) throw new Error(`${over} px wider than the screen`);
        }, page);
        await t.shot(page, `${look}-${screen}`);
      };
      await page.getByText("There is no model behind it").waitFor();
      await check("first");
      if (name === "phone") {
        await page.getByRole("button", { name: "Open the list of conversations" }).click();
        await page.getByRole("navigation").getByText("A look around").waitFor();
        await check("list");
      }
      await go(`/c/${id}`);
      await page.getByText("1 failed").first().waitFor();
      await page.waitForTimeout(300);
      await check("conversation");
      await go(`/c/${id}?panel=files`);
      await page.getByRole("treeitem", { name: "README.md" }).waitFor();
      await check("files");
      await go(`/c/${id}?panel=files&file=%2Fworkspace%2Fsrc%2Fmain.go`);
      await page.locator(".cm-content").getByText("Println").waitFor();
      await page.waitForTimeout(400);
      await check("editor");
      await go(`/c/${id}?panel=terminal`);
      const rows = page.locator(".xterm-rows").first();
      await poll("a prompt", async () => (await rows.innerText()).includes("$"));
      await page.locator(".xterm-helper-textarea").first().focus();
      await page.keyboard.type("ls --color=always; echo $TERM\n");
      await page.waitForTimeout(600);
      await check("terminal");
      await page.context().close();
    }
  }
}
