import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

const backend = process.env["HOLDFAST_BACKEND"] ?? "http://127.0.0.1:8900";

/* The bundle is committed inside the Django package: names are hashed by content and
   nothing in the output depends on time, path or machine, so that CI can rebuild and compare. */
export default defineConfig({
  base: "/static/ui/",
  plugins: [react()],
  build: {
    outDir: "../controlplane/api/static/ui",
    emptyOutDir: true,
    manifest: "manifest.json",
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    sourcemap: false,
  },
  server: {
    host: "127.0.0.1",
    proxy: {
      "/api": { target: backend, ws: true },
      "/healthz": backend,
    },
  },
  test: {
    environment: "happy-dom",
    include: ["src/**/*.test.ts", "src/**/*.test.tsx"],
    testTimeout: 10_000,
  },
});
