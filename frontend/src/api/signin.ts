/* The session ended. Under an act: whoever shows the page asks for the password, and the act is sent with the same
   Idempotency-Key. Under a read of the background: the same, where something was typed that leaving would lose; else
   the page leads to the sign-in page. One question at a time, however many wait for it. */

/** `act`: something waits to be sent. */
type Ask = (act: boolean) => Promise<boolean>;

let ask: Ask | null = null;
let pending: Promise<boolean> | null = null;
let typed = 0;
let declined = false;

/** The shell says how to ask; null when it is gone. */
export function setAsk(next: Ask | null): void {
  ask = next;
  declined = false;
}

/** True once somebody has signed in; false when they would not, or nobody can be asked. */
export function signedInAgain(act = true): Promise<boolean> {
  if (ask === null) return Promise.resolve(false);
  pending ??= ask(act).then((signedIn) => {
    declined = !signedIn;
    return signedIn;
  }).finally(() => {
    pending = null;
  });
  return pending;
}

/** True while the question stands: then nothing leads away from the page. */
export const isAsking = (): boolean => pending !== null;

/** A part of the page holds what was typed and is kept nowhere else; until the function that is returned is called. */
export function holdTyped(): () => void {
  typed += 1;
  return () => {
    typed -= 1;
  };
}

const wouldLose = (): boolean => typed > 0 || document.querySelector("dialog[open]") !== null;

/** A read found that the session has ended: `resume` once somebody has signed in over what is there, `leave` where
    nothing would be lost. Who would not sign in is asked by the next act, not by every read. What was refused before
    somebody signed in may be heard of after that: nobody is asked where the session `isOver` no more. */
export async function sessionEnded({ leave, resume, isOver }: { leave: () => void; resume: () => void; isOver: () => Promise<boolean> }): Promise<void> {
  if (isAsking()) return;
  if (ask === null || !wouldLose()) {
    leave();
    return;
  }
  if (declined) return;
  const over = await isOver();
  if (over && (isAsking() || declined)) return;
  if (!over || (await signedInAgain(false))) resume();
}
