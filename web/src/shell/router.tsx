import { createRootRoute, createRoute, createRouter } from "@tanstack/react-router";
import { ConversationPage } from "../conversation/page";
import { NewPage } from "../conversation/new-page";
import { t } from "../strings";
import { Button } from "../ui/button";
import { Centered, Problem } from "../ui/parts";
import { Layout } from "./layout";

export type Panel = "files" | "terminal";

const root = createRootRoute({
  component: Layout,
  notFoundComponent: () => <Centered>{t.conversation.missing}</Centered>,
  errorComponent: ({ error }) => (
    <Centered>
      <Problem title={t.unexpected} error={error}>
        <Button small onClick={() => location.reload()}>{t.reload}</Button>
      </Problem>
    </Centered>
  ),
});

const home = createRoute({ getParentRoute: () => root, path: "/", component: NewPage });

export const conversationRoute = createRoute({
  getParentRoute: () => root,
  path: "/c/$id",
  validateSearch: (s: Record<string, unknown>): { panel?: Panel; file?: string } => ({
    panel: s.panel === "files" || s.panel === "terminal" ? s.panel : undefined,
    file: typeof s.file === "string" ? s.file : undefined,
  }),
  component: function Page() {
    const { id } = conversationRoute.useParams();
    // Nothing of one conversation may show in another.
    return <ConversationPage key={id} id={id} />;
  },
});

export const router = createRouter({ routeTree: root.addChildren([home, conversationRoute]), defaultPreload: false });

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}
