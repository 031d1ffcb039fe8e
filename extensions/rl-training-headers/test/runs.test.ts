import assert from "node:assert/strict";
import { test } from "node:test";
import { Runs } from "../src/runs.ts";

const KEY = "agent:main:openai-user:ann";

test("a person's run is main, a wake's is side, and each call is of the run that sends it", () => {
  const runs = new Runs(true);
  runs.started({ runId: "r1", sessionId: "s1", sessionKey: KEY });
  assert.deepEqual(runs.sending("t1", "s1"), { sessionId: "s1", agentId: "main", turnType: "main" });
  runs.woken("r2");
  runs.started({ runId: "r2", sessionId: "s1", sessionKey: KEY });
  assert.equal(runs.sending("t2", "s1").turnType, "side");
  runs.started({ runId: "r3", sessionId: "s1", sessionKey: KEY });
  assert.equal(runs.sending("t3", "s1").turnType, "main");
});

test("compaction, memory flush and scheduled jobs are side", () => {
  const side = [
    { runId: "37d0:compaction:cmp-1", sessionId: "s1", sessionKey: KEY },
    { runId: "r1", sessionId: "internal-session-effects-3d24", sessionKey: "agent:main:internal-session-effects-3d24" },
    { runId: "r1", sessionId: "s1", sessionKey: "agent:main:cron:fb9f" },
  ];
  for (const call of side) {
    const runs = new Runs(true);
    runs.started(call);
    assert.equal(runs.sending("t1", call.sessionId).turnType, "side", call.sessionKey);
  }
});

test("where wakes are not told, main is not claimed", () => {
  const runs = new Runs(false);
  runs.started({ runId: "r1", sessionId: "s1", sessionKey: KEY });
  assert.equal(runs.sending("t1", "s1").turnType, undefined);
});

test("without hooks only the session is known", () => {
  const runs = new Runs(true);
  assert.deepEqual(runs.sending("t1", "s9"), { sessionId: "s9" });
  assert.deepEqual(runs.sending("t2", undefined), {});
});

test("what was told of one call is not said of the next, but of its retries", () => {
  const runs = new Runs(true);
  runs.started({ runId: "r1", sessionId: "s1", sessionKey: KEY });
  assert.equal(runs.sending("t1", "s1").turnType, "main");
  assert.equal(runs.sending("t1", "s1").turnType, "main");
  assert.deepEqual(runs.sending("t2", "s1"), { sessionId: "s1" });
});

test("a long life does not fill the memory", () => {
  const runs = new Runs(true);
  for (let n = 0; n < 1500; n++) runs.started({ runId: `r${n}`, sessionId: `s${n}`, sessionKey: KEY });
  assert.deepEqual(runs.sending("t0", "s0"), { sessionId: "s0" });
  assert.equal(runs.sending("t1499", "s1499").turnType, "main");
});
