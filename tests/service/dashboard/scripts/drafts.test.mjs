import assert from "node:assert/strict";
import test from "node:test";
import { draftOf, dropDraft, dropDrafts, keepDraft, misshapen } from "../../../../service/dashboard/static/js/drafts.js";

test("what the forms cannot show is said to be so", () => {
  const odd = [null, [], 5, { tables: [] }, { tables: { o: null } }, { settings: "AUTO" }, { limits: [] }, { sink: 1 }, { sql: 5 }, { name: {} }];
  assert.deepEqual(odd.map(misshapen).filter((told) => told === ""), []);
  const sound = [{}, { tables: null }, { tables: { o: {} }, settings: {}, limits: null, sink: { kind: "managed" }, sql: "", name: null }];
  assert.deepEqual(sound.map(misshapen), ["", "", ""]);
});

// Here a page has no storage of its own, so its substitute is what is seen.
test("drafts are kept apart by what they began with, and forgotten alone or together", () => {
  keepDraft(undefined, { name: "new" });
  keepDraft("an-id", { name: "again" });
  assert.deepEqual([draftOf(undefined), draftOf("an-id"), draftOf("another")], [{ name: "new" }, { name: "again" }, null]);
  dropDraft("an-id");
  assert.deepEqual([draftOf(undefined), draftOf("an-id")], [{ name: "new" }, null]);
  keepDraft("an-id", { tables: 5 });
  assert.equal(draftOf("an-id"), null);
  dropDrafts();
  assert.equal(draftOf(undefined), null);
});
