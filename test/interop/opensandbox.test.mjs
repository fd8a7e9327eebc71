// OpenSandbox's own client against the bundled service and execd: what was
// written for another service works unchanged.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as pause } from "node:timers/promises";

import { ConnectionConfig, Sandbox, SandboxManager } from "@alibaba-group/opensandbox";

import { start } from "./service.mjs";

let service, connectionConfig, box;

before(async () => {
  service = await start();
  connectionConfig = new ConnectionConfig({ domain: service.domain, apiKey: service.apiKey, protocol: "http" });
  box = await Sandbox.create({
    connectionConfig,
    image: "astrabox:host",
    timeoutSeconds: 600,
    metadata: { team: "interop" },
    resource: { cpu: "1", memory: "512Mi" },
  });
});

after(async () => {
  await box?.kill().catch(() => {});
  await box?.close();
  await service?.stop();
});

const text = (messages) => messages.map((m) => m.text).join("\n");

test("describes and renews a sandbox", async () => {
  const info = await box.getInfo();
  assert.equal(info.status.state, "Running");
  assert.equal(info.metadata.team, "interop");
  const before = info.expiresAt;
  await box.renew(1800);
  assert.ok((await box.getInfo()).expiresAt > before);
  const manager = SandboxManager.create({ connectionConfig });
  const found = await manager.listSandboxInfos({ metadata: { team: "interop" } });
  assert.deepEqual(found.items.map((s) => s.id), [box.id]);
  await manager.close();
});

test("runs commands", async () => {
  const e = await box.commands.run('echo out; echo err >&2; printf "%s %s" "$PWD" "$X"; exit 3', { workingDirectory: "/usr", envs: { X: "y" } });
  assert.equal(text(e.logs.stdout), "out\n/usr y");
  assert.equal(text(e.logs.stderr), "err");
  assert.equal(e.exitCode, 3);
  assert.equal(e.error.value, "3");
});

test("gets the output as it comes", async () => {
  const seen = [];
  for await (const event of box.commands.runStream("for i in 1 2 3; do echo $i; done")) seen.push(event.type + (event.text ?? ""));
  assert.deepEqual(seen.filter((s) => s.startsWith("stdout")), ["stdout1", "stdout2", "stdout3"]);
  assert.equal(seen.at(-1), "execution_complete");
});

test("is told of a timeout", async () => {
  const e = await box.commands.run("sleep 60", { timeoutSeconds: 1 });
  assert.equal(e.error.value, "-1");
  assert.match(e.error.traceback.join(" "), /timeout after 1s/);
});

test("runs in the background, reads the log and interrupts", async () => {
  const e = await box.commands.run("echo one; echo two; exec sleep 60", { background: true });
  let log = { content: "", cursor: 0 };
  while (log.content !== "one\ntwo\n") {
    const page = await box.commands.getBackgroundCommandLogs(e.id, log.cursor);
    log = { content: log.content + page.content, cursor: page.cursor ?? log.cursor };
    await pause(10);
  }
  assert.equal((await box.commands.getCommandStatus(e.id)).running, true);
  await box.commands.interrupt(e.id);
  assert.equal((await box.commands.getCommandStatus(e.id)).running, false);
});

test("keeps a session's directory and variables", async () => {
  const id = await box.commands.createSession({ workingDirectory: "/tmp" });
  await box.commands.runInSession(id, "export KEPT='a b'; cd /usr");
  const e = await box.commands.runInSession(id, 'echo "$KEPT $PWD"');
  assert.equal(text(e.logs.stdout), "a b /usr");
  await box.commands.deleteSession(id);
});

