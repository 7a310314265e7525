/* One WebSocket a tab. Messages are queued and applied once per animation frame; a hidden tab
   gets no frames, so it does no work, and its queue is bounded: when it overflows the oldest
   volatile news is dropped and, if a durable event had to go, everything is read again. */
import { freezeClock } from "../lib/clock";
import { EMPTY, giveUpWaiting, type LiveData, reduce, type ServerMessage } from "./reducer";

export type LinkState = "connecting" | "live" | "reconnecting" | "stale" | "paused";

export interface LiveState {
  link: LinkState;
  /** When the newest message that is shown arrived (browser clock, ms); null before the first. */
  heardMs: number | null;
  data: LiveData;
}

const PING_EVERY_MS = 5_000;
const STALE_AFTER_MS = 7_000;
const DEAD_AFTER_MS = 15_000;
const HOLE_PATIENCE_MS = 400;
const BACKOFF_MS = [250, 500, 1_000, 2_000, 4_000, 8_000];
const QUEUE_LIMIT = 2_000;
/** The server's closing code for a session that has ended. */
const SIGNED_OUT = 4401;

type Listener = () => void;

export class LiveStore {
  private state: LiveState = { link: "connecting", heardMs: null, data: EMPTY };
  private listeners = new Set<Listener>();
  private topics = new Map<string, number>();
  private socket: WebSocket | null = null;
  private queue: ServerMessage[] = [];
  private frame: number | null = null;
  private tries = 0;
  private ticker: ReturnType<typeof setInterval> | null = null;
  private retry: ReturnType<typeof setTimeout> | null = null;
  private hole: ReturnType<typeof setTimeout> | null = null;
  private wanted = false;
  private userPaused = false;
  /** The newest message of all, shown or not: what a paused page goes on from. */
  private newestMs: number | null = null;
  private greeted: WebSocket | null = null;
  /** Called when the server says that the session has ended: ask who we are. */
  onSignedOut: () => void = () => undefined;
  /** Called at each (re)connection: a server that was away may be a newer one. */
  onGreeted: () => void = () => undefined;

  getState = (): LiveState => this.state;

  listen = (listener: Listener): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Connects once somebody is signed in; idempotent. */
  start(): void {
    if (this.wanted) return;
    this.wanted = true;
    this.open();
    this.ticker = setInterval(() => this.tick(), 1_000);
    document.addEventListener("visibilitychange", this.onVisible);
  }

  stop(): void {
    this.wanted = false;
    if (this.ticker !== null) clearInterval(this.ticker);
    if (this.retry !== null) clearTimeout(this.retry);
    document.removeEventListener("visibilitychange", this.onVisible);
    this.socket?.close();
    this.socket = null;
    this.userPaused = false;
    this.newestMs = null;
    freezeClock(null);
    this.set({ link: "connecting", heardMs: null, data: EMPTY });
  }

  /** Holds everything that moves: no message is applied, no query asks (`api/queries`), no age grows. */
  setPaused(paused: boolean): void {
    if (paused === this.userPaused) return;
    this.userPaused = paused;
    freezeClock(paused ? Date.now() : null);
    if (paused) {
      if (this.frame !== null) cancelAnimationFrame(this.frame);
      this.frame = null;
      this.set({ ...this.state, link: "paused" });
    } else {
      this.set({ ...this.state, heardMs: this.newestMs, link: this.socket?.readyState === WebSocket.OPEN ? "live" : "reconnecting" });
      this.schedule();
    }
  }

  /** True while the reader holds the page still. */
  get paused(): boolean {
    return this.userPaused;
  }

  /** Reference-counted: two parts of a page may want the same topic. */
  subscribe(topic: string): () => void {
    this.topics.set(topic, (this.topics.get(topic) ?? 0) + 1);
    this.sendTopics();
    return () => {
      const left = (this.topics.get(topic) ?? 1) - 1;
      if (left > 0) this.topics.set(topic, left);
      else this.topics.delete(topic);
      this.sendTopics();
    };
  }

