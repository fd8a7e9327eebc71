// Files of the mock server: a plain directory, /workspace to the console.

import { createHash } from "node:crypto";
import { lstat, mkdir, readdir, readFile, readlink, rename, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join, normalize } from "node:path";

const place = (dir, path, refuse) => {
  const p = normalize(path ?? "/workspace");
  if (p !== "/workspace" && !p.startsWith("/workspace/")) refuse(403, "PATH_ESCAPES", "The path leads out of the workspace.");
  return join(dir, p.slice("/workspace".length));
};

const version = (s) => createHash("sha256").update(`${s.ino}.${s.size}.${s.mtimeNs ?? s.mtimeMs}`).digest("hex").slice(0, 16);

async function entry(file, path) {
  const s = await lstat(file, { bigint: true });
  const type = s.isFile() ? "file" : s.isDirectory() ? "directory" : s.isSymbolicLink() ? "symlink" : "other";
  return {
    name: basename(path), path, type, size: Number(s.size), mode: (Number(s.mode) & 0o7777).toString(8).padStart(4, "0"), owner: "agent", group: "agent",
    modified_at: new Date(Number(s.mtimeMs)).toISOString(), version: version(s), target: type === "symlink" ? await readlink(file) : undefined,
  };
}

export async function files(req, res, { dir, what, url, body, send, refuse }) {
  const path = url.searchParams.get("path") ?? "/workspace";
  const file = place(dir, path, refuse);
  const missing = () => refuse(404, "FILE_NOT_FOUND", "There is no such file.");
  if (!what) {
    const names = await readdir(file).catch(missing);
    return send(res, 200, { path, entries: await Promise.all(names.sort().map((n) => entry(join(file, n), join(path, n)))) });
  }
  if (what === "content") {
    const now = await entry(file, path).catch(() => undefined);
    if (req.method === "PUT") {
      const data = await body(req);
      if (req.headers["if-none-match"] === "*" && now) refuse(412, "FILE_EXISTS", "A file of that name exists.");
      const match = req.headers["if-match"];
      if (match && match !== `"${now?.version}"`) refuse(412, "FILE_CHANGED", "The file was changed meanwhile.");
      await mkdir(dirname(file), { recursive: true });
      await writeFile(file, data);
      return send(res, 200, await entry(file, path));
    }
    if (!now) missing();
    if (now.type === "directory") refuse(400, "IS_A_DIRECTORY", "It is a folder.");
    const data = await readFile(file);
    res.writeHead(200, { "Content-Type": "application/octet-stream", "Content-Length": data.length, ETag: `"${now.version}"`, "Content-Disposition": "attachment" });
    return res.end(data);
  }
  const b = JSON.parse((await body(req)).toString());
  if (what === "mkdir") {
    await mkdir(place(dir, b.path, refuse)).catch(() => refuse(409, "FILE_EXISTS", "A file of that name exists."));
    return send(res, 200, await entry(place(dir, b.path, refuse), b.path));
  }
  if (what === "move") {
    if (await lstat(place(dir, b.to, refuse)).catch(() => undefined)) refuse(409, "FILE_EXISTS", "A file of that name exists.");
    await rename(place(dir, b.from, refuse), place(dir, b.to, refuse)).catch(missing);
    return send(res, 200, await entry(place(dir, b.to, refuse), b.to));
  }
  if (what === "delete") {
    for (const p of b.paths) await rm(place(dir, p, refuse), { recursive: true, force: true });
    return send(res, 204);
  }
  refuse(404, "ROUTE_NOT_FOUND", "There is nothing at this address.");
}
