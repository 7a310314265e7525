/* Sign in with a password, or with the one-time password the start-up printed. */
import { useQueryClient } from "@tanstack/react-query";
import { type ReactElement, useState } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { get, post } from "../api/client";
import { keys } from "../api/queries";
import type { Me } from "../api/types";
import { Problem } from "../ui/basics";
import { Icon } from "../ui/icons";

/** Only addresses of this console: a `next` that leads elsewhere would be an open redirect. */
export function safeNext(next: string | null): string {
  return next && next.startsWith("/") && !next.startsWith("//") && !next.startsWith("/\\") ? next : "/";
}

export function LoginPage(): ReactElement {
  const [params] = useSearchParams();
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [busy, setBusy] = useState(false);
  const navigate = useNavigate();
  const client = useQueryClient();
  const submit = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      await get("/me").catch(() => undefined); /* Sets the CSRF cookie, also when nobody is signed in. */
      client.setQueryData(keys.me, await post<Me>("/login", { username, password }));
      navigate(safeNext(params.get("next")), { replace: true });
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main className="login">
      <title>Sign in - Holdfast</title>
      <form
        className="login-card"
        onSubmit={(event) => {
          event.preventDefault();
          void submit();
        }}
      >
        <div className="brand"><span className="brand-mark"><Icon name="shield" size={15} /></span> <h1>Holdfast</h1></div>
        <p className="muted">Keeps training jobs training.</p>
        <label className="field">
          <span>User name</span>
          <input name="username" autoComplete="username" autoFocus required value={username} onChange={(event) => setUsername(event.target.value)} />
        </label>
        <label className="field">
          <span>Password, or the one-time password printed at start</span>
          <input name="password" type="password" autoComplete="current-password" required value={password} onChange={(event) => setPassword(event.target.value)} />
        </label>
        {error ? <Problem error={error} /> : null}
        <button className="button primary" type="submit" disabled={busy}>{busy ? "Signing in..." : "Sign in"}</button>
      </form>
    </main>
  );
}
