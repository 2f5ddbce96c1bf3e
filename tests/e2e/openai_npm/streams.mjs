// Streams two turns through the helper that a package offers, and prints what it read of each as JSON.
//   node streams.mjs '{"client": "openai/responses", "base": URL, "key": KEY, "messages": [...], "next": TEXT}'
import Anthropic from "@anthropic-ai/sdk";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";
import { Ollama } from "ollama";
import OpenAI6 from "openai";
import OpenAI7 from "openai7";

globalThis.AI_SDK_LOG_WARNINGS = true;
const job = JSON.parse(process.argv[2]);
const model = "walk";
const root = job.base.replace("/v1", "");
const options = { baseURL: job.base, apiKey: job.key };

const chat = (OpenAI) => async (messages) => {
  const stream = new OpenAI({ ...options, maxRetries: 0 }).chat.completions.stream({ model, messages });
  const { choices } = await stream.finalChatCompletion();
  return [choices[0].message.content, choices[0].finish_reason];
};

const responses = (OpenAI, fields) => async (input) => {
  const stream = new OpenAI({ ...options, maxRetries: 0 }).responses.stream({ model, input, ...fields });
  let text = "";
  stream.on("response.output_text.delta", (event) => (text += event.delta));
  const response = await stream.finalResponse();
  if (text !== response.output_text) throw new Error("the events tell another text");
  return [text, response.status];
};

async function messages(messages) {
  const client = new Anthropic({ baseURL: root, apiKey: job.key, maxRetries: 0 });
  const stream = client.messages.stream({ model, messages, max_tokens: 2000 });
  const message = await stream.finalMessage();
  return [await stream.finalText(), message.stop_reason];
}

const vercel = (model) => async (messages) => {
  const onError = ({ error }) => {
    throw error;
  };
  const result = streamText({ model, messages, maxOutputTokens: 2000, maxRetries: 0, onError });
  let text = "";
  for await (const part of result.textStream) text += part;
  return [text, await result.finishReason];
};

async function ollama(messages) {
  const headers = { authorization: `Bearer ${job.key}` };
  let [text, finish] = ["", null];
  for await (const part of await new Ollama({ host: root, headers }).chat({ model, messages, stream: true })) {
    text += part.message.content;
    if (part.done) finish = part.done_reason;
  }
  return [text, finish];
}

const compacts = { context_management: [{ type: "compaction", compact_threshold: 1000 }] };
const clients = {
  "openai 6/chat": chat(OpenAI6),
  "openai 7/chat": chat(OpenAI7),
  "openai 6/responses": responses(OpenAI6),
  "openai 7/responses": responses(OpenAI7),
  "openai 7/responses, compaction": responses(OpenAI7, compacts),
  "anthropic/messages": messages,
  "vercel openai/responses": vercel(createOpenAI(options)(model)),
  "vercel openai/chat": vercel(createOpenAI(options).chat(model)),
  "vercel openai-compatible/chat": vercel(createOpenAICompatible({ ...options, name: "spillway" })(model)),
  "vercel anthropic/messages": vercel(createAnthropic(options)(model)),
  "ollama/chat": ollama,
};

const ask = clients[job.client];
const [first, finish] = await ask(job.messages);
const second = await ask([...job.messages, { role: "assistant", content: first }, { role: "user", content: job.next }]);
const seen = ([text, finish]) => ({ text, finishes: [["completed", "end_turn"].includes(finish) ? "stop" : finish] });
console.log(JSON.stringify([seen([first, finish]), seen(second)]));
