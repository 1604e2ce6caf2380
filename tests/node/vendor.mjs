// Bundles what the dashboard brings along: `node vendor.mjs [DIRECTORY]`. What is committed is what this makes of the
// versions in package-lock.json; a test compares them.
import { build } from "esbuild";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "..", "..", "service", "dashboard", "static", "vendor");
mkdirSync(target, { recursive: true });

const entries = readdirSync(join(here, "vendor")).map((name) => join(here, "vendor", name));
const { metafile } = await build({
  entryPoints: entries,
  outdir: target,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none",
  metafile: true,
  absWorkingDir: here,
});
copyFileSync(join(here, "node_modules", "uplot", "dist", "uPlot.min.css"), join(target, "uplot.css"));

const packages = new Set();
for (const path of Object.keys(metafile.inputs)) {
  const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path);
  if (found) packages.add(found[1]);
}
const notices = [...packages].sort().map((name) => {
  const home = join(here, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(home, "package.json"), "utf8"));
  const file = readdirSync(home).find((entry) => /^licen[cs]e/i.test(entry));
  if (!file) throw new Error(`${name} has no licence file`);
  return `${name} ${version} (${license})\n\n${readFileSync(join(home, file), "utf8").trim()}\n`;
});
writeFileSync(join(target, "LICENSES.txt"), notices.join(`\n${"-".repeat(80)}\n\n`));
