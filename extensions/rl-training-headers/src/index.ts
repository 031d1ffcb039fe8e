/**
 * OpenClaw's plug-in for OpenClaw-RL: sends session, agent and turn type in headers, to the gateway only.
 *
 * Headers are set in the provider's transport state, so calls of other providers are never touched. The hooks that it
 * uses see neither prompts nor replies.
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
      // The gateway drops the session's open turns after its time limit anyway.
      api.logger.warn(`the end of session ${event.sessionId} could not be reported to the gateway: ${String(error)}`);
    }
  });
}

type Provider = NonNullable<NonNullable<NonNullable<OpenClawPluginApi["config"]["models"]>["providers"]>[string]>;

/** Undefined if the key is a secret reference, which plug-ins cannot read; the end is then not reported. */
function endpointOf(provider: Provider | undefined): Endpoint | undefined {
  const model = provider?.models?.[0]?.id;
  if (!provider?.baseUrl || typeof provider.apiKey !== "string" || !model) return undefined;
  return { baseUrl: provider.baseUrl, apiKey: provider.apiKey, model };
}

export default definePluginEntry({
  id: ID,
  name: "RL training headers",
  description: "Sends the session, agent and turn type of each model call to an OpenClaw-RL gateway.",
  register,
});
