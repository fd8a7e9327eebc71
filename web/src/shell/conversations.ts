// The list of conversations, and what their states are called and look like.

import { useInfiniteQuery, useQuery, useQueryClient, type InfiniteData } from "@tanstack/react-query";
import { useCallback, useMemo } from "react";
import { api, ApiError, type Conversation, type Environment } from "../api";
import { t } from "../strings";
import type { Tone } from "../ui/parts";

type Page = Awaited<ReturnType<typeof api.conversations>>;

export function useConversations() {
  const q = useInfiniteQuery({
    queryKey: ["conversations"],
    queryFn: ({ pageParam, signal }) => api.conversations(pageParam, signal),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => last.next_cursor || undefined,
    refetchInterval: 4_000,
  });
  const list = useMemo(() => {
    const seen = new Set<string>();
    // A conversation that moved between two pages of the list is on both of them.
    return (q.data?.pages ?? []).flatMap((p) => p.items ?? []).filter((c) => c.state !== "deleted" && !seen.has(c.id) && seen.add(c.id));
  }, [q.data]);
  return { ...q, list };
}

export function useConversation(id: string) {
  const queries = useQueryClient();
  return useQuery({
    queryKey: ["conversation", id],
    queryFn: ({ signal }) => api.conversation(id, signal),
    refetchInterval: (q) => (q.state.error instanceof ApiError && q.state.error.status === 404 ? false : 10_000),
    placeholderData: () => queries.getQueryData<InfiniteData<Page>>(["conversations"])?.pages.flatMap((p) => p.items ?? []).find((c) => c.id === id),
  });
}

/** Says that something about a conversation changed: both the list and the page ask again. */
export function useTouch() {
  const queries = useQueryClient();
  return useCallback((id?: string, now?: Conversation) => {
    if (id && now) queries.setQueryData(["conversation", id], now);
    else if (id) void queries.invalidateQueries({ queryKey: ["conversation", id] });
    void queries.invalidateQueries({ queryKey: ["conversations"] });
  }, [queries]);
}

/** Takes a conversation that is deleted off the list, without waiting for the list to be asked for. */
export function useForget() {
  const queries = useQueryClient();
  return useCallback((id: string) => {
    queries.setQueryData<InfiniteData<Page>>(["conversations"], (d) =>
      d && { ...d, pages: d.pages.map((p) => ({ ...p, items: (p.items ?? []).filter((c) => c.id !== id) })) });
  }, [queries]);
}

/** One word and one colour for all that a conversation is at the moment. */
export function stateOf(c: Conversation): { text: string; tone: Tone; pulse?: boolean } {
  if (c.state === "deleting") return { text: t.state.deleting, tone: "wait", pulse: true };
  if (c.state === "archived") return { text: t.state.archived, tone: "none" };
  switch (c.runtime.state) {
    case "starting":
    case "resuming":
    case "pausing":
    case "terminating":
      return { text: t.state[c.runtime.state], tone: "work", pulse: true };
    case "lost":
      return { text: t.state.lost, tone: "bad" };
  }
  if (c.turn) return { text: t.state.working, tone: "work", pulse: true };
  if (c.queued > 0) return { text: t.state.queued, tone: "work" };
  switch (c.runtime.state) {
    case "ready":
      return { text: t.state.ready, tone: "ok" };
    case "paused":
      return { text: t.state.paused, tone: "wait" };
    default:
      return { text: t.state.none, tone: "none" };
  }
}

const noEnvironments: Environment[] = [];

export const useEnvironments = () =>
  useQuery({ queryKey: ["environments"], queryFn: api.environments, staleTime: 60_000 }).data ?? noEnvironments;

/** Whether an Agent runs what is typed, with no model behind it. Until its Environment is known, its name tells. */
export function isShell(agent: { name: string; environment?: string }, environments: readonly Environment[]): boolean {
  const program = environments.find((e) => e.name === agent.environment)?.program;
  return program === undefined ? /shell/i.test(agent.name) : program === "shell";
}

export const titleOf = (c: { title: string } | undefined) => c?.title.trim() || t.list.untitled;
