/** Which gateway may be told something, and what it is told. Pure: no OpenClaw, no network. */

export const PROVIDER = "openclaw-rl";

/** The plug-in's config, checked by the host against `openclaw.plugin.json`. */
export interface Settings {
  rollout_endpoint?: string;
  training_mode?: "async" | "off";
  session_tracking?: boolean;
}

export type TurnType = "main" | "side";

/** What is known of one model call. */
export interface Call {
  sessionId?: string | undefined;
  agentId?: string | undefined;
  turnType?: TurnType | undefined;
}

const LOOPBACK = new Set(["localhost", "127.0.0.1", "[::1]"]);

/** Scheme, host and port; loopback names are one host. Undefined for what is no http URL. */
export function hostOf(url: string | undefined): string | undefined {
  if (!url || !URL.canParse(url)) return undefined;
  const { protocol, hostname, port } = new URL(url);
  if (protocol !== "http:" && protocol !== "https:") return undefined;
  const host = LOOPBACK.has(hostname) ? "loopback" : hostname;
  return `${protocol}//${host}:${port || (protocol === "https:" ? "443" : "80")}`;
}

/** Whether `baseUrl` is the gateway that `settings` (or else the provider's own entry) name. */
export function isGateway(baseUrl: string | undefined, settings: Settings, providerUrl: string | undefined): boolean {
  const asked = hostOf(baseUrl);
  return asked !== undefined && asked === hostOf(settings.rollout_endpoint ?? providerUrl);
}

/** The headers of one call. An unknown turn type is not sent: the gateway then finds it out from the words. */
export function headersOf(call: Call, settings: Settings): Record<string, string> {
  const turnType = settings.training_mode === "off" ? "side" : call.turnType;
  const tracked = settings.session_tracking !== false;
  return {
    ...(tracked && call.sessionId ? { "X-Session-Id": ascii(call.sessionId) } : {}),
    ...(tracked && call.agentId ? { "X-Agent-Id": ascii(call.agentId) } : {}),
    ...(turnType ? { "X-Turn-Type": turnType } : {}),
  };
}

/** Headers carry ASCII; other characters are percent-encoded, as are line ends. */
function ascii(value: string): string {
  return value.replace(/[^\x20-\x7e]+/gu, encodeURIComponent).slice(0, 512);
}