test("writes, reads, finds, moves, changes and deletes files", async () => {
  const dir = "/tmp/interop dir";
  const odd = `${dir}/pr$1ce ü.txt`;
  await box.files.createDirectories([{ path: dir, mode: 750 }]);
  await box.files.writeFiles([
    { path: odd, data: "aXb\n", mode: 640 },
    { path: `${dir}/bytes`, data: new Uint8Array([0, 255, 10, 13]), mode: 4755 },
  ]);
  assert.equal(await box.files.readFile(odd), "aXb\n");
  assert.deepEqual([...(await box.files.readBytes(`${dir}/bytes`, { range: "bytes=1-2" }))], [255, 10]);
  const info = await box.files.getFileInfo([odd, `${dir}/bytes`]);
  assert.equal(info[odd].mode, 640);
  assert.equal(info[`${dir}/bytes`].mode, 4755);
  assert.equal(info[odd].owner, "root");

  await box.files.replaceContents([{ path: odd, oldContent: "X", newContent: "--" }]);
  await box.files.moveFiles([{ src: odd, dest: `${dir}/moved.txt` }]);
  assert.equal(await box.files.readFile(`${dir}/moved.txt`), "a--b\n");
  await box.files.setPermissions([{ path: `${dir}/moved.txt`, mode: 600 }]);
  assert.deepEqual((await box.files.search({ path: dir, pattern: "*.txt" })).map((f) => f.path), [`${dir}/moved.txt`]);
  assert.deepEqual((await box.files.listDirectory({ path: dir, depth: 1 })).map((f) => f.path), [`${dir}/bytes`, `${dir}/moved.txt`]);
  await box.files.deleteFiles([`${dir}/moved.txt`]);
  await assert.rejects(box.files.readFile(`${dir}/moved.txt`));
  await box.files.deleteDirectories([dir]);
});

test("reads metrics", async () => {
  const m = await box.metrics.getMetrics();
  assert.ok(m.cpuCount > 0 && m.memoryTotalMiB > 0);
});

test("reaches a program's port through execd", async () => {
  const serve = "import http.server as h; h.HTTPServer(('127.0.0.1', 8123), h.SimpleHTTPRequestHandler).serve_forever()";
  const e = await box.commands.run(`exec python3 -c "${serve}"`, { background: true, workingDirectory: "/usr" });
  const at = await box.getEndpoint(8123);
  let answer;
  do {
    await pause(10);
    answer = await fetch(`http://${at.endpoint}/`, { headers: at.headers });
  } while (answer.status === 502);
  assert.equal(answer.status, 200);
  assert.match(await answer.text(), /Directory listing/);
  await box.commands.interrupt(e.id);
});

test("isolates a session with a workspace of its own", async () => {
  assert.equal((await box.isolation.capabilities()).available, true);
  await box.files.createDirectories([{ path: "/root/isolated", mode: 700 }]);
  const session = await box.isolation.create({ workspace: { path: "/root/isolated", mode: "rw" }, share_net: false });
  await session.run("cd /root/isolated; export KEPT=yes; echo inside > file");
  const e = await session.run('echo "$KEPT $PWD"; cat file; touch /usr/outside && echo written');
  assert.match(text(e.logs.stdout), /^yes \/root\/isolated\ninside\n/);
  assert.doesNotMatch(text(e.logs.stdout), /written/);
  assert.equal((await session.get()).status, "active");
  assert.equal(await session.files.readFile("file"), "inside\n");
  await session.delete();
  assert.deepEqual(await box.isolation.list(), []);
  assert.equal(await box.files.readFile("/root/isolated/file"), "inside\n");
});

test("pauses and resumes under the same id, with its files", async () => {
  await box.commands.run("echo kept > /root/kept");
  await box.pause();
  while ((await box.getInfo()).status.state !== "Paused") await pause(10);
  const id = box.id;
  box = await box.resume();
  assert.equal(box.id, id);
  assert.equal(text((await box.commands.run("cat /root/kept")).logs.stdout), "kept");
});

test("destroys it", async () => {
  await box.kill();
  await assert.rejects(box.getInfo(), (err) => err.statusCode === 404 || /NOT_FOUND/.test(String(err.error?.code)));
});
