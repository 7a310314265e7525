/* Sign in with a password, or with the one-time password the start-up printed. */
import type { ReactElement } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { SignInForm } from "../components/SignIn";
import { Icon } from "../ui/icons";

/** Only addresses of this console: a `next` that leads elsewhere would be an open redirect. */
export function safeNext(next: string | null): string {
  return next && next.startsWith("/") && !next.startsWith("//") && !next.startsWith("/\\") ? next : "/";
}

export function LoginPage(): ReactElement {
  const [params] = useSearchParams();
  const navigate = useNavigate();
  return (
    <main className="login">
      <title>Sign in - Holdfast</title>
      <div className="login-card">
        <div className="brand"><span className="brand-mark"><Icon name="shield" size={15} /></span> <h1>Holdfast</h1></div>
        <p className="muted">Keeps training jobs training.</p>
        <SignInForm onDone={() => void navigate(safeNext(params.get("next")), { replace: true })} />
      </div>
    </main>
  );
}
