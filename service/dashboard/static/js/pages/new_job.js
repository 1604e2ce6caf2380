// The editor: SQL, tables and settings; explained before it runs, with every refusal at its place.
import { html, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/preact.js";
import { change, get } from "../api.js";
import { useCaller } from "../caller.js";
import { draftOf, dropDraft, keepDraft } from "../drafts.js";
import { PlanReport } from "../job/plan.js";
import { Heading, Loading, useIsHere } from "../parts/basics.js";
import { asProblem, Failure, Problem } from "../parts/problem.js";
import { SqlEditor } from "../parts/sql_editor.js";
import { usePolled } from "../polling.js";
import { address, go } from "../router.js";
import { useSchema } from "../schema.js";
import { declared, flat, withSetting } from "../settings.js";
import { TablesForm } from "../job_form/tables.js";
import { SettingsForm } from "../job_form/settings.js";
import { MoreForm } from "../job_form/more.js";

const FRESH = { name: "", mode: "batch", tables: {}, sql: "", settings: {} };

/** The page. `from` is a job whose specification it begins with. */
export function NewJobPage({ from }) {
  const { value: spec, error } = usePolled((_, signal) => beginning(from, signal), 0, from ?? "");
  if (spec) return html`<${Editor} initial=${spec} from=${from} />`;
  return html`<${Heading} title="New job" />${error ? html`<${Failure} error=${error} />` : html`<${Loading} />`}`;
}

async function beginning(from, signal) {
  const kept = draftOf(from);
  if (kept || !from) return { ...FRESH, ...kept };
  const job = await get(`v1/jobs/${encodeURIComponent(from)}`, { signal });
  return { ...job.spec, compare_with: undefined };
}

function Editor({ initial, from }) {
  const { maySubmit } = useCaller();
  const schemas = useSchema();
  const [spec, setSpec] = useState(initial);
  // What became of the request before, with the text that it was about.
  const [answer, setAnswer] = useState({ about: "", problem: null, report: null });
  const [busy, setBusy] = useState("");
  const attempt = useRef(null);
  const isHere = useIsHere();
  const settings = useMemo(() => declared(schemas), [schemas]);
  const [revision, setRevision] = useState(0);
  const update = (part) => setSpec((before) => ({ ...before, ...part }));
  const replace = (part) => {
    update(part);
    setRevision(revision + 1);
  };

  // Not a frame later: by then the tab may have been left.
  useLayoutEffect(() => {
    if (spec !== initial) keepDraft(from, spec);
  }, [spec]);

  async function ask(what, path, onAnswer) {
    if (busy) return;
    setBusy(what);
    const body = posted(spec);
    // The same text is the same job, also when its answer was lost and the button is pressed again.
    const text = JSON.stringify(body);
    setAnswer((before) => ({ ...before, problem: null }));
    if (attempt.current?.text !== text) attempt.current = { text, key: `page-${Date.now()}-${Math.random().toString(36).slice(2)}` };
    try {
      onAnswer(await change("POST", path, { body, headers: what === "submit" ? { "Idempotency-Key": attempt.current.key } : {} }), text);
    } catch (error) {
      setAnswer({ about: text, problem: asProblem(error), report: null });
    } finally {
      setBusy("");
    }
  }

  const explain = () => ask("explain", "v1/explain", (report, about) => setAnswer({ about, problem: null, report }));
  const submit = () =>
    ask("submit", "v1/jobs", (job) => {
      dropDraft(from);
      if (isHere()) go(address(["jobs", job.id]));
    });

  const { problem, report } = answer;
  const isOfNow = answer.about === JSON.stringify(posted(spec));
  const issues = useMemo(() => problem?.errors ?? [], [problem]);
  const inSql = useMemo(() => issues.filter((one) => one.pointer === "/sql"), [issues]);
  return html`
    <p class="crumbs"><a href="#/jobs">Jobs</a></p>
    <div class="page-head"><${Heading} title="New job" /></div>
    <form class="editor" onSubmit=${(event) => event.preventDefault()}>
      <div class="editor-main">
        <label>Name <input value=${spec.name} maxlength="200" placeholder="unnamed" onInput=${(event) => update({ name: event.target.value })} /></label>
        <${TablesForm} tables=${spec.tables} issues=${issues} onChange=${(tables) => update({ tables })} />
        ${spec.query && !spec.sql
          ? html`<${Problem} problem=${{ title: "A structured query", detail: "This job was posted as a structured query, which is kept as it is. Change it through the API." }} />`
          : html`<div class="field-group">
              <h2 id="sql-label">SQL</h2>
              <${SqlEditor} key=${revision} text=${spec.sql ?? ""} onChange=${(sql) => update({ sql })} issues=${inSql} areOfNow=${isOfNow} tables=${completions(spec.tables)} onRun=${explain} label="SQL of the job" />
              <p class="quiet small">Ctrl-Enter explains it.</p>
            </div>`}
        ${problem && html`<${Problem} problem=${problem} />`}
        <div class="buttons">
          <button type="button" class="plain" onClick=${explain} disabled=${busy !== "" || !maySubmit}>${busy === "explain" ? "Planning …" : "Explain"}</button>
          <button type="button" onClick=${submit} disabled=${busy !== "" || !maySubmit}>${busy === "submit" ? "Submitting …" : "Submit"}</button>
          ${!maySubmit && html`<span class="quiet small">Your key may not submit jobs.</span>`}
        </div>
      </div>
      <div class="editor-side">
        <${SettingsForm} declared=${settings} values=${flat(spec.settings)} issues=${issues} streams=${(spec.mode ?? "batch") !== "batch"} onChange=${(name, value) => update({ settings: withSetting(spec.settings, name, value) })} />
        <${MoreForm} spec=${spec} onChange=${update} onReplace=${replace} />
      </div>
    </form>
    <div aria-live="polite">
      ${report && !isOfNow && html`<p class="stale">What follows is of an earlier text: explain it anew.</p>`}
      ${report && html`<${PlanReport} report=${report} />`}
    </div>
  `;
}

/** What is sent: nothing that was left empty, but SQL where nothing else says what is wanted. */
function posted(spec) {
  const isLeftOut = ([name, value]) => value === null || value === undefined || (value === "" && (name !== "sql" || spec.query));
  return Object.fromEntries(Object.entries(spec).filter((entry) => !isLeftOut(entry)));
}

/** Names for completion: tables, with the columns that their schema declares. */
function completions(tables) {
  return Object.fromEntries(
    Object.entries(tables).map(([name, table]) => [name, [...(table.schema ?? "").matchAll(/(?:^|,)\s*`?([\w.]+)`?\s/g)].map((found) => found[1])]),
  );
}
