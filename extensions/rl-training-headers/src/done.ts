/** Report the end of a session to the gateway by a request of one token, because no other request follows. */

import { headersOf, type Settings } from "./gateway.ts";

const TIMEOUT_MS = 5000;
/** Reasons after which the session does not continue; it does after a restart, a shutdown or a compaction. */
const ENDS: ReadonlySet<string> = new Set(["new", "reset", "idle", "daily", "deleted"]);

export interface Endpoint {
  baseUrl: string;
  apiKey: string;
  model: string;
}

export function ends(reason: string | undefined): boolean {
  return reason !== undefined && ENDS.has(reason);
}

/** Throws what `fetch` throws, and an `Error` with the gateway's message if it refuses. */
export async function tellDone(endpoint: Endpoint, sessionId: string, settings: Settings): Promise<void> {
  const answer = await fetch(`${endpoint.baseUrl.replace(/\/+$/, "")}/chat/completions`, {
    method: "POST",
    headers: {
      ...headersOf({ sessionId, turnType: "side" }, settings),
      "X-Session-Done": "true",
      "Content-Type": "application/json",
      Authorization: `Bearer ${endpoint.apiKey}`,
    },
    body: JSON.stringify({
      model: endpoint.model,
      max_tokens: 1,
      messages: [{ role: "user", content: "The session has ended." }],
    }),
    signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  const words = await answer.text();
  if (!answer.ok) throw new Error(`${answer.status}: ${words.slice(0, 300)}`);
}
