/**
 * OpenClaw's plug-in for OpenClaw-RL: names session, agent and kind of turn in headers, to the gateway alone.
 *
 * Headers are given by the provider's transport state, so no other provider's call is ever touched. The hooks used are
 * those that see neither prompts nor replies.
 */

import { definePluginEntry, type OpenClawPluginApi } from "openclaw/plugin-sdk/plugin-entry";
import { type Endpoint, ends, tellDone } from "./done.ts";
import { headersOf, isGateway, PROVIDER, type Settings } from "./gateway.ts";
import { Runs } from "./runs.ts";

const ID = "rl-training-headers";

export function register(api: OpenClawPluginApi): void {
  const settings = (api.pluginConfig ?? {}) as Settings;
  const provider = api.config.models?.providers?.[PROVIDER];
  const runs = new Runs(api.config.plugins?.entries?.[ID]?.hooks?.allowPromptInjection !== false);

  api.registerProvider({
    id: PROVIDER,
    label: "OpenClaw-RL",
    auth: [],
    resolveTransportTurnState: (ctx) =>
      isGateway(ctx.model?.baseUrl, settings, provider?.baseUrl)
        ? { headers: headersOf(runs.sending(ctx.turnId, ctx.sessionId), settings) }
        : undefined,
  });

  api.on("heartbeat_prompt_contribution", (_event, ctx) => {
    if (ctx.runId) runs.woken(ctx.runId);
  });
  api.on("model_call_started", (event) => {
    if (event.provider === PROVIDER) runs.started(event);
  });
  api.on("session_end", async (event) => {
    if (settings.session_tracking === false || !ends(event.reason)) return;
    const endpoint = endpointOf(provider);
    if (!endpoint || !isGateway(endpoint.baseUrl, settings, provider?.baseUrl)) return;
    try {
      await tellDone(endpoint, event.sessionId, settings);
    } catch (error) {
      // The gateway drops the session's open turns by itself after its time limit.
      api.logger.warn(`the end of session ${event.sessionId} was not told to the gateway: ${String(error)}`);
    }
  });
}

type Provider = NonNullable<NonNullable<NonNullable<OpenClawPluginApi["config"]["models"]>["providers"]>[string]>;

/** Undefined where the key is kept as a secret reference, which plug-ins do not see: the end is then not told. */
function endpointOf(provider: Provider | undefined): Endpoint | undefined {
  const model = provider?.models?.[0]?.id;
  if (!provider?.baseUrl || typeof provider.apiKey !== "string" || !model) return undefined;
  return { baseUrl: provider.baseUrl, apiKey: provider.apiKey, model };
}

export default definePluginEntry({
  id: ID,
  name: "RL training headers",
  description: "Tells an OpenClaw-RL gateway which session, agent and kind of turn a model call belongs to.",
  register,
});
