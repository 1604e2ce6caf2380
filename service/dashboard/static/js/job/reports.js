// The reports that a worker stores for a job.
import { getIfChanged } from "../api.js";
import { isIdle } from "../parts/status.js";
import { usePolled } from "../polling.js";

const INTERVAL_MS = 3000;

/** Polls the report at `v1/jobs/ID/NAME` while the job may change it. Returns `{value, error, missing, refresh}`; `missing` says why there is no report yet. */
export function useReport(job, name) {
  const path = `v1/jobs/${job.id}/${name}`;
  const { value, error, refresh } = usePolled(
    async (known, signal) => {
      try {
        const report = await getIfChanged(path, known?.report, { signal });
        return report === known?.report ? known : { report };
      } catch (failure) {
        if (failure.status === 404 && failure.code !== "job_not_found") return known?.report ? known : { missing: failure.message };
        throw failure;
      }
    },
    isIdle(job) ? 0 : INTERVAL_MS,
    path,
    `${job.status} ${job.attempts}`,
  );
  return { value: value?.report?.value, missing: value?.missing, error, refresh };
}
