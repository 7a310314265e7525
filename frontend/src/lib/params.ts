/* What a page shows is in its address: one parameter of it is set, without a new entry in the history. */
import { useCallback } from "react";
import { useSearchParams } from "react-router";

/** Sets a parameter of the address; "" takes it out. The page stays where it is scrolled to. */
export function useSetParam(): (name: string, value: string) => void {
  const [, setParams] = useSearchParams();
  return useCallback(
    (name, value) =>
      setParams((now) => {
        const next = new URLSearchParams(now);
        if (value === "") next.delete(name);
        else next.set(name, value);
        return next;
      }, { replace: true, preventScrollReset: true }),
    [setParams],
  );
}
