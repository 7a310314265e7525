import { afterEach, describe, expect, it, vi } from "vitest";
import { narrowed, EMPTY_PICK, ready, toBody } from "../components/TargetPicker";
import { byServer, hearServer } from "../lib/clock";
import { frozenOf } from "../lib/frozen";
import { safeNext } from "../pages/LoginPage";
import { ApiProblem, get, post, problemOf, readCookie, withParams } from "./client";

afterEach(() => vi.unstubAllGlobals());

function answer(status: number, body: string, headers: Record<string, string> = {}): ReturnType<typeof vi.fn> {
  const fake = vi.fn(() => Promise.resolve(new Response(body, { status, headers })));
  vi.stubGlobal("fetch", fake);
  return fake;
}

describe("problems", () => {
  it("keep the server's words, its faults and the request id", async () => {
    const body = { title: "The job spec has faults", detail: "2 faults", request_id: "req_1", errors: [{ pointer: "/spec", message: "bad" }] };
    const problem = await problemOf(new Response(JSON.stringify(body), { status: 422 }));
    expect([problem.title, problem.detail, problem.requestId, problem.faults.length]).toEqual([body.title, "2 faults", "req_1", 1]);
    expect(problem.retryable).toBe(false);
  });

  it("that are no problem+json are summarised, not shown raw", async () => {
    const problem = await problemOf(new Response("<html>secret trace</html>", { status: 502, statusText: "Bad Gateway" }));
    expect(problem.message).toBe("Bad Gateway: HTTP 502");
    expect(problem.retryable).toBe(true);
  });

  it("are made of a server that does not answer", async () => {
    vi.stubGlobal("fetch", vi.fn(() => Promise.reject(new TypeError("refused"))));
    await expect(get("/me", {})).rejects.toMatchObject({ status: 0, retryable: true });
    await expect(get("/me", {})).rejects.toBeInstanceOf(ApiProblem);
  });
});

describe("requests", () => {
  it("leave out empty parameters", () => {
    expect(withParams("/jobs", { state: "", q: "a b", limit: 5, cursor: null })).toBe("/jobs?q=a+b&limit=5");
  });

  it("read a cookie by its whole name", () => {
    expect(readCookie("csrftoken", "xcsrftoken=no; csrftoken=a%3Db; other=1")).toBe("a=b");
    expect(readCookie("csrf", "csrftoken=1")).toBeNull();
  });

  it("that change something carry the CSRF token and a fresh idempotency key", async () => {
    document.cookie = "csrftoken=tok";
    const fake = answer(202, "{}");
    await post("/jobs/{job_id}:cancel", { job_id: "1" }, { reason: "test" });
    await post("/jobs/{job_id}:cancel", { job_id: "1" }, { reason: "test" });
    const headers = fake.mock.calls.map((call) => (call[1] as RequestInit).headers as Record<string, string>);
    expect(headers[0]!["x-csrftoken"]).toBe("tok");
    expect(headers[0]!["idempotency-key"]).toHaveLength(32);
    expect(headers[0]!["idempotency-key"]).not.toBe(headers[1]!["idempotency-key"]);
  });

  it("of text are YAML", async () => {
    const fake = answer(201, "{}");
    await post("/jobs", {}, "kind: TrainJob");
    const init = fake.mock.calls[0]![1] as RequestInit;
    expect((init.headers as Record<string, string>)["content-type"]).toBe("application/yaml");
    expect(init.body).toBe("kind: TrainJob");
  });
});

describe("after signing in", () => {
  it.each([[null, "/"], ["/jobs?state=running", "/jobs?state=running"], ["//evil.example", "/"], ["/\\evil.example", "/"], ["https://evil.example", "/"]])("%s leads to %s", (next, to) => {
    expect(safeNext(next)).toBe(to);
  });
});

describe("targets of a fault", () => {
  it("need all that leads to them", () => {
    expect(ready(["rank"], { ...EMPTY_PICK, rank: "0" })).toBe(false);
    expect(ready(["rank"], { ...EMPTY_PICK, job: "j", replica: "0", rank: "0" })).toBe(true);
    expect(ready([], EMPTY_PICK)).toBe(true);
  });

  it("are sent as numbers, and only those that matter", () => {
    const pick = { job: "j", replica: "1", rank: "0", node: "n", device: "2" };
    expect(toBody("kill_rank", ["rank"], pick, "")).toEqual({ kind: "kill_rank", job_id: "j", replica: 1, rank: 0 });
    expect(toBody("overheat_device", ["device"], pick, "95")).toEqual({ kind: "overheat_device", node_id: "n", device_index: 2, value: 95 });
  });

  it("chosen anew make the choices below void", () => {
    expect(narrowed({ job: "j", replica: "1", rank: "0", node: "", device: "" }, "job", "k")).toEqual({ job: "k", replica: "", rank: "", node: "", device: "" });
  });
});

describe("the server's clock", () => {
  afterEach(() => hearServer(new Date().toUTCString()));
  it("is known from its answers, so that what it has just written does not lie in the future", async () => {
    const written = new Date(Date.now() + 600_000);
    expect(frozenOf(written.toISOString(), byServer(Date.now()))?.wrong).toContain("in the future");
    answer(200, "{}", { date: written.toUTCString() });
    await get("/version", {});
    expect(frozenOf(written.toISOString(), byServer(Date.now()))?.wrong).toBe("");
    answer(200, "{}");
    await get("/version", {});
    expect(byServer(0)).toBeGreaterThan(590_000);
  });
});
