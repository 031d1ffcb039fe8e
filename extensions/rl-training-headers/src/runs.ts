/** Match a session's next model call to its run, and decide whether a person started the run. */

import type { Call, TurnType } from "./gateway.ts";

const REMEMBERED = 1000; // runs and sessions kept; the oldest are removed first

/** OpenClaw's event for a model call that is about to be sent. */
export interface Started {
  runId: string;
  sessionId?: string | undefined;
  sessionKey?: string | undefined;
}

export class Runs {
  readonly #woken = new Bounded<true>();
  readonly #started = new Bounded<Call>(); // by session: announced, not sent yet
  readonly #sent = new Bounded<Call>(); // by turn id, which a call shares with its retries
  readonly #wakesAreTold: boolean;

  /** `wakesAreTold`: the host calls the heartbeat hook. If not, a call is never marked as main. */
  constructor(wakesAreTold: boolean) {
    this.#wakesAreTold = wakesAreTold;
  }

  /** Record that a heartbeat or another wake started this run, not a person. */
  woken(runId: string): void {
    this.#woken.set(runId, true);
  }

  /** Record a model call that is about to be sent. */
  started(call: Started): void {
    if (!call.sessionId) return;
    const agentId = /^agent:([^:]+):/.exec(call.sessionKey ?? "")?.[1];
    this.#started.set(call.sessionId, { sessionId: call.sessionId, agentId, turnType: this.#typeOf(call) });
  }

  /**
   * Return the call that the session sends now. Without a preceding event only its session is known: for calls of
   * `openclaw agent exec` and of a memory flush, OpenClaw does not run hooks.
   */
  sending(turnId: string, sessionId: string | undefined): Call {
    if (!sessionId) return {};
    const call = this.#sent.get(turnId) ?? this.#started.take(sessionId) ?? { sessionId };
    this.#sent.set(turnId, call);
    return call;
  }

  #typeOf({ runId, sessionId = "", sessionKey = "" }: Started): TurnType | undefined {
    const housekeeping = runId.includes(":compaction:") || /internal-session-effects/.test(`${sessionId} ${sessionKey}`);
    const unattended = /:(cron|heartbeat)(:|$)/.test(sessionKey) || this.#woken.get(runId) === true;
    if (housekeeping || unattended) return "side";
    return this.#wakesAreTold ? "main" : undefined;
  }
}

class Bounded<V> {
  readonly #values = new Map<string, V>();

  get(key: string): V | undefined {
    return this.#values.get(key);
  }

  take(key: string): V | undefined {
    const value = this.#values.get(key);
    this.#values.delete(key);
    return value;
  }

  set(key: string, value: V): void {
    this.#values.delete(key);
    this.#values.set(key, value);
    if (this.#values.size > REMEMBERED) {
      const oldest = this.#values.keys().next();
      if (!oldest.done) this.#values.delete(oldest.value);
    }
  }
}
