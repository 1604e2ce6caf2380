import assert from "node:assert/strict";
import test from "node:test";
import { address, parseRoute } from "../../../../service/dashboard/static/js/router.js";

test("an address is parsed as it was written", () => {
  for (const parts of [["jobs"], ["jobs", "a/b #?&%", "plan"], ["new"]]) {
    for (const parameters of [{}, { name: "a&b=c#d", state: "failed" }]) {
      assert.deepEqual(parseRoute(address(parts, parameters)), { parts, parameters });
    }
  }
});

test("empty parameters are left out", () => {
  assert.equal(address(["jobs"], { name: "", state: undefined }), "#/jobs");
});

test("an empty address is the first page", () => {
  assert.deepEqual(parseRoute(""), { parts: [], parameters: {} });
});
