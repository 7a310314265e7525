/* The budget of the bundle: JavaScript of the initial route and of all routes, gzipped.
   Read from the built manifest, so run `npm run build` first. Exit 1 when over. */
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const INITIAL_LIMIT_KB = 200;
const TOTAL_LIMIT_KB = 350;

const out = join(dirname(fileURLToPath(import.meta.url)), "../../controlplane/api/static/ui");
const manifest = JSON.parse(readFileSync(join(out, "manifest.json"), "utf8"));
const gz = (file) => gzipSync(readFileSync(join(out, file)), { level: 9 }).length / 1000;

function withImports(key, seen = new Set()) {
  if (seen.has(key)) return seen;
  seen.add(key);
  for (const next of manifest[key].imports ?? []) withImports(next, seen);
  return seen;
}

const entry = Object.keys(manifest).find((key) => manifest[key].isEntry);
const initial = [...withImports(entry)].map((key) => manifest[key].file).filter((file) => file.endsWith(".js"));
const all = [...new Set(Object.values(manifest).map((chunk) => chunk.file))].filter((file) => file.endsWith(".js"));
const css = [...new Set(Object.values(manifest).flatMap((chunk) => chunk.css ?? []))];
const sum = (files) => files.reduce((total, file) => total + gz(file), 0);

const rows = [["initial JS", sum(initial), INITIAL_LIMIT_KB], ["all JS", sum(all), TOTAL_LIMIT_KB], ["all CSS", sum(css), 40]];
let over = false;
for (const [name, size, limit] of rows) {
  over ||= size > limit;
  console.log(`${name}: ${size.toFixed(1)} kB gz (limit ${limit})${size > limit ? "  OVER" : ""}`);
}
process.exit(over ? 1 : 0);
