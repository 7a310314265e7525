/* A password of one's own: set by a one-time password before signing in, or changed from the top bar. */
import { type ReactElement, useState } from "react";
import { get, post } from "../api/client";
import { useSubmitting } from "../lib/submitting";
import { Problem } from "../ui/basics";
import { Dialog } from "../ui/dialog";

/** As the server has it; shorter ones are refused there too. */
const LEAST_CHARS = 12;

interface PasswordFormProps {
  /** Signed in as, or "" where the name is asked for. */
  username: string;
  /** Whether the present password or one that works once is asked for. */
  current: "present" | "one-time";
  onDone: (username: string) => void;
  onLeave: () => void;
}

export function PasswordForm({ username: known, current: asked, onDone, onLeave }: PasswordFormProps): ReactElement {
  const [username, setUsername] = useState(known);
  const [current, setCurrent] = useState("");
  const [password, setPassword] = useState("");
  const [again, setAgain] = useState("");
  const { busy, error, send } = useSubmitting();
  const differs = again !== "" && again !== password;
  const submit = async (): Promise<void> => {
    await get("/me", {}).catch(() => undefined); /* Sets the CSRF cookie, also when nobody is signed in. */
    await post("/password", {}, { username, current, password });
    onDone(username);
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        event.stopPropagation();
        if (again === password) void send(submit);
      }}
    >
      {known === "" ? (
        <label className="field">
          <span>User name</span>
          <input name="username" autoComplete="username" autoFocus required value={username} onChange={(event) => setUsername(event.target.value)} />
        </label>
      ) : <input type="text" name="username" autoComplete="username" value={known} readOnly hidden />}
      <label className="field">
        <span>{asked === "present" ? "Present password" : "One-time password"}</span>
        <input name="current" type="password" autoComplete={asked === "present" ? "current-password" : "off"} data-autofocus required value={current} onChange={(event) => setCurrent(event.target.value)} />
      </label>
      <label className="field">
        <span>New password (at least {LEAST_CHARS} characters)</span>
        <input name="password" type="password" autoComplete="new-password" minLength={LEAST_CHARS} required value={password} onChange={(event) => setPassword(event.target.value)} />
      </label>
      <label className="field">
        <span>New password again</span>
        <input name="again" type="password" autoComplete="new-password" required value={again} aria-invalid={differs} onChange={(event) => setAgain(event.target.value)} />
      </label>
      {differs ? <p className="text-bad" role="status">The two new passwords differ.</p> : null}
      {error ? <Problem error={error} /> : null}
      <div className="dialog-actions">
        <button type="button" className="button" onClick={onLeave}>{asked === "present" ? "Keep as it is" : "Back to sign-in"}</button>
        <button type="submit" className="button primary" disabled={busy || differs}>{busy ? "Saving..." : asked === "present" ? "Change password" : "Set password"}</button>
      </div>
    </form>
  );
}

/** Every session of the account ends with the change, this one too: what follows is to sign in. */
export function PasswordDialog({ username, onClose, onChanged }: { username: string; onClose: () => void; onChanged: () => void }): ReactElement {
  return (
    <Dialog title="Change password" onClose={onClose}>
      <p className="muted">This ends all sessions of {username}, including this one, and any unused one-time passwords. API tokens stay valid.</p>
      <PasswordForm username={username} current="present" onDone={onChanged} onLeave={onClose} />
    </Dialog>
  );
}
