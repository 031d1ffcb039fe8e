import assert from "node:assert/strict";
import { test } from "node:test";
import { headersOf, hostOf, isGateway } from "../src/gateway.ts";

test("only scheme, host and port count, and loopback names are one host", () => {
  assert.equal(hostOf("http://localhost:8000/rollout"), hostOf("http://127.0.0.1:8000/v1"));
  assert.equal(hostOf("http://[::1]:8000"), hostOf("http://localhost:8000/"));
  assert.equal(hostOf("https://gpu.example/v1"), hostOf("https://gpu.example:443"));
  assert.notEqual(hostOf("http://gpu.example/v1"), hostOf("https://gpu.example/v1"));
  for (const bad of [undefined, "", "gpu.example", "file:///etc/passwd"]) assert.equal(hostOf(bad), undefined);
});

test("another host is never the gateway", () => {
  const settings = { rollout_endpoint: "http://localhost:8000/rollout" };
  assert.ok(isGateway("http://127.0.0.1:8000/v1", settings, undefined));
  assert.ok(isGateway("http://127.0.0.1:8000/v1", {}, "http://127.0.0.1:8000/v1"));
  const others = ["http://127.0.0.1:8001/v1", "https://api.example/v1", "http://127.0.0.1.example:8000", undefined];
  for (const other of others) assert.ok(!isGateway(other, settings, other), String(other));
  assert.ok(!isGateway(undefined, {}, undefined));
});

test("what is known is said, and nothing else", () => {
  const call = { sessionId: "s1", agentId: "main", turnType: "main" } as const;
  assert.deepEqual(headersOf(call, {}), { "X-Session-Id": "s1", "X-Agent-Id": "main", "X-Turn-Type": "main" });
  assert.deepEqual(headersOf({ sessionId: "s1" }, {}), { "X-Session-Id": "s1" });
  assert.deepEqual(headersOf(call, { session_tracking: false }), { "X-Turn-Type": "main" });
  assert.equal(headersOf(call, { training_mode: "off" })["X-Turn-Type"], "side");
  assert.deepEqual(headersOf({}, {}), {});
});

test("a header holds ASCII on one line", () => {
  const said = headersOf({ sessionId: "Zoë\r\nX-Evil: 1" }, {})["X-Session-Id"];
  assert.equal(said, "Zo%C3%AB%0D%0AX-Evil: 1");
});
