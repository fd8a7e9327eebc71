import { writeFileSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { axe, equal, poll, ready, run } from "./helpers.mjs";

export async function files(t) {
  const { id, page } = await ready(t, { first: "mkdir -p src && printf 'package main\\n\\nfunc main() {\\n\\tprintln(\"hi\")\\n}\\n' > src/main.go && echo made" });
  const step = (name, work) => t.step(name, work, page);
  const content = (path) => `/conversations/${id}/files/content?path=${encodeURIComponent(path)}`;
  const read = async (path) => (await fetch(`${t.url}/api/v1${content(path)}`)).text();
  const item = (name) => page.getByRole("treeitem", { name, exact: true });
  const code = (text) => page.locator(".cm-content").getByText(text).first();
  const editor = page.getByRole("textbox", { name: /^Text of/ });

  await step("the panel shows the workspace", async () => {
    await page.getByRole("button", { name: "Files", exact: true }).click();
    await item("src").click();
    await item("main.go").waitFor();
    await axe(page, "files");
  });
  await step("a file opens in the editor and is saved", async () => {
    await item("main.go").click();
    await editor.waitFor();
    await code("println").waitFor();
    await editor.click();
    await page.keyboard.press("Control+Home");
    await page.keyboard.type("// edited\n");
    await page.getByText("Unsaved changes").waitFor();
    await t.shot(page, "editor");
    await page.keyboard.press("Control+s");
    await page.getByText("Saved", { exact: true }).waitFor();
    equal(await read("/workspace/src/main.go"), '// edited\npackage main\n\nfunc main() {\n\tprintln("hi")\n}\n', "the file's content");
  });
  await step("a change by a command appears by itself", async () => {
    await run(t, id, "echo '// by a command' >> /workspace/src/main.go");
    await code("// by a command").waitFor();
  });
  await step("saving over somebody else's change asks which one to keep", async () => {
    await editor.click();
    await page.keyboard.press("Control+Home");
    await page.keyboard.type("// mine\n");
    await t.api("PUT", content("/workspace/src/main.go"), "// theirs\n", { "Content-Type": "application/octet-stream" });
    await page.keyboard.press("Control+s");
    await page.getByText("was changed in the sandbox").waitFor();
    equal(await read("/workspace/src/main.go"), "// theirs\n", "nothing was written over");
    await t.shot(page, "conflict");
    await page.getByRole("button", { name: "Load theirs" }).click();
    await code("// theirs").waitFor();
    await poll("nothing to save", async () => (await page.getByText("Unsaved changes").count()) === 0);
  });
  await step("and keeping one's own works too", async () => {
    await editor.click();
    await page.keyboard.type("mine again\n");
    await t.api("PUT", content("/workspace/src/main.go"), "// theirs 2\n", { "Content-Type": "application/octet-stream" });
    await page.keyboard.press("Control+s");
    await page.getByRole("button", { name: "Save mine over it" }).click();
    await poll("mine is there", async () => (await read("/workspace/src/main.go")).includes("mine again"));
  });
  await page.getByRole("button", { name: "Back to the list of files" }).click();

  await step("a new file and a new folder", async () => {
    await item("src").focus();
    await page.getByRole("button", { name: "New folder" }).click();
    await page.keyboard.type("deep");
    await page.keyboard.press("Enter");
    await item("deep").waitFor();
    await item("deep").focus();
    await page.getByRole("button", { name: "New file" }).click();
    await page.keyboard.type("notes.md");
    await page.keyboard.press("Enter");
    await editor.waitFor();
    await page.keyboard.press("Escape");
    equal(await read("/workspace/src/deep/notes.md"), "", "an empty file");
    await page.getByRole("button", { name: "Back to the list of files" }).click();
  });
  await step("renaming with F2", async () => {
    await item("notes.md").focus();
    await page.keyboard.press("F2");
    await page.keyboard.type("todo");
    await page.keyboard.press("Enter");
    await item("todo.md").waitFor();
    await read("/workspace/src/deep/todo.md");
  });
  await step("an upload by the button, and one over an existing file asks", async () => {
    const local = join(t.out, "upload.txt");
    writeFileSync(local, "x".repeat(300_000));
    await item("todo.md").focus();
    await page.locator("input[type=file]").setInputFiles(local);
    await item("upload.txt").waitFor();
    equal((await read("/workspace/src/deep/upload.txt")).length, 300_000, "its size");
    writeFileSync(local, "newer");
    await page.locator("input[type=file]").setInputFiles(local);
    await page.getByText("exists already").waitFor();
    equal((await read("/workspace/src/deep/upload.txt")).length, 300_000, "not replaced unasked");
    await page.getByRole("button", { name: "Replace" }).click();
    await poll("replaced", async () => (await read("/workspace/src/deep/upload.txt")) === "newer");
  });
  await step("an upload by drag and drop, onto a folder", async () => {
    const data = await page.evaluateHandle(() => {
      const d = new DataTransfer();
      d.items.add(new File(["dropped ünïcode"], "drop täst.txt", { type: "text/plain" }));
      return d;
    });
    const target = item("src");
    await target.dispatchEvent("dragover", { dataTransfer: data });
    await page.getByText("Drop to upload into src").waitFor();
    await target.dispatchEvent("drop", { dataTransfer: data });
    await item("drop täst.txt").waitFor();
    equal(await read("/workspace/src/drop täst.txt"), "dropped ünïcode", "its content");
    await t.shot(page, "uploads");
  });
  await step("a download is the file", async () => {
    await item("drop täst.txt").hover();
    await page.getByRole("button", { name: "Actions for drop täst.txt" }).click();
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("menuitem", { name: "Download" }).click()]);
    const to = join(t.out, "download.txt");
    await file.saveAs(to);
    equal(readFileSync(to, "utf8"), "dropped ünïcode", "its content");
    equal(file.suggestedFilename(), "drop täst.txt", "its name");
  });
  await step("deleting asks and removes", async () => {
    await item("deep").focus();
    await page.keyboard.press("Delete");
    await page.getByRole("alertdialog").getByRole("button", { name: "Delete" }).click();
    // The tree counts again once the question is gone.
    await page.getByRole("alertdialog").waitFor({ state: "detached" });
    await poll("gone", async () => (await item("deep").count()) === 0);
    equal((await fetch(`${t.url}/api/v1${content("/workspace/src/deep/todo.md")}`)).status, 404, "on the server too");
  });
  await step("a picture is shown, a binary file isn't opened as text", async () => {
    await run(t, id, "cd /workspace; printf 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==' | base64 -d > dot.png; head -c 100 /dev/zero > zero.bin");
    await item("dot.png").click();
    await page.getByRole("img", { name: "dot.png" }).waitFor();
    await page.getByRole("button", { name: "Back to the list of files" }).click();
    await item("zero.bin").click();
    await page.getByText("This file isn't text.").waitFor();
  });
  await page.context().close();
}
