// The official JavaScript client, unmodified: streaming, errors, cancellation, models.
import OpenAI from "openai";
import assert from "node:assert/strict";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "What is the capital of France?" }];

const models = await client.models.list();
assert.ok(models.data.some((m) => m.id === model), "the policy's name is listed");

const whole = await client.chat.completions.create({ model, messages, seed: 1, max_tokens: 32 });
assert.ok(whole.choices[0].message.content.length > 0);
assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);

let joined = "", finish = null, usage = null, chunks = 0;
const stream = await client.chat.completions.create({
  model, messages, seed: 1, max_tokens: 32, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  chunks += 1;
  joined += chunk.choices[0]?.delta?.content ?? "";
  finish = chunk.choices[0]?.finish_reason ?? finish;
  usage = chunk.usage ?? usage;
}
assert.equal(joined, whole.choices[0].message.content, "same seed, same reply, streamed or not");
assert.ok(finish && usage && chunks > 2);

await assert.rejects(client.chat.completions.create({ model, messages: [] }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "messages");
  return true;
});
await assert.rejects(client.chat.completions.create({ model: "gpt-none", messages }), OpenAI.NotFoundError);
await assert.rejects(
  new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 }).models.list(), OpenAI.AuthenticationError);

const cancelled = await client.chat.completions.create({ model, messages, stream: true });
for await (const chunk of cancelled) {
  console.log(`cancelled ${chunk.id}`);
  break; // leaving the loop aborts the request
}
console.log("passed");
