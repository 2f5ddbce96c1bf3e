// Has the AI SDK call a tool in one step after the other, streamed and whole, and prints what each ended with as JSON.
//   node loop.mjs '{"client": "openai", "base": URL, "keys": [KEY, KEY], "task": TEXT}'
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, pruneMessages, stepCountIs, streamText, tool } from "ai";

globalThis.AI_SDK_LOG_WARNINGS = true;
const job = JSON.parse(process.argv[2]);
const clients = {
  openai: (options) => createOpenAI(options).chat("m"),
  compatible: (options) => createOpenAICompatible({ ...options, name: "spillway" })("m"),
};
const [client, prunes] = job.client.split(", ");

const read = tool({
  description: "Read a file.",
  inputSchema: jsonSchema({ type: "object", properties: { path: { type: "string" } }, required: ["path"] }),
  execute: ({ path }) => `text of ${path}`,
});
// What a program has left that stores texts and calls only.
const bare = ({ providerOptions, ...part }) => part;
const pruned = ({ messages }) => ({
  messages: pruneMessages({ messages, reasoning: "all" }).map((message) =>
    Array.isArray(message.content) ? { ...message, content: message.content.map(bare) } : message,
  ),
});
const onError = ({ error }) => {
  throw error;
};

async function loop(ask, apiKey, fields) {
  const result = await ask({
    model: clients[client]({ baseURL: job.base, apiKey }),
    prompt: job.task,
    tools: { read },
    stopWhen: stepCountIs(9),
    maxRetries: 0,
    ...(prunes && { prepareStep: pruned }),
    ...fields,
  });
  const steps = await result.steps;
  return {
    text: await result.text,
    finish: await result.finishReason,
    read: steps.flatMap((step) => step.toolResults.map(({ output }) => output)),
    restored: steps.map(({ response }) => Number(response.headers["x-spillway-restored"] ?? 0)),
  };
}

const streamed = await loop(streamText, job.keys[0], { onError });
console.log(JSON.stringify([streamed, await loop(generateText, job.keys[1])]));
