// The editor: SQL, tables and settings; explained before it runs, with every refusal at its place.
import { html, useEffect, useMemo, useRef, useState } from "../../vendor/preact.js";
import { change, get } from "../api.js";
import { useCaller } from "../caller.js";
import { PlanReport } from "../job/plan.js";
import { Heading, Loading, useIsHere } from "../parts/basics.js";
import { Failure, Problem } from "../parts/problem.js";
import { SqlEditor } from "../parts/sql_editor.js";
import { address, go } from "../router.js";
import { useSchema } from "../schema.js";
import { declared, flat, withSetting } from "../settings.js";
import { TablesForm } from "../job_form/tables.js";
import { SettingsForm } from "../job_form/settings.js";
import { MoreForm } from "../job_form/more.js";

const DRAFT = "evenkeel.draft";
const FRESH = { name: "", mode: "batch", tables: {}, sql: "", settings: {} };

/** The page. `from` is a job whose specification it begins with. */
export function NewJobPage({ from }) {
  const [spec, setSpec] = useState(from ? null : draft());
  const [failure, setFailure] = useState(null);
  useEffect(() => {
    if (!from) return;
    get(`v1/jobs/${encodeURIComponent(from)}`).then((job) => setSpec({ ...job.spec, compare_with: undefined }), setFailure);
  }, [from]);
  if (failure) return html`<${Heading} title="New job" /><${Failure} error=${failure} />`;
  return spec ? html`<${Editor} initial=${spec} isDraft=${!from} />` : html`<${Loading} />`;
}

function Editor({ initial, isDraft }) {
  const { maySubmit } = useCaller();
  const schemas = useSchema();
  const [spec, setSpec] = useState(initial);
  const [problem, setProblem] = useState(null);
  const [report, setReport] = useState(null);
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

  useEffect(() => {
    if (isDraft) sessionStorage.setItem(DRAFT, JSON.stringify(spec));
  }, [spec]);

  async function ask(what, path, onAnswer) {
    if (busy) return;
    setBusy(what);
    setProblem(null);
    const body = posted(spec);
    // The same text is the same job, also when its answer was lost and the button is pressed again.
    const text = JSON.stringify(body);
    if (attempt.current?.text !== text) attempt.current = { text, key: `page-${Date.now()}-${Math.random().toString(36).slice(2)}` };
    try {
      onAnswer(await change("POST", path, { body, headers: what === "submit" ? { "Idempotency-Key": attempt.current.key } : {} }));
    } catch (error) {
      setProblem(error.problem ?? { title: "It did not work", detail: error.message });
      setReport(null);
    } finally {
      setBusy("");
    }
  }

  const explain = () => ask("explain", "v1/explain", setReport);
  const submit = () =>
    ask("submit", "v1/jobs", (job) => {
      sessionStorage.removeItem(DRAFT);
      if (isHere()) go(address(["jobs", job.id]));
    });

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
              <${SqlEditor} key=${revision} text=${spec.sql ?? ""} onChange=${(sql) => update({ sql })} issues=${inSql} tables=${completions(spec.tables)} onRun=${explain} label="SQL of the job" />
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
    ${report && html`<div aria-live="polite"><${PlanReport} report=${report} /></div>`}
  `;
}

/** What is sent: nothing that was left empty, but SQL where nothing else says what is wanted. */
function posted(spec) {
  const isLeftOut = ([name, value]) => value === null || value === undefined || (value === "" && (name !== "sql" || spec.query));
  return Object.fromEntries(Object.entries(spec).filter((entry) => !isLeftOut(entry)));
}

function draft() {
  try {
    return { ...FRESH, ...JSON.parse(sessionStorage.getItem(DRAFT) ?? "{}") };
  } catch {
    return FRESH;
  }
}

/** Names for completion: tables, with the columns that their schema declares. */
function completions(tables) {
  return Object.fromEntries(
    Object.entries(tables).map(([name, table]) => [name, [...(table.schema ?? "").matchAll(/(?:^|,)\s*`?([\w.]+)`?\s/g)].map((found) => found[1])]),
  );
}
