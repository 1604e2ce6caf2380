// The editor for a new job: SQL, tables and settings, with Explain and Submit. Each error is shown at its field.
import { html, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/preact.js";
import { change, get } from "../api.js";
import { useCaller } from "../session.js";
import { deleteDraft, readDraft, saveDraft } from "../drafts.js";
import { PlanReport } from "../job/plan.js";
import { Heading, Loading, useIsMounted } from "../parts/basics.js";
import { Failure, Problem, problemOf } from "../parts/problem.js";
import { SqlEditor } from "../parts/sql_editor.js";
import { usePolled } from "../polling.js";
import { address, go } from "../router.js";
import { declaredSettings, flatten, useSchema, withSetting } from "../settings.js";
import { ParametersForm } from "../job_form/parameters.js";
import { TablesForm } from "../job_form/tables.js";
import { SettingsForm } from "../job_form/settings.js";
import { MoreForm } from "../job_form/more.js";

const EMPTY = { name: "", mode: "batch", tables: {}, sql: "", settings: {} };

/** The page "New job". `from` is the id of the job whose specification is copied, if any. */
export function NewJobPage({ from }) {
  const { value: spec, error } = usePolled((_, signal) => initialSpec(from, signal), 0, from ?? "");
  if (spec) return html`<${Editor} initial=${spec} from=${from} />`;
  return html`<${Heading} title="New job" />${error ? html`<${Failure} error=${error} />` : html`<${Loading} />`}`;
}

async function initialSpec(from, signal) {
  const draft = readDraft(from);
  if (draft || !from) return { ...EMPTY, ...draft };
  const job = await get(`v1/jobs/${encodeURIComponent(from)}`, { signal });
  return { ...job.spec, compare_with: undefined };
}

function Editor({ initial, from }) {
  const { maySubmit } = useCaller();
  const schemas = useSchema();
  const [spec, setSpec] = useState(initial);
  // The result of the last request, and the job's text that it is about.
  const [answer, setAnswer] = useState({ subject: "", problem: null, report: null });
  const [busy, setBusy] = useState("");
  const attempt = useRef(null);
  const isMounted = useIsMounted();
  const settings = useMemo(() => declaredSettings(schemas), [schemas]);
  const [revision, setRevision] = useState(0);
  const update = (part) => setSpec((before) => ({ ...before, ...part }));
  const replace = (part) => {
    update(part);
    setRevision(revision + 1);
  };

  // A layout effect runs before the next frame: the tab may be closed by then.
  useLayoutEffect(() => {
    if (spec !== initial) saveDraft(from, spec);
  }, [spec]);

  async function request(action, path, onAnswer) {
    if (busy) return;
    setBusy(action);
    const body = requestBody(spec);
    // The same text has the same key: pressing the button again after a lost response submits no second job.
    const text = JSON.stringify(body);
    setAnswer((before) => ({ ...before, problem: null }));
    if (attempt.current?.text !== text) attempt.current = { text, key: `page-${Date.now()}-${Math.random().toString(36).slice(2)}` };
    try {
      onAnswer(await change("POST", path, { body, headers: action === "submit" ? { "Idempotency-Key": attempt.current.key } : {} }), text);
    } catch (error) {
      setAnswer({ subject: text, problem: problemOf(error), report: null });
    } finally {
      setBusy("");
    }
  }

  const explain = () => request("explain", "v1/explain", (report, subject) => setAnswer({ subject, problem: null, report }));
  const submit = () =>
    request("submit", "v1/jobs", (job) => {
      deleteDraft(from);
      if (isMounted()) go(address(["jobs", job.id]));
    });

  const { problem, report } = answer;
  const isCurrent = answer.subject === JSON.stringify(requestBody(spec));
  const issues = useMemo(() => problem?.errors ?? [], [problem]);
  const inSql = useMemo(() => issues.filter((one) => one.pointer === "/sql"), [issues]);
  return html`
    <p class="crumbs"><a href="#/jobs">Jobs</a></p>
    <div class="page-head"><${Heading} title="New job" /></div>
    <form class="editor" onSubmit=${(event) => event.preventDefault()}>
      <div class="editor-main">
        <label>Name <input value=${spec.name} maxlength="200" placeholder="optional; lists show the SQL" onInput=${(event) => update({ name: event.target.value })} /></label>
        <${TablesForm} tables=${spec.tables} issues=${issues} onChange=${(tables) => update({ tables })} />
        ${spec.query && !spec.sql
          ? html`<${Problem} problem=${{ title: "Structured query", detail: "This job was submitted as a structured query, which this form keeps unchanged. Change it through the API." }} />`
          : html`<div class="field-group">
              <h2 id="sql-label">SQL</h2>
              <${SqlEditor} key=${revision} text=${spec.sql ?? ""} onChange=${(sql) => update({ sql })} issues=${inSql} areCurrent=${isCurrent} tables=${completions(spec.tables)} onRun=${explain} label="SQL of the job" />
              <p class="quiet small">Ctrl+Enter: Explain</p>
              <${ParametersForm} sql=${spec.sql ?? ""} parameters=${spec.parameters} issues=${issues} onChange=${(parameters) => update({ parameters })} />
            </div>`}
        ${problem && html`<${Problem} problem=${problem} />`}
        <div class="buttons">
          <button type="button" class="plain" onClick=${explain} disabled=${busy !== "" || !maySubmit}>${busy === "explain" ? "Planning …" : "Explain"}</button>
          <button type="button" onClick=${submit} disabled=${busy !== "" || !maySubmit}>${busy === "submit" ? "Submitting …" : "Submit"}</button>
          ${!maySubmit && html`<span class="quiet small">Your API key cannot submit jobs.</span>`}
        </div>
      </div>
      <div class="editor-side">
        <${SettingsForm} declared=${settings} values=${flatten(spec.settings)} issues=${issues} streams=${(spec.mode ?? "batch") !== "batch"} onChange=${(name, value) => update({ settings: withSetting(spec.settings, name, value) })} />
        <${MoreForm} spec=${spec} onChange=${update} onReplace=${replace} />
      </div>
    </form>
    <div aria-live="polite">
      ${report && !isCurrent && html`<p class="stale">The plan below is for an earlier version of this job. Explain it again.</p>`}
      ${report && html`<${PlanReport} report=${report} />`}
    </div>
  `;
}

/** Returns the job to send, without empty fields. Empty SQL is sent unless there is a structured query. */
function requestBody(spec) {
  const isLeftOut = ([name, value]) => value === null || value === undefined || (value === "" && (name !== "sql" || spec.query));
  return Object.fromEntries(Object.entries(spec).filter((entry) => !isLeftOut(entry)));
}

/** Returns the tables and their declared columns for completion. */
function completions(tables) {
  return Object.fromEntries(
    Object.entries(tables).map(([name, table]) => [name, [...(table.schema ?? "").matchAll(/(?:^|,)\s*`?([\w.]+)`?\s/g)].map((found) => found[1])]),
  );
}
