/* What was asked for by its name is shown at its id: events, links and other reads have that. What was read is kept for there. */
import { useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useEffect } from "react";
import { useLocation, useNavigate } from "react-router";
import { keys } from "../api/queries";
import { Skeleton } from "../ui/basics";

export function ToItsId({ of, row }: { of: "job" | "node"; row: { id: string } }): ReactElement {
  const client = useQueryClient();
  const navigate = useNavigate();
  const { search } = useLocation();
  useEffect(() => {
    client.setQueryData(keys[of](row.id), row);
    void navigate({ pathname: `/${of}s/${row.id}`, search }, { replace: true });
  }, [client, navigate, of, row, search]);
  return <Skeleton height={420} />;
}
