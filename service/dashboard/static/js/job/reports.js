// What a job's worker found out, asked for when it may be there.
import { getUnlessKnown } from "../api.js";
import { isAtRest } from "../parts/status.js";
import { usePolled } from "../polling.js";

const AGAIN_MS = 3000;

/** A report of the job at `v1/jobs/ID/NAME`: `{value, error, missing}`; asked for again while the job may change it. */
export function useReport(job, name) {
  const path = `v1/jobs/${job.id}/${name}`;
  const { value, error, refresh } = usePolled(
    async (known, signal) => {
      try {
        const report = await getUnlessKnown(path, known?.report, { signal });
        return report === known?.report ? known : { report };
      } catch (failure) {
        if (failure.status === 404 && failure.code !== "job_not_found") return known?.report ? known : { missing: failure.message };
        throw failure;
      }
    },
    isAtRest(job) ? 0 : AGAIN_MS,
    path,
    `${job.status} ${job.attempts}`,
  );
  return { value: value?.report?.value, missing: value?.missing, error, refresh };
}
