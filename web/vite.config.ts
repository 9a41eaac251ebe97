import { defineConfig } from "vite";

const server = process.env["BELLJAR_URL"] ?? "http://127.0.0.1:8787";
const paths = ["/v1", "/metrics", "/console/session"];

// One script and one style sheet with fixed names: the server has them in its binary, by name.
export default defineConfig({
  base: "/",
  server: {
    // The server refuses a foreign Origin, so that the one of the development server is left out.
    proxy: Object.fromEntries(paths.map((path) => [path, { target: server, headers: { origin: server } }])),
  },
  build: {
    outDir: "dist",
    assetsDir: "console",
    assetsInlineLimit: 0,
    modulePreload: false,
    target: "es2022",
    // The first that have light-dark().
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    cssCodeSplit: false,
    chunkSizeWarningLimit: 1000,
    rollupOptions: {
      output: {
        codeSplitting: false,
        entryFileNames: "console/console.js",
        assetFileNames: "console/console[extname]",
      },
    },
  },
});
