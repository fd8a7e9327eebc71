// Starts the bundled lifecycle service on a temporary state directory.
import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as after } from "node:timers/promises";

const bin = join(import.meta.dirname, "../../bin");

// start gives { domain, apiKey } of a service, and stop(), which ends it.
export async function start() {
  const state = await mkdtemp(join(tmpdir(), "astrabox-interop-"));
  const child = spawn(join(bin, "astrabox"), ["sandboxd", "--state-dir", state], { stdio: ["ignore", "inherit", "inherit"] });
  const ended = new Promise((resolve) => child.once("exit", (code, signal) => resolve(signal ?? code)));
  const stop = async () => {
    child.kill("SIGTERM");
    const how = await ended;
    await rm(state, { recursive: true, force: true });
    if (how !== 0) throw new Error(`the service ended with ${how}`);
  };
  try {
    const listen = await until(ended, async () => JSON.parse(await readFile(join(state, "sandboxd/listen.json"), "utf8")));
    const apiKey = (await readFile(join(state, "sandboxd/key"), "utf8")).trim();
    return { domain: new URL(listen.url).host, apiKey, stop };
  } catch (err) {
    await stop().catch(() => {});
    throw err;
  }
}

// until tries f every 20 ms for 30 s, while the program that it depends on runs.
async function until(ended, f) {
  const deadline = Date.now() + 30_000;
  for (;;) {
    try {
      return await f();
    } catch (err) {
      if (Date.now() > deadline) throw err;
    }
    const how = await Promise.race([ended, after(20, "running")]);
    if (how !== "running") throw new Error(`the service ended with ${how}`);
  }
}
