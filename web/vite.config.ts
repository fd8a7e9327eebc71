import react from "@vitejs/plugin-react";
import tailwindcss from "@tailwindcss/vite";
import { defineConfig } from "vitest/config";

// Development only: where /api requests are passed on to.
const server = process.env.ASTRABOX_URL ?? "http://127.0.0.1:8099";

export default defineConfig({
  plugins: [react(), tailwindcss()],
  build: {
    // dist/index.html is a committed placeholder, so the build has a folder of its own.
    outDir: "dist/console",
    emptyOutDir: true,
    target: "es2022",
    // The server's policy allows no data: fonts or scripts; small assets stay files.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    // The first load has a budget of its own (npm run size); what is loaded on demand may be larger.
    chunkSizeWarningLimit: 900,
  },
  server: {
    host: "127.0.0.1",
    port: 5173,
    // A server refuses foreign origins, so requests take on its own.
    proxy: { "/api": { target: server, ws: true, changeOrigin: true, rewriteWsOrigin: true, headers: { origin: server } } },
  },
  test: {
    environment: "jsdom",
    include: ["src/**/*.test.{ts,tsx}"],
    setupFiles: ["src/test-setup.ts"],
    restoreMocks: true,
  },
});
