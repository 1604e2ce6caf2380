// The overview of a job: its timeline, its settings, and its SQL before and after the rules.
import { html, useMemo } from "../../vendor/preact.js";
import { get } from "../api.js";
import { duration, momentBelow } from "../format.js";
import { Listing, Loading, numeric, Table, useNow } from "../parts/basics.js";
import { Failure } from "../parts/problem.js";
import { isIdle, Status } from "../parts/status.js";
import { usePolled } from "../polling.js";
import { defaultsOf, flatten, useSchema } from "../settings.js";
import { useReport } from "./reports.js";

/** The section "Overview" of a job. */
export function OverviewSection({ job }) {
  const plan = useReport(job, "plan");
  return html`
    <${Timeline} job=${job} />
    <${Settings} job=${job} />
    <section>
      <h2>SQL</h2>
      <div class="pair">
        <div>
          <h3>${job.spec.sql ? "As submitted" : "Before the rules"}</h3>
          ${job.spec.sql || plan.value?.before.sql
            ? html`<${Listing} text=${(job.spec.sql || plan.value.before.sql).replace(/^\s*\n/, "")} label="SQL before" />`
            : html`<p class="quiet">The job was submitted as a structured query; see its specification.</p>`}
        </div>
        <div>
          <h3>After the rules</h3>
          <${SqlAfter} plan=${plan} />
        </div>
      </div>
      <${Failure} error=${plan.error} hasValue=${plan.value} />
    </section>
  `;
}

function SqlAfter({ plan }) {
  if (plan.value?.after.sql) return html`<${Listing} text=${plan.value.after.sql} label="SQL after the rules" />`;
  if (plan.missing) return html`<p class="quiet">${plan.missing}</p>`;
  return plan.value || plan.error ? null : html`<${Loading} />`;
}

function Timeline({ job }) {
  const path = `v1/jobs/${job.id}/events`;
  const { value: events = [], error } = usePolled(
    async (known = [], signal) => {
      // One response has a limited number of events, and an idle job is polled only once.
      for (let page = null; !page || page.events.length; ) {
        const headers = known.length ? { "Last-Event-ID": String(known.at(-1).id) } : {};
        page = await get(path, { headers, signal });
        known = page.events.length ? [...known, ...page.events] : known;
      }
      return known;
    },
    isIdle(job) ? 0 : 2000,
    path,
    isIdle(job) ? job.version : "live",
  );
  const states = useMemo(() => events.filter((event) => event.type === "status"), [events]);
  const live = !isIdle(job);
  const now = useNow(live);
  const endOf = (place) => Date.parse(states[place + 1]?.at ?? (live ? new Date(now).toISOString() : states[place].at));
  const lengthOf = (place) => Math.max(0, endOf(place) - Date.parse(states[place].at));
  const total = states.reduce((sum, _, place) => sum + lengthOf(place), 0);
  return html`<section>
    <h2>Timeline</h2>
    <${Failure} error=${error} hasValue=${events.length > 0} />
    ${total > 0 &&
    html`<div class="timeline" role="img" aria-label=${states.map((state, place) => `${state.data.status} ${duration(lengthOf(place))}`).join(", ")}>
      ${states.map((state, place) => html`<span key=${state.id} class=${`span-${state.data.status}`} style=${{ flexGrow: lengthOf(place) / total }} title=${`${state.data.status} ${duration(lengthOf(place))}`}></span>`)}
    </div>`}
    <${Table} label="States and attempts" head=${["Time", "Event", numeric("Attempt"), numeric("Duration")]}>
      ${events.filter((event) => event.type !== "progress").map((event, place, shown) => html`<tr key=${event.id}>
        <td class="quiet">${momentBelow(event.at, shown[place - 1]?.at)}</td>
        <td><${EventText} event=${event} /></td>
        <td class="numeric">${event.data.attempt ?? ""}</td>
        <td class="numeric">${event.type === "status" && !isLast(states, event) ? duration(lengthOf(states.indexOf(event))) : ""}</td>
      </tr>`)}
    <//>
  </section>`;
}

const isLast = (states, event) => states.at(-1) === event;

function EventText({ event }) {
  const { data, type } = event;
  if (type === "status") return html`<${Status} value=${data.status} />`;
  if (type === "plan") {
    const fired = data.rules_fired ?? [];
    return html`Planned: ${fired.length ? fired.map((rule) => html`<code class="tag" key=${rule}>${rule}</code> `) : "no rule fired"}`;
  }
  if (type === "attempt") return html`<span class="quiet">Attempt ${data.attempt} ${data.status === "PLANNING" ? "started" : `ended: ${data.status}`}</span>`;
  return html`<span class="quiet">${type}</span>`;
}

function Settings({ job }) {
  const schema = useSchema();
  const defaults = defaultsOf(schema);
  const rows = Object.entries(flatten(job.spec.settings));
  const changed = rows.filter(([name, value]) => String(value) !== String(defaults[name]));
  // Changed settings can only be found once the defaults are loaded.
  if (!schema) return html`<section><h2>Settings</h2><${Loading} /></section>`;
  return html`<section>
    <h2>Settings</h2>
    ${changed.length
      ? html`<ul class="chips">${changed.map(([name, value]) => html`<li key=${name}><code>${name} = ${String(value)}</code></li>`)}</ul>`
      : html`<p class="quiet">All settings have their default values.</p>`}
    <details>
      <summary>All ${rows.length} settings</summary>
      <${Table} label="All settings" head=${["Setting", "Value", "Default"]}>
        ${rows.map(([name, value]) => html`<tr key=${name}><td><code>${name}</code></td><td>${String(value)}</td><td class="quiet">${String(defaults[name] ?? "")}</td></tr>`)}
      <//>
    </details>
  </section>`;
}
