/* Signing in: the form of the sign-in page, and the same form over a page whose session ended
   while something was being sent. */
import { useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useEffect, useRef, useState } from "react";
import { get, post } from "../api/client";
import { keys } from "../api/queries";
import { setAsk } from "../api/signin";
import { useSubmitting } from "../lib/submitting";
import { Problem } from "../ui/basics";
import { Dialog } from "../ui/dialog";

export function SignInForm({ username: known = "", onDone }: { username?: string; onDone: () => void }): ReactElement {
  const [username, setUsername] = useState(known);
  const [password, setPassword] = useState("");
  const { busy, error, send } = useSubmitting();
  const client = useQueryClient();
  const submit = async (): Promise<void> => {
    await get("/me", {}).catch(() => undefined); /* Sets the CSRF cookie, also when nobody is signed in. */
    client.setQueryData(keys.me, await post("/login", {}, { username, password }));
    onDone();
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        event.stopPropagation();
        void send(submit);
      }}
    >
      <label className="field">
        <span>User name</span>
        <input name="username" autoComplete="username" autoFocus={known === ""} required value={username} onChange={(event) => setUsername(event.target.value)} />
      </label>
      <label className="field">
        <span>Password or one-time password</span>
        <input name="password" type="password" autoComplete="current-password" autoFocus={known !== ""} data-autofocus={known === "" ? undefined : true} required value={password} onChange={(event) => setPassword(event.target.value)} />
      </label>
      {error ? <Problem error={error} /> : null}
      <button className="button primary wide" type="submit" disabled={busy}>{busy ? "Signing in..." : "Sign in"}</button>
    </form>
  );
}

/** Mounted once in the shell; stands over everything, other dialogs too, while an act waits, or what was typed would be lost. */
export function SignInGate({ username }: { username: string }): ReactElement | null {
  const [open, setOpen] = useState<"act" | "read" | null>(null);
  const answer = useRef<(signedIn: boolean) => void>(() => undefined);
  useEffect(() => {
    setAsk((act) => new Promise<boolean>((resolve) => {
      answer.current = resolve;
      setOpen(act ? "act" : "read");
    }));
    return () => {
      setAsk(null);
      answer.current(false);
    };
  }, []);
  const end = (signedIn: boolean): void => {
    setOpen(null);
    answer.current(signedIn);
  };
  if (open === null) return null;
  return (
    <Dialog title="Your session has ended" onClose={() => end(false)}>
      <p>{open === "act" ? "Sign in, and your request is sent." : "Sign in, and the page continues where you are."} Nothing you typed is lost.</p>
      <SignInForm username={username} onDone={() => end(true)} />
    </Dialog>
  );
}
