import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, describe, expect, it, vi } from "vitest";
import { api, ApiError, type Conversation } from "../api";
import { DeleteDialog } from "./delete-dialog";

vi.mock("@tanstack/react-router", () => ({ useNavigate: () => () => {}, useRouterState: () => false }));

const c: Conversation = {
  id: "conv_1", title: "Mine", agent: "shell", environment: "local", state: "active", runtime: { state: "ready", sandbox_id: "abc" }, turn: null, queued: 0,
  last_seq: 1, created_at: "", updated_at: "",
};
const gone = { sandbox_id: "abc", outcome: "gone", detail: "a separate check found no such sandbox" };

function show(onClose = () => {}) {
  render(<QueryClientProvider client={new QueryClient()}><DeleteDialog conversation={c} onClose={onClose} /></QueryClientProvider>);
}

describe("DeleteDialog", () => {
  afterEach(() => vi.useRealTimers());

  it("asks first, then shows the proof", async () => {
    const remove = vi.spyOn(api, "remove").mockResolvedValue({ confirmed: true, conversation: { ...c, state: "deleted", destruction: gone } });
    show();
    expect(screen.getByText(/can't be undone/)).toBeTruthy();
    expect(remove).not.toHaveBeenCalled();
    await userEvent.click(screen.getByRole("button", { name: "Delete" }));
    expect(await screen.findByText("Deleted. The sandbox is gone.")).toBeTruthy();
    expect(screen.getByText("gone (proven)")).toBeTruthy();
    expect(screen.getByText(gone.detail)).toBeTruthy();
  });

  it("says that it isn't proven yet, and asks until it is", async () => {
    vi.spyOn(api, "remove").mockResolvedValue({ confirmed: false, conversation: { ...c, state: "deleting", destruction: { ...gone, outcome: "unconfirmed" } } });
    const get = vi.spyOn(api, "conversation").mockResolvedValue({ ...c, state: "deleting" });
    show();
    await userEvent.click(screen.getByRole("button", { name: "Delete" }));
    expect(await screen.findByText(/isn't proven yet/)).toBeTruthy();
    expect(screen.queryByText("gone (proven)")).toBeNull();
    get.mockResolvedValue({ ...c, state: "deleted", destruction: gone });
    expect(await screen.findByText("gone (proven)", {}, { timeout: 5000 })).toBeTruthy();
  });

  it("never calls an unconfirmed destruction gone", async () => {
    vi.spyOn(api, "remove").mockResolvedValue({ confirmed: true, conversation: { ...c, destruction: { ...gone, outcome: "unconfirmed" } } });
    show();
    await userEvent.click(screen.getByRole("button", { name: "Delete" }));
    expect(await screen.findByText(/without proof/)).toBeTruthy();
    expect(screen.queryByText(/The sandbox is gone/)).toBeNull();
  });

  it("shows why it was not deleted", async () => {
    vi.spyOn(api, "remove").mockRejectedValue(new ApiError(503, "RUNTIME_UNAVAILABLE", "The sandbox service doesn't answer.", true));
    show();
    await userEvent.click(screen.getByRole("button", { name: "Delete" }));
    expect(await screen.findByText("The sandbox service doesn't answer.")).toBeTruthy();
    expect(screen.getByRole("button", { name: "Delete" })).toBeTruthy();
  });
});