  private open(): void {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/api/v1/live`);
    this.socket = socket;
    /* The topics go out after the server's hello, so that `since` is a number of its own log. */
    socket.onmessage = (message) => this.receive(String(message.data));
    socket.onclose = (event) => {
      if (event.code === SIGNED_OUT && this.socket === socket) this.onSignedOut();
      this.onClose(socket);
    };
  }

  private onClose(socket: WebSocket): void {
    if (this.socket !== socket || !this.wanted) return;
    this.socket = null;
    if (!this.userPaused) this.set({ ...this.state, link: "reconnecting" });
    const base = BACKOFF_MS[Math.min(this.tries, BACKOFF_MS.length - 1)]!;
    this.tries += 1;
    /* Full jitter: many tabs must not return to a restarted server in the same instant. */
    this.retry = setTimeout(() => this.open(), base / 2 + Math.random() * base);
  }

  private greet(hello: { seq: number }): void {
    this.greeted = this.socket;
    this.onGreeted();
    const known = this.state.data.seq;
    this.sendTopics(known === null || known > hello.seq ? hello.seq : known);
  }

  private sendTopics(since: number | null = this.state.data.seq): void {
    if (this.socket === null || this.greeted !== this.socket || this.socket.readyState !== WebSocket.OPEN) return;
    this.socket.send(JSON.stringify({ type: "subscribe", topics: [...this.topics.keys()], ...(since === null ? {} : { since }) }));
  }

  private receive(text: string): void {
    let message: ServerMessage;
    try {
      message = JSON.parse(text) as ServerMessage;
    } catch {
      return;
    }
    this.tries = 0;
    if (message.type === "hello") this.greet(message);
    this.queue.push(message);
    if (this.queue.length > QUEUE_LIMIT) this.shed();
    /* "Heard" is kept outside the frame loop: a hidden tab is not stale, only unpainted. */
    this.newestMs = Date.now();
    if (!this.userPaused) this.state = { ...this.state, heardMs: this.newestMs };
    this.schedule();
  }

  private shed(): void {
    const durable = this.queue.filter((message) => message.type === "event" || message.type === "resync");
    const newest = durable[durable.length - 1];
    const seq = newest?.type === "event" ? newest.event.seq : newest?.type === "resync" ? newest.seq : null;
    this.queue = durable.length > QUEUE_LIMIT / 2 && seq !== null ? [{ type: "resync", seq }] : durable;
  }

  private schedule(): void {
    if (this.frame !== null || this.userPaused) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.flush();
    });
  }

  private flush(): void {
    if (this.queue.length === 0) return;
    const batch = this.queue;
    this.queue = [];
    const now = Date.now();
    let data = this.state.data;
    for (const message of batch) data = reduce(data, message, now);
    this.set({ link: "live", heardMs: this.state.heardMs, data });
    if (data.held.length > 0 && this.hole === null) {
      this.hole = setTimeout(() => {
        this.hole = null;
        if (!this.userPaused) this.set({ ...this.state, data: giveUpWaiting(this.state.data) });
      }, HOLE_PATIENCE_MS);
    }
    if (data.held.length === 0 && this.hole !== null) {
      clearTimeout(this.hole);
      this.hole = null;
    }
  }

  private tick(): void {
    const { heardMs, link } = this.state;
    if (this.socket?.readyState === WebSocket.OPEN && Date.now() % PING_EVERY_MS < 1_000) {
      this.socket.send('{"type":"ping"}');
    }
    if (heardMs === null || document.hidden || this.userPaused) return;
    const age = Date.now() - heardMs;
    if (age > DEAD_AFTER_MS && this.socket) {
      /* A half-open connection never closes by itself: drop it and begin again. */
      const dead = this.socket;
      dead.close();
      this.onClose(dead);
    }
    if (age > STALE_AFTER_MS && link === "live") this.set({ ...this.state, link: "stale" });
  }

  private onVisible = (): void => {
    if (document.hidden) return;
    if (this.wanted && !this.socket) {
      if (this.retry !== null) clearTimeout(this.retry);
      this.open();
    }
    this.schedule();
  };

  private set(state: LiveState): void {
    this.state = state;
    for (const listener of this.listeners) listener();
  }
}

export const live = new LiveStore();
