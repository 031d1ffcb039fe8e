/** Decide whether a URL is the gateway, and make the headers for it. Pure: no OpenClaw, no network. */

export const PROVIDER = "openclaw-rl";

/** The plug-in's config, checked by the host against `openclaw.plugin.json`. */
export interface Settings {
  rollout_endpoint?: string;
  training_mode?: "async" | "off";
  session_tracking?: boolean;
}

export type TurnType = "main" | "side";

/** Known facts about one model call. */
export interface Call {
  sessionId?: string | undefined;
  agentId?: string | undefined;
  turnType?: TurnType | undefined;
}

const LOOPBACK = new Set(["localhost", "127.0.0.1", "[::1]"]);

/** Return scheme, host and port; all loopback names are one host. Undefined if it is not an http URL. */
export function hostOf(url: string | undefined): string | undefined {
  if (!url || !URL.canParse(url)) return undefined;
  const { protocol, hostname, port } = new URL(url);
  if (protocol !== "http:" && protocol !== "https:") return undefined;
  const host = LOOPBACK.has(hostname) ? "loopback" : hostname;
  return `${protocol}//${host}:${port || (protocol === "https:" ? "443" : "80")}`;
}

/** Return whether `baseUrl` is the gateway in `settings`, or else in the provider's entry. */
export function isGateway(baseUrl: string | undefined, settings: Settings, providerUrl: string | undefined): boolean {
  const asked = hostOf(baseUrl);
  return asked !== undefined && asked === hostOf(settings.rollout_endpoint ?? providerUrl);
}

/** Return the headers of one call. An unknown turn type is not sent; the gateway then infers it from the text. */
export function headersOf(call: Call, settings: Settings): Record<string, string> {
  const turnType = settings.training_mode === "off" ? "side" : call.turnType;
  const tracked = settings.session_tracking !== false;
  return {
    ...(tracked && call.sessionId ? { "X-Session-Id": ascii(call.sessionId) } : {}),
    ...(tracked && call.agentId ? { "X-Agent-Id": ascii(call.agentId) } : {}),
    ...(turnType ? { "X-Turn-Type": turnType } : {}),
  };
}

/** Percent-encode line ends and other characters outside of printable ASCII, which headers cannot carry. */
function ascii(value: string): string {
  return value.replace(/[^\x20-\x7e]+/gu, encodeURIComponent).slice(0, 512);
}
