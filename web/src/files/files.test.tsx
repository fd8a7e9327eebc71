import { fireEvent, render, screen } from "@testing-library/react";
import { Tooltip } from "radix-ui";
import { describe, expect, it, vi } from "vitest";
import { ApiError, type FileEntry } from "../api";
import { decode } from "./document";
import { basename, dirname, isName, join, within } from "./paths";
import { rows } from "./rows";
import { Tree, type TreeActions } from "./tree";
import { Uploads } from "./uploads";

const entry = (path: string, type: FileEntry["type"] = "file"): FileEntry => ({
  name: basename(path), path, type, size: 12, mode: "0640", owner: "agent", group: "agent", modified_at: "2026-01-01T00:00:00Z", version: "v",
});
const listing: Record<string, FileEntry[]> = {
  "/workspace": [entry("/workspace/b10.txt"), entry("/workspace/b9.txt"), entry("/workspace/src", "directory")],
  "/workspace/src": [entry("/workspace/src/main.go")],
};
const at = (dir: string) => listing[dir];

describe("rows", () => {
  it("puts folders first and counts as people do", () => {
    expect(rows("/workspace", new Set(), at).map((r) => r.entry.name)).toEqual(["src", "b9.txt", "b10.txt"]);
  });
  it("shows what is in open folders, one level deeper", () => {
    const open = new Set(["/workspace/src"]);
    expect(rows("/workspace", open, at).map((r) => [r.entry.name, r.level])).toEqual([["src", 1], ["main.go", 2], ["b9.txt", 1], ["b10.txt", 1]]);
  });
});

describe("decode", () => {
  const bytes = (s: string) => new TextEncoder().encode(s);
  it.each<[string, Uint8Array, object]>([
    ["text", bytes("a\nb"), { kind: "text", text: "a\nb", crlf: false }],
    ["CRLF in every line", bytes("a\r\nb\r\n"), { kind: "text", crlf: true }],
    ["mixed endings", bytes("a\r\nb\n"), { kind: "text", crlf: false, text: "a\r\nb\n" }],
    ["a byte order mark stays", bytes("\ufeffa"), { kind: "text", text: "\ufeffa" }],
    ["NUL", bytes("a\0b"), { kind: "binary" }],
    ["not UTF-8", Uint8Array.of(0xff, 0xfe), { kind: "binary" }],
    ["empty", bytes(""), { kind: "text", text: "" }],
  ])("%s", (_, b, want) => expect(decode(b)).toMatchObject(want));
});

it("paths", () => {
  expect(join("/workspace", "a")).toBe("/workspace/a");
  expect(dirname("/workspace/a/b")).toBe("/workspace/a");
  expect(within("/workspace/ab", "/workspace/a")).toBe(false);
  expect(within("/workspace/a/b", "/workspace/a")).toBe(true);
  expect(["", ".", "..", "a/b", "a\0"].map(isName)).toEqual([false, false, false, false, false]);
  expect(isName("...")).toBe(true);
});

