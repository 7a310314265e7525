/* The session ended under an act: whoever shows the page asks for the password, and the act goes
   on with the same Idempotency-Key. One question at a time, however many acts wait for it. */

type Ask = () => Promise<boolean>;

let ask: Ask | null = null;
let pending: Promise<boolean> | null = null;

/** The shell says how to ask; null when it is gone. */
export function setAsk(next: Ask | null): void {
  ask = next;
}

/** True once somebody has signed in; false when they would not, or nobody can be asked. */
export function signedInAgain(): Promise<boolean> {
  if (ask === null) return Promise.resolve(false);
  pending ??= ask().finally(() => {
    pending = null;
  });
  return pending;
}

/** True while the question stands: then nothing leads away from the page. */
export const isAsking = (): boolean => pending !== null;
