/** Which run a session's next model call belongs to, and whether a person is at its other end. */

import type { Call, TurnType } from "./gateway.ts";

const REMEMBERED = 1000; // runs and sessions; the oldest are forgotten first

/** What OpenClaw tells of a model call before it is sent. */
export interface Started {
  runId: string;
  sessionId?: string | undefined;
  sessionKey?: string | undefined;
}

export class Runs {
  readonly #woken = new Bounded<true>();
  readonly #started = new Bounded<Call>(); // by session: told, not sent yet
  readonly #sent = new Bounded<Call>(); // by turn id, which an attempt shares with its retries
  readonly #wakesAreTold: boolean;

  /** `wakesAreTold`: the host may call the heartbeat hook; if not, only what is certainly side is said. */
  constructor(wakesAreTold: boolean) {
    this.#wakesAreTold = wakesAreTold;
  }

  /** This run was begun by a heartbeat or another wake, not by a person. */
  woken(runId: string): void {
    this.#woken.set(runId, true);
  }

  /** A model call is about to be sent. */
  started(call: Started): void {
    if (!call.sessionId) return;
    const agentId = /^agent:([^:]+):/.exec(call.sessionKey ?? "")?.[1];
    this.#started.set(call.sessionId, { sessionId: call.sessionId, agentId, turnType: this.#typeOf(call) });
  }

  /**
   * The call that the session sends now. Only its session is known of a call that was not told of before: those of
   * `openclaw agent exec`, and of a memory flush, whose hooks OpenClaw holds back.
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