describe("Tree", () => {
  function show(open = new Set<string>(), chosen = "/workspace/src") {
    const actions: TreeActions = { open: vi.fn(), toggle: vi.fn(), rename: vi.fn(), remove: vi.fn(), download: vi.fn(), create: vi.fn() };
    const choose = vi.fn();
    render(
      <Tooltip.Provider>
        <Tree root="/workspace" rows={rows("/workspace", open, at)} chosen={chosen} onChoose={choose} loading={() => false} actions={actions} />
      </Tooltip.Provider>,
    );
    return { actions, choose };
  }
  const item = (name: string) => screen.getByRole("treeitem", { name });

  it("is a tree: levels, expanded, one stop for Tab", () => {
    show(new Set(["/workspace/src"]));
    expect(item("src").getAttribute("aria-expanded")).toBe("true");
    expect(item("main.go").getAttribute("aria-level")).toBe("2");
    expect(screen.getAllByRole("treeitem").filter((x) => x.tabIndex === 0)).toHaveLength(1);
  });

  it.each<[string, keyof TreeActions]>([["ArrowRight", "toggle"], ["Enter", "toggle"], ["Delete", "remove"]])("%s on a folder", (key, action) => {
    const { actions } = show();
    fireEvent.keyDown(item("src"), { key });
    expect(actions[action]).toHaveBeenCalledTimes(1);
  });

  it("arrows move, Enter opens a file", () => {
    const { actions, choose } = show(new Set(), "/workspace/b9.txt");
    fireEvent.keyDown(item("b9.txt"), { key: "ArrowDown" });
    expect(choose).toHaveBeenLastCalledWith("/workspace/b10.txt");
    fireEvent.keyDown(item("b9.txt"), { key: "Enter" });
    expect(actions.open).toHaveBeenCalledWith(expect.objectContaining({ name: "b9.txt" }));
  });

  it("offers a folder as a zip", () => {
    const { actions } = show();
    fireEvent.keyDown(screen.getByRole("button", { name: "Actions for src" }), { key: "Enter" });
    fireEvent.click(screen.getByRole("menuitem", { name: "Download as zip" }));
    expect(actions.download).toHaveBeenCalledWith(expect.objectContaining({ name: "src", type: "directory" }));
  });

  it("F2 renames, a bad name is refused, Escape gives up", () => {
    const { actions } = show(new Set(), "/workspace/b9.txt");
    fireEvent.keyDown(item("b9.txt"), { key: "F2" });
    const field = screen.getByRole<HTMLInputElement>("textbox", { name: "Name" });
    fireEvent.change(field, { target: { value: "a/b" } });
    fireEvent.keyDown(field, { key: "Enter" });
    expect(screen.getByRole("alert").textContent).toMatch(/slash/);
    fireEvent.change(field, { target: { value: "good.txt" } });
    fireEvent.keyDown(field, { key: "Enter" });
    expect(actions.rename).toHaveBeenCalledWith(expect.objectContaining({ name: "b9.txt" }), "good.txt");
    fireEvent.keyDown(item("b9.txt"), { key: "F2" });
    fireEvent.keyDown(screen.getByRole("textbox", { name: "Name" }), { key: "Escape" });
    expect(actions.rename).toHaveBeenCalledTimes(1);
  });
});

describe("Uploads", () => {
  const file = (name: string) => new File(["x"], name);
  type Put = ConstructorParameters<typeof Uploads>[0];

  it("sends two at a time", async () => {
    const open: (() => void)[] = [];
    const put = vi.fn<Put>(() => new Promise<void>((r) => open.push(r)));
    const u = new Uploads(put, vi.fn(), vi.fn());
    u.add("/workspace", ["a", "b", "c"].map((n) => ({ file: file(n), path: n })));
    await vi.waitFor(() => expect(put).toHaveBeenCalledTimes(2));
    expect(u.list().map((x) => x.state)).toEqual(["sending", "sending", "waiting"]);
    open[0]!();
    await vi.waitFor(() => expect(put).toHaveBeenCalledTimes(3));
  });

  it("replaces an existing file only when told so", async () => {
    const put = vi.fn<Put>((_, __, replace) => (replace ? Promise.resolve() : Promise.reject(new ApiError(409, "FILE_EXISTS", "exists", false))));
    const changed = vi.fn();
    const u = new Uploads(put, vi.fn(), changed);
    u.add("/workspace/src", [{ file: file("a"), path: "a" }]);
    await vi.waitFor(() => expect(u.list()[0]!.state).toBe("exists"));
    expect(changed).not.toHaveBeenCalled();
    u.replace(u.list()[0]!.id);
    await vi.waitFor(() => expect(u.list()[0]!.state).toBe("done"));
    expect(changed).toHaveBeenCalledWith("/workspace/src");
  });

  it("makes the folders of a dropped folder once, before its files", async () => {
    const order: string[] = [];
    const u = new Uploads((p) => (order.push(p), Promise.resolve()), (p) => (order.push(p), Promise.resolve()), vi.fn());
    u.add("/workspace", [{ file: file("1"), path: "d/e/1" }, { file: file("2"), path: "d/e/2" }]);
    await vi.waitFor(() => expect(order).toHaveLength(4));
    expect(order.slice(0, 2)).toEqual(["/workspace/d", "/workspace/d/e"]);
  });

  it("a cancelled one stops and stays so", async () => {
    const put = vi.fn<Put>((_, __, ___, ____, signal) => new Promise((_r, no) => signal.addEventListener("abort", () => no(new Error("aborted")))));
    const u = new Uploads(put, vi.fn(), vi.fn());
    u.add("/workspace", [{ file: file("a"), path: "a" }]);
    await vi.waitFor(() => expect(put).toHaveBeenCalled());
    u.cancel(u.list()[0]!.id);
    await Promise.resolve();
    expect(u.list()[0]!.state).toBe("cancelled");
    u.clear();
    expect(u.list()).toEqual([]);
  });
});
