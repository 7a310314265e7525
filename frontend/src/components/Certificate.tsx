/* The certificate: was the recovery exact? Each check with its value and its limit. */
import type { ReactElement } from "react";
import type { Certificate } from "../api/types";
import { repeatedWords, verdictWords } from "../lib/certificate";
import { scalar, words } from "../lib/format";
import { Empty, Time } from "../ui/basics";
import { Icon, type IconName } from "../ui/icons";
import type { Tone } from "../ui/states";

const LOOK: Record<Certificate["state"], { tone: Tone; icon: IconName; word: string }> = {
  pending: { tone: "info", icon: "hourglass", word: "pending" },
  green: { tone: "ok", icon: "shield", word: "exact" },
  red: { tone: "bad", icon: "cross", word: "not exact" },
  incomplete: { tone: "warn", icon: "hourglass", word: "incomplete" },
};

export function CertificateBadge({ certificate }: { certificate: Certificate | null }): ReactElement {
  if (!certificate) return <span className="muted" title="No certificate has been made">none</span>;
  const { tone, icon, word } = LOOK[certificate.state] ?? LOOK.pending;
  return <span className={`badge tone-${tone}`}><Icon name={icon} size={13} /> {verdictWords(certificate, word)}</span>;
}

/** Only a pending certificate can still learn what it does not know. */
function checkStyle(ok: boolean | null, state: Certificate["state"]): { tone: Tone; icon: IconName; word: string } {
  if (ok === null && state === "pending") return { tone: "info", icon: "hourglass", word: "not known yet" };
  if (ok === null) return { tone: "idle", icon: "question", word: "could not be judged" };
  return ok ? { tone: "ok", icon: "check", word: "holds" } : { tone: "bad", icon: "cross", word: "does not hold" };
}

function uncertified(hit: boolean, lost: boolean): string {
  if (lost) return "The job failed, so there is no recovery to certify.";
  return hit ? "A certificate is made from the committed steps after a job has recovered." : "No job was affected, so there is no training to certify.";
}

/** `hit`: a job was affected; `lost`: it failed. */
export function CertificateView({ certificate, hit = true, lost = false }: { certificate: Certificate | null; hit?: boolean; lost?: boolean }): ReactElement {
  if (!certificate) return <Empty icon="shield" title="No certificate">{uncertified(hit, lost)}</Empty>;
  return (
    <>
      <div className="cert-head">
        <CertificateBadge certificate={certificate} />
        {certificate.step === null ? null : <span className="chip">at step <b>{certificate.step}</b></span>}
        {certificate.generated_at ? <span className="muted">made <Time at={certificate.generated_at} /></span> : <span className="muted">being computed</span>}
      </div>
      {certificate.repeated ? <p>{repeatedWords(certificate.repeated)}</p> : null}
      <ul className="checks">
        {certificate.checks.map((check) => {
          const { tone, icon, word } = checkStyle(check.ok, certificate.state);
          return (
            <li key={check.name} className={`tone-${tone}`}>
              <Icon name={icon} size={15} title={word} />
              <div>
                <b>{words(check.name)}</b>
                <p className="muted">{check.detail}</p>
              </div>
              <div className="check-value">
                {check.value === null ? null : <span>{scalar(check.value)}</span>}
                {check.limit === null ? null : <span className="muted">limit {scalar(check.limit)}</span>}
              </div>
            </li>
          );
        })}
      </ul>
    </>
  );
}
