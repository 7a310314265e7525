/* In which project something is that names a job alone. */
import { useQuery } from "@tanstack/react-query";
import * as queries from "./queries";

/** Null: of the fleet; undefined: not read yet. */
export function useProjectOf(jobId: string | null): string | null | undefined {
  const query = useQuery({ ...queries.job(jobId ?? ""), enabled: jobId !== null, staleTime: 60_000, refetchInterval: false, retry: false });
  return jobId === null ? null : query.data?.project;
}
