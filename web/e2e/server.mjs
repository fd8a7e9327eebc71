// A server that the tests start, kill and start again.

import { spawn } from "node:child_process";
import { openSync } from "node:fs";
import { poll } from "./helpers.mjs";

export class Server {
  constructor(command, url, log) {
    this.command = command.split(" ").filter((x) => x !== "");
    this.url = url;
    this.log = openSync(log, "a");
  }

  /** Resolves when it is ready. `more` are further arguments. */
  async start(more = []) {
    const [name, ...args] = this.command;
    this.process = spawn(name, [...args, ...more], { stdio: ["ignore", this.log, this.log] });
    this.ended = new Promise((resolve) => this.process.once("exit", (code, signal) => resolve(signal ?? code)));
    let over;
    void this.ended.then((how) => (over = how));
    await poll("the server is ready", async () => {
      if (over !== undefined) throw new Error(`the server ended: ${over}`);
      return (await fetch(`${this.url}/readyz`)).ok;
    }, 60_000);
  }

  async kill() {
    this.process.kill("SIGKILL");
    await this.ended;
  }

  async stop() {
    this.process.kill("SIGTERM");
    await this.ended;
  }
}
