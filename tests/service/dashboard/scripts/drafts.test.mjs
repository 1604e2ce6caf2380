import assert from "node:assert/strict";
import test from "node:test";
import { deleteDraft, deleteDrafts, readDraft, saveDraft, shapeError } from "../../../../service/dashboard/static/js/drafts.js";

test("a job whose shape the form cannot show has an error", () => {
  const invalid = [null, [], 5, { tables: [] }, { tables: { o: null } }, { settings: "AUTO" }, { limits: [] }, { sink: 1 }, { sql: 5 }, { name: {} }];
  assert.deepEqual(invalid.map(shapeError).filter((message) => message === ""), []);
  const valid = [{}, { tables: null }, { tables: { o: {} }, settings: {}, limits: null, sink: { kind: "managed" }, sql: "", name: null }];
  assert.deepEqual(valid.map(shapeError), ["", "", ""]);
});

// Node has no session storage, so this tests the fallback.
test("each copied job has its own draft, and drafts are deleted one by one or together", () => {
  saveDraft(undefined, { name: "new" });
  saveDraft("an-id", { name: "again" });
  assert.deepEqual([readDraft(undefined), readDraft("an-id"), readDraft("another")], [{ name: "new" }, { name: "again" }, null]);
  deleteDraft("an-id");
  assert.deepEqual([readDraft(undefined), readDraft("an-id")], [{ name: "new" }, null]);
  saveDraft("an-id", { tables: 5 });
  assert.equal(readDraft("an-id"), null);
  deleteDrafts();
  assert.equal(readDraft(undefined), null);
});
