import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { Tooltip } from "radix-ui";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError } from "./api";
import { router } from "./shell/router";
import { startTheme } from "./ui/theme";
import "./styles.css";

startTheme();

const queries = new QueryClient({
  defaultOptions: {
    // The server is often on this very machine: a browser without a network isn't offline to it.
    mutations: { networkMode: "always" },
    queries: {
      networkMode: "always",
      staleTime: 2_000,
      retry: (n, e) => n < 3 && (!(e instanceof ApiError) || e.unreachable || e.retryable),
    },
  },
});

createRoot(document.getElementById("root")!).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      <Tooltip.Provider delayDuration={500}>
        <RouterProvider router={router} />
      </Tooltip.Provider>
    </QueryClientProvider>
  </StrictMode>,
);
