import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import test from "node:test";
import { declared, defaultsOf, flat, withSetting } from "../../../../service/dashboard/static/js/settings.js";

const schemas = JSON.parse(execFileSync(process.env.PYTHON, ["-c", "import json, sys, yaml; json.dump(yaml.safe_load(open('openapi.yaml'))['components']['schemas'], sys.stdout)"], { cwd: new URL("../../../..", import.meta.url), maxBuffer: 1 << 26 }));

test("a setting is changed where it stands, and nothing else", () => {
  const before = { agg_phase: "AUTO", join: { ship: "AUTO", skew: "AUTO" } };
  assert.deepEqual(withSetting(before, "join.skew", "SALT"), { agg_phase: "AUTO", join: { ship: "AUTO", skew: "SALT" } });
  assert.deepEqual(withSetting({}, "distinct_split.enabled", "true"), { distinct_split: { enabled: "true" } });
  assert.deepEqual(withSetting({ join: { skew: "SALT" } }, "join.skew", undefined), {});
  assert.deepEqual(before.join, { ship: "AUTO", skew: "AUTO" });
  assert.deepEqual(withSetting({ "join.skew": "AUTO" }, "join.skew", "SALT"), { join: { skew: "SALT" } });
  assert.deepEqual(withSetting({ "join.skew": "AUTO" }, "join.skew", undefined), {});
});

test("settings are flat under their documented names", () => {
  assert.deepEqual(flat({ agg_phase: "AUTO", join: { skew: "SALT" }, mini_batch: { size: null } }), { agg_phase: "AUTO", "join.skew": "SALT", "mini_batch.size": null });
});

test("the form has every setting of the specification, with its choices", () => {
  const found = Object.fromEntries(declared(schemas).map((one) => [one.name, one]));
  assert.deepEqual(found.agg_phase.choices, ["AUTO", "ONE_PHASE", "TWO_PHASE"]);
  assert.deepEqual(found["distinct_split.enabled"].choices, ["auto", "true", "false"]);
  assert.deepEqual(found.incremental_agg.choices, ["true", "false"]);
  assert.equal(found["distinct_split.bucket_num"].type, "integer");
  assert.equal(found["mini_batch.allow_latency"].choices, null);
  assert.ok(declared(schemas).every((one) => one.description.length > 10));
  assert.deepEqual(Object.keys(defaultsOf(schemas)).sort(), Object.keys(found).sort());
  assert.equal(defaultsOf(schemas)["skew.threshold"], "64MB");
});
