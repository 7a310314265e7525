/* A job's committed steps, read and pushed, as one list: the header, the replicas and the charts
   all read from it, so a page shows one step. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import * as queries from "../api/queries";
import type { Step } from "../api/types";
import { useLive } from "./hooks";
import { mergeSteps } from "./reducer";

export interface JobSteps {
  /** In (attempt, step) order. */
  steps: readonly Step[];
  pending: boolean;
  error: unknown;
  refetch: () => unknown;
}

export function useSteps(jobId: string, settled: boolean): JobSteps {
  const query = useQuery(queries.steps(jobId, settled));
  const pushed = useLive((state) => state.data.steps.get(jobId));
  const steps = useMemo(() => mergeSteps(query.data?.items ?? [], pushed ?? []), [query.data, pushed]);
  return { steps, pending: query.isPending, error: query.error, refetch: query.refetch };
}
