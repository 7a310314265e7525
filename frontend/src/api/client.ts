/* The one door to the HTTP API: cookies, CSRF, problem+json. Never retries; TanStack Query
   does, for reads only. */
import type { SpecFault } from "./types";

const ROOT = "/api/v1";
const TIMEOUT_MS = 20_000;

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
    throw new ApiProblem(0, "No answer from the control plane", "The network or the web process is down. Training goes on without it.");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

export async function get<T>(path: string, params?: Params, signal?: AbortSignal): Promise<T> {
  const response = await send(withParams(path, params), { signal, headers: { accept: "application/json" } });
  return (await response.json()) as T;
}

/** `body` of type string is sent as YAML. A fresh Idempotency-Key goes with every POST unless one is given. */
export async function post<T>(path: string, body: unknown = {}, options: { idempotencyKey?: string } = {}): Promise<T> {
  const yaml = typeof body === "string";
  const response = await send(path, {
    method: "POST",
    headers: {
      "accept": "application/json",
      "content-type": yaml ? "application/yaml" : "application/json",
      "x-csrftoken": readCookie("csrftoken") ?? "",
      "idempotency-key": options.idempotencyKey ?? newKey(),
    },
    body: yaml ? body : JSON.stringify(body),
  });
  const text = await response.text();
  return (text === "" ? {} : JSON.parse(text)) as T;
}

/** `crypto.randomUUID` exists in secure contexts only; a console on plain HTTP still needs keys. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
