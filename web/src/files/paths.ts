export const workspace = "/workspace";

export const join = (dir: string, name: string) => (dir.endsWith("/") ? dir + name : `${dir}/${name}`);
export const dirname = (path: string) => path.slice(0, Math.max(path.lastIndexOf("/"), 1));
export const basename = (path: string) => path.slice(path.lastIndexOf("/") + 1);

/** Below the workspace, without its name: what a person calls the file. */
export const shown = (path: string) => (path === workspace ? "" : path.startsWith(`${workspace}/`) ? path.slice(workspace.length + 1) : path);

export const isName = (s: string) => s !== "" && s !== "." && s !== ".." && !s.includes("/") && !s.includes("\0");

/** Whether `path` is `dir` or in it. */
export const within = (path: string, dir: string) => path === dir || path.startsWith(`${dir}/`);
