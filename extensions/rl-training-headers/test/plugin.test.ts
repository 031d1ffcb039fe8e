import assert from "node:assert/strict";
import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import type { OpenClawPluginApi, ProviderPlugin } from "openclaw/plugin-sdk/plugin-entry";
import plugin, { register } from "../src/index.ts";

type Hook = (event: unknown, ctx: unknown) => unknown;

/** Test double for OpenClaw's plug-in interface; keeps what is registered. */
class Host {
  readonly hooks = new Map<string, Hook>();
  readonly warnings: string[] = [];
  provider!: ProviderPlugin;

  constructor(baseUrl: string, pluginConfig: Record<string, unknown> = {}, apiKey: unknown = "sk-1") {
    const entry = { baseUrl, apiKey, api: "openai-completions", models: [{ id: "openclaw", name: "openclaw" }] };
    const api = {
      pluginConfig,
      config: { models: { providers: { "openclaw-rl": entry } } },
      logger: { warn: (words: string) => this.warnings.push(words) },
      registerProvider: (provider: ProviderPlugin) => (this.provider = provider),
      on: (name: string, hook: Hook) => this.hooks.set(name, hook),
    };
    register(api as unknown as OpenClawPluginApi);
  }

  headers(baseUrl: string, sessionId?: string): Record<string, string> | undefined {
    const model = { baseUrl } as never;
    const call = { provider: "openclaw-rl", modelId: "openclaw", turnId: "t", attempt: 1, transport: "stream" } as const;
    const state = this.provider.resolveTransportTurnState?.({ ...call, model, ...(sessionId ? { sessionId } : {}) });
    return state?.headers;
  }

  fire(name: string, event: object, ctx: object = {}): unknown {
    return this.hooks.get(name)?.(event, ctx);
  }
}

const GATEWAY = "http://127.0.0.1:8000/v1";
const STARTED = { provider: "openclaw-rl", sessionId: "s1", sessionKey: "agent:main:main" };

test("its id is the manifest's", async () => {
  const { default: manifest } = await import("../openclaw.plugin.json", { with: { type: "json" } });
  assert.equal(plugin.id, manifest.id);
  assert.deepEqual(manifest.providers, ["openclaw-rl"]);
});

test("a call to the gateway is named, a call to another host is not", () => {
  const host = new Host(GATEWAY);
  host.fire("model_call_started", { ...STARTED, runId: "r1" });
  assert.deepEqual(host.headers(GATEWAY, "s1"), {
    "X-Session-Id": "s1",
    "X-Agent-Id": "main",
    "X-Turn-Type": "main",
  });
  assert.equal(host.headers("https://api.example/v1", "s1"), undefined);
});

test("a heartbeat's calls are side", () => {
  const host = new Host(GATEWAY);
  host.fire("heartbeat_prompt_contribution", {}, { runId: "r2" });
  host.fire("model_call_started", { ...STARTED, runId: "r2" });
  assert.equal(host.headers(GATEWAY, "s1")?.["X-Turn-Type"], "side");
});

test("another provider's calls are not looked at", () => {
  const host = new Host(GATEWAY);
  host.fire("model_call_started", { ...STARTED, provider: "other", runId: "r1" });
  assert.deepEqual(host.headers(GATEWAY, "s1"), { "X-Session-Id": "s1" });
});

test("no hook is used that sees prompts or replies", () => {
  const names = [...new Host(GATEWAY).hooks.keys()].sort();
  assert.deepEqual(names, ["heartbeat_prompt_contribution", "model_call_started", "session_end"]);
});

interface Heard {
  headers: IncomingHttpHeaders;
  body: { model: string };
}

async function listening(status: number, work: (url: string, heard: Heard[]) => Promise<void>): Promise<void> {
  const heard: Heard[] = [];
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (piece: Buffer) => (body += piece.toString()));
    request.on("end", () => {
      heard.push({ headers: request.headers, body: JSON.parse(body) as Heard["body"] });
      response.writeHead(status).end("no");
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    await work(`http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`, heard);
  } finally {
    await new Promise((resolve) => server.close(resolve));
  }
}

test("the end of a session is told, once, and not at a restart", () =>
  listening(200, async (url, heard) => {
    const host = new Host(url);
    for (const reason of ["shutdown", "restart", "compaction", "unknown", undefined, "reset"])
      await host.fire("session_end", { sessionId: "s1", reason });
    assert.equal(heard.length, 1);
    const { headers, body } = heard[0]!;
    assert.equal(body.model, "openclaw");
    const told = [headers["x-session-id"], headers["x-session-done"], headers["x-turn-type"], headers.authorization];
    assert.deepEqual(told, ["s1", "true", "side", "Bearer sk-1"]);
    assert.deepEqual(host.warnings, []);
  }));

test("it is not told where sessions are not tracked, to another host, or without the key", () =>
  listening(200, async (url, heard) => {
    const silent = [
      new Host(url, { session_tracking: false }),
      new Host(url, { rollout_endpoint: "http://127.0.0.1:1/v1" }),
      new Host(url, {}, { source: "env", id: "KEY" }),
    ];
    for (const host of silent) await host.fire("session_end", { sessionId: "s1", reason: "new" });
    assert.deepEqual(heard, []);
  }));

test("a gateway that refuses, or is gone, is a warning", async () => {
  let gone = "";
  await listening(401, async (url) => {
    gone = url;
    const host = new Host(url);
    await host.fire("session_end", { sessionId: "s1", reason: "deleted" });
    assert.match(host.warnings.join(), /401: no/);
  });
  const host = new Host(gone);
  await host.fire("session_end", { sessionId: "s1", reason: "deleted" });
  assert.equal(host.warnings.length, 1);
});
