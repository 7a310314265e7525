/* Sign in with a password or a one-time password, or set a password of one's own by the latter. */
import { type ReactElement, useState } from "react";
import { useLocation, useNavigate, useSearchParams } from "react-router";
import { PasswordForm } from "../components/PasswordForm";
import { SignInForm } from "../components/SignIn";
import { Icon } from "../ui/icons";

/** Only addresses of this console: a `next` that leads elsewhere would be an open redirect. */
export function safeNext(next: string | null): string {
  return next && next.startsWith("/") && !next.startsWith("//") && !next.startsWith("/\\") ? next : "/";
}

/** The account whose password was changed on the page that led here. */
const passwordOf = (state: unknown): string => String((state as { passwordOf?: string } | null)?.passwordOf ?? "");

export function LoginPage(): ReactElement {
  const [params] = useSearchParams();
  const navigate = useNavigate();
  const [setting, setSetting] = useState(false);
  /* Whose password has just been set or changed. */
  const location = useLocation();
  const [setFor, setSetFor] = useState(passwordOf(location.state));
  return (
    <main className="login">
      <title>Sign in - Holdfast</title>
      <div className="login-card">
        <div className="brand"><span className="brand-mark"><Icon name="shield" size={15} /></span> <h1>Holdfast</h1></div>
        <p className="muted">Keeps training jobs training.</p>
        {setting ? (
          <>
            <h2>Set your password</h2>
            <PasswordForm
              username="" current="one-time" onLeave={() => setSetting(false)}
              onDone={(username) => {
                setSetFor(username);
                setSetting(false);
              }}
            />
          </>
        ) : (
          <>
            {setFor === "" ? null : <p role="status" className="answer"><Icon name="check" /> Your new password is saved. Sign in with it.</p>}
            <SignInForm key={setFor} username={setFor} onDone={() => void navigate(safeNext(params.get("next")), { replace: true })} />
            <p className="login-other"><button type="button" className="link" onClick={() => setSetting(true)}>Set a password with a one-time password</button></p>
          </>
        )}
      </div>
    </main>
  );
}
