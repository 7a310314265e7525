/* What a form shows while it is sent, and after it was refused. */
import { useState } from "react";

export interface Submitting {
  busy: boolean;
  /** What the last try was refused with; null before the first, and while one is on its way. */
  error: unknown;
  send: (work: () => Promise<void>) => Promise<void>;
}

export function useSubmitting(): Submitting {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const send = async (work: () => Promise<void>): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      await work();
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return { busy, error, send };
}
