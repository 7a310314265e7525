/* Dialogs and side sheets on the browser's own <dialog>: focus trap, Esc, top layer and inert
   background for free, and no injected style elements that the security policy would refuse. */
import { type ReactElement, type ReactNode, useId, useLayoutEffect, useRef, useState } from "react";
import { Problem } from "./basics";
import { Icon } from "./icons";

interface DialogProps {
  title: string;
  onClose: () => void;
  children: ReactNode;
  sheet?: boolean;
  /** A class of its own beside that of all dialogs. */
  className?: string;
}

/** The field that is asked for, else the first one; a dialog without fields leaves the focus on its close button. */
function firstField(dialog: HTMLElement): HTMLElement | null {
  return dialog.querySelector<HTMLElement>("[data-autofocus]") ?? dialog.querySelector<HTMLElement>("input, select, textarea");
}

export function Dialog({ title, onClose, children, sheet, className = "" }: DialogProps): ReactElement {
  const element = useRef<HTMLDialogElement>(null);
  const heading = useId();
  /* A layout effect: its end comes before the element is taken out, while focus can still be given back. */
  useLayoutEffect(() => {
    const dialog = element.current;
    if (!dialog) return undefined;
    const opener = document.activeElement;
    if (!dialog.open) dialog.showModal();
    /* The browser has put the focus on the first button, which is Close: a space typed for the reason pressed it. */
    firstField(dialog)?.focus();
    return () => {
      dialog.close();
      if (opener instanceof HTMLElement && opener.isConnected) opener.focus();
      if (document.activeElement === document.body) document.getElementById("content")?.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      className={`${sheet ? "sheet" : "dialog"} ${className}`}
      aria-labelledby={heading}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onMouseDown={(event) => {
        if (event.target === element.current) onClose();
      }}
    >
      <div className="dialog-inner">
        <header className="dialog-head">
          <h2 id={heading}>{title}</h2>
          <button type="button" className="icon-button" onClick={onClose} aria-label="Close">
            <Icon name="close" size={16} />
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  /** What will happen to whom, and what it costs. */
  blastRadius: ReactNode;
  confirmLabel: string;
  danger?: boolean;
  /** Typing this word is needed before a job-wide destructive act. */
  typeToConfirm?: string;
  /** The act takes no reason. */
  plain?: boolean;
  onConfirm: (reason: string) => Promise<string | undefined>;
  onClose: () => void;
}

/** Asks for a reason; keeps the error on the page until closed; shows the server's answer. */
export function ConfirmDialog(props: ConfirmProps): ReactElement {
  const [reason, setReason] = useState("");
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const [answer, setAnswer] = useState<string | null>(null);
  const ready = (props.plain || reason.trim() !== "") && (!props.typeToConfirm || typed === props.typeToConfirm) && !busy;
  const submit = async (): Promise<void> => {
    setBusy(true);
    setError(null);
    try {
      setAnswer((await props.onConfirm(reason.trim())) ?? "Accepted.");
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      {answer !== null ? (
        <>
          <p role="status" className="answer"><Icon name="check" /> {answer}</p>
          <div className="dialog-actions">
            <button type="button" className="button primary" autoFocus onClick={props.onClose}>Close</button>
          </div>
        </>
      ) : (
        <form
          onSubmit={(event) => {
            event.preventDefault();
            if (ready) void submit();
          }}
        >
          <div className={`blast ${props.danger ? "blast-danger" : ""}`}>
            <Icon name={props.danger ? "alert" : "eye"} size={16} />
            <div>{props.blastRadius}</div>
          </div>
          {props.plain ? null : (
            <label className="field">
              <span>Reason (recorded with your name)</span>
              <input value={reason} onChange={(event) => setReason(event.target.value)} maxLength={200} required data-autofocus />
            </label>
          )}
          {props.typeToConfirm ? (
            <label className="field">
              <span>Type <code>{props.typeToConfirm}</code> to confirm</span>
              <input value={typed} onChange={(event) => setTyped(event.target.value)} autoComplete="off" spellCheck={false} />
            </label>
          ) : null}
          {error ? <Problem error={error} /> : null}
          <div className="dialog-actions">
            <button type="button" className="button" onClick={props.onClose}>Keep as it is</button>
            <button type="submit" className={`button ${props.danger ? "danger" : "primary"}`} disabled={!ready}>
              {busy ? "Sending..." : props.confirmLabel}
            </button>
          </div>
        </form>
      )}
    </Dialog>
  );
}
