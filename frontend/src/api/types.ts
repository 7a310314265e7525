/* What the HTTP API answers, by the names that the page uses: all of it from `openapi.gen.ts`, which
   `npm run types` makes from the server's own document. Quantities carry their unit last; null is
   "not reported" and is never shown as 0. Times are ISO-8601 UTC strings. */
import type { paths } from "./openapi.gen";
import type { Attempt, Checkpoint, Command, Fault, Incident, Job, LedgerClass, Node, Rank, Replica } from "./openapi.gen";

export type {
  Accepted, Alternative, Attempt, AuditEntry, AuditState, Bill, Breaker, Budget, Capacity, CapacityCounts, Certificate, Check, Checkpoint, Command, DeadLetter, Decision, DecisionDetail, Device, DeviceAround, DeviceLive, DeviceSeries, DryRun, Engine, Event as EventItem, Fault as FaultKind, FirstFailure, Health, Incident, IncidentDetail, IncidentReadings, Intent, Job, JobDetail, JobEngine, JobMesh, JoinToken, Layout, Ledger, LedgerClass, LedgerRow, Log, Me, Node, NodeDetail, NodeEnd, NodeEngine, NotHeard, Overview, Part as HealthPart, Phase as IncidentPhase, Pilot, Policy, PolicyReplay, Pool, Project, ProjectDetail, QueuedJob, Rank, RankLive, RankSpeed, ReadingAround, Repeated, Reservation, Setting, Shadow, Token, WaitingJob, XidRule,
  Replica, SectionTimeout, Signal, StackGroups, Step, FieldError as SpecFault,
} from "./openapi.gen";
export type JobState = Job["state"];
export type ReplicaState = Replica["state"];
export type RankState = Rank["state"];
export type NodeState = Node["state"];
export type CommandState = Command["state"];
export type CheckpointState = Checkpoint["state"];
export type IncidentState = Incident["state"];
export type IncidentOutcome = Exclude<Incident["outcome"], "">;
export type AttemptState = Attempt["state"];
export type TimeClass = LedgerClass["of"];
export type Target = Fault["needs"][number];
export type Scalar = string | number | boolean | null;

export interface Page<T> {
  items: T[];
  next: string | null;
  as_of_seq: number;
  /** Rows of all pages together; null where the server does not count them. */
  total?: number | null;
}

type Root = "/api/v1";
type Under<K> = K extends `${Root}${infer P}` ? P : never;
type Doing<Method extends string, P extends string> = `${Root}${P}` extends keyof paths
  ? paths[`${Root}${P}`] extends Record<Method, infer Operation> ? Operation : never
  : never;
type Content<R> = R extends { content: { "application/json": infer Body } } ? Body : Record<string, never>;
type Answered<R> = { [Status in keyof R]: Status extends 200 | 201 | 202 ? Content<R[Status]> : never }[keyof R];
type Given<Operation, Where extends string> = Operation extends { parameters: { [W in Where]?: infer Values } } ? NonNullable<Values> : never;

/** Paths under the root that can be read, as the document writes them: `/jobs/{job_id}`. */
export type Readable = { [K in keyof paths]: paths[K] extends { get: { responses: unknown } } ? Under<K> : never }[keyof paths];
/** Paths under the root that something can be sent to. */
export type Writable = { [K in keyof paths]: paths[K] extends { post: { responses: unknown } } ? Under<K> : never }[keyof paths];
export type Answer<P extends Readable> = Doing<"get", P> extends { responses: infer R } ? Answered<R> : never;
export type Outcome<P extends Writable> = Doing<"post", P> extends { responses: infer R } ? Answered<R> : never;
/** A row of a list. */
export type Item<P extends Readable> = Answer<P> extends { items: (infer Row)[] } ? Row : never;
/** What stands in braces in a path, and what may follow its question mark. */
export type Query<P extends Readable> = [Given<Doing<"get", P>, "query">] extends [never] ? object : Partial<Given<Doing<"get", P>, "query">>;
export type Named<P extends string> = P extends `${string}{${infer Name}}${infer Rest}` ? { [N in Name]: string } & Named<Rest> : unknown;
