import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import test from "node:test";
import { declaredSettings, defaultsOf, flatten, withSetting } from "../../../../service/dashboard/static/js/settings.js";

const schemas = JSON.parse(execFileSync(process.env.PYTHON, ["-c", "import json, sys, yaml; json.dump(yaml.safe_load(open('openapi.yaml'))['components']['schemas'], sys.stdout)"], { cwd: new URL("../../../..", import.meta.url), maxBuffer: 1 << 26 }));

test("a changed setting leaves the others as they are", () => {
  const before = { agg_phase: "AUTO", join: { ship: "AUTO", skew: "AUTO" } };
  assert.deepEqual(withSetting(before, "join.skew", "SALT"), { agg_phase: "AUTO", join: { ship: "AUTO", skew: "SALT" } });
  assert.deepEqual(withSetting({}, "distinct_split.enabled", "true"), { distinct_split: { enabled: "true" } });
  assert.deepEqual(withSetting({ join: { skew: "SALT" } }, "join.skew", undefined), {});
  assert.deepEqual(before.join, { ship: "AUTO", skew: "AUTO" });
  assert.deepEqual(withSetting({ "join.skew": "AUTO" }, "join.skew", "SALT"), { join: { skew: "SALT" } });
  assert.deepEqual(withSetting({ "join.skew": "AUTO" }, "join.skew", undefined), {});
});

test("flattened settings have their documented names", () => {
  assert.deepEqual(flatten({ agg_phase: "AUTO", join: { skew: "SALT" }, mini_batch: { size: null } }), { agg_phase: "AUTO", "join.skew": "SALT", "mini_batch.size": null });
});

test("every setting of the specification is declared with its choices", () => {
  const found = Object.fromEntries(declaredSettings(schemas).map((setting) => [setting.name, setting]));
  assert.deepEqual(found.agg_phase.choices, ["AUTO", "ONE_PHASE", "TWO_PHASE"]);
  assert.deepEqual(found["distinct_split.enabled"].choices, ["auto", "true", "false"]);
  assert.deepEqual(found.incremental_agg.choices, ["true", "false"]);
  assert.equal(found["distinct_split.bucket_num"].type, "integer");
  assert.equal(found["mini_batch.size"].type, "integer");
  assert.equal(found["mini_batch.allow_latency"].choices, null);
  assert.ok(declaredSettings(schemas).every((setting) => setting.description.length > 10));
  assert.deepEqual(Object.keys(defaultsOf(schemas)).sort(), Object.keys(found).sort());
  assert.equal(defaultsOf(schemas)["skew.threshold"], "64MB");
});
