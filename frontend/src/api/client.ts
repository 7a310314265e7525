/* The one door to the HTTP API: cookies, CSRF, problem+json. Never retries; TanStack Query
   does, for reads only. */
import { hearServer } from "../lib/clock";
import { signedInAgain } from "./signin";
import type { Answer, Named, Outcome, Query, Readable, SpecFault, Writable } from "./types";

const ROOT = "/api/v1";
const TIMEOUT_MS = 20_000;
/** Here a 401 is the answer itself, not the end of a session. */
const OF_THE_SESSION = new Set(["/login", "/logout", "/password"]);

/** An answer other than 2xx, with the server's own words. `retryable` says whether trying again may help. */
export class ApiProblem extends Error {
  readonly status: number;
  readonly title: string;
  readonly detail: string;
  readonly faults: SpecFault[];
  readonly requestId: string | null;

  constructor(status: number, title: string, detail: string, faults: SpecFault[] = [], requestId: string | null = null) {
    super(detail === "" ? title : `${title}: ${detail}`);
    this.name = "ApiProblem";
    this.status = status;
    this.title = title;
    this.detail = detail;
    this.faults = faults;
    this.requestId = requestId;
  }

  get retryable(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

export function readCookie(name: string, jar: string = document.cookie): string | null {
  for (const part of jar.split(";")) {
    const [key, ...rest] = part.trim().split("=");
    if (key === name) return decodeURIComponent(rest.join("="));
  }
  return null;
}

type Params = Record<string, string | number | boolean | null | undefined>;

export function withParams(path: string, params: Params = {}): string {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (value !== undefined && value !== null && value !== "") search.set(key, String(value));
  }
  const text = search.toString();
  return text === "" ? path : `${path}?${text}`;
}

/** Turns any failed response into an ApiProblem; a body that is no problem+json is summarised, not shown raw. */
export async function problemOf(response: Response): Promise<ApiProblem> {
  const fallback = response.statusText || "The server refused this request";
  try {
    const body = (await response.json()) as Record<string, unknown>;
    const faults = Array.isArray(body["errors"]) ? (body["errors"] as SpecFault[]) : [];
    const requestId = typeof body["request_id"] === "string" ? body["request_id"] : null;
    return new ApiProblem(response.status, String(body["title"] ?? fallback), String(body["detail"] ?? ""), faults, requestId);
  } catch {
    return new ApiProblem(response.status, fallback, `HTTP ${response.status}`);
  }
}

async function send(path: string, init: RequestInit): Promise<Response> {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const signal = init.signal ? AbortSignal.any([init.signal, timeout]) : timeout;
  let response: Response;
  try {
    response = await fetch(ROOT + path, { credentials: "same-origin", ...init, signal });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiProblem(0, "No answer from the control plane", "The network or the web process is down. Training continues without it.");
  }
  hearServer(response.headers.get("date"));
  if (!response.ok) throw await problemOf(response);
  return response;
}

/** `/jobs/{job_id}` with its names filled in. */
export function filled(path: string, named: Record<string, string | number>): string {
  return path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(named[name])));
}

/** Where a link leads that the browser itself reads, such as a download. */
export const addressOf = <P extends Readable>(path: P, query: Query<P>): string => ROOT + withParams(path, query as Params);

/** One read; `P` as the server's document writes it, and so are its values and its answer. */
export async function get<P extends Readable>(path: P, named: Named<P>, query: Query<P> = {} as Query<P>, signal?: AbortSignal): Promise<Answer<P>> {
  const url = withParams(filled(path, named as Record<string, string>), query as Params);
  const response = await send(url, { signal, headers: { accept: "application/json" } });
  return (await response.json()) as Answer<P>;
}

/** `body` of type string is sent as YAML. A fresh Idempotency-Key goes with every POST unless one is
    given. Where the session has ended, the reader is asked to sign in and the same is sent once more. */
export async function post<P extends Writable>(
  path: P, named: Named<P>, body: unknown = {}, options: { idempotencyKey?: string; query?: Params } = {},
): Promise<Outcome<P>> {
  const url = withParams(filled(path, named as Record<string, string>), options.query);
  const yaml = typeof body === "string";
  const key = options.idempotencyKey ?? newKey();
  const once = (): Promise<Response> =>
    send(url, {
      method: "POST",
      headers: {
        "accept": "application/json",
        "content-type": yaml ? "application/yaml" : "application/json",
        "x-csrftoken": readCookie("csrftoken") ?? "",
        "idempotency-key": key,
      },
      body: yaml ? body : JSON.stringify(body),
    });
  const response = await once().catch(async (error: unknown) => {
    const ended = error instanceof ApiProblem && error.status === 401 && !OF_THE_SESSION.has(path);
    if (ended && (await signedInAgain())) return once();
    throw error;
  });
  const text = await response.text();
  return (text === "" ? {} : JSON.parse(text)) as Outcome<P>;
}

/** `crypto.randomUUID` exists in secure contexts only; a console on plain HTTP still needs keys. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
