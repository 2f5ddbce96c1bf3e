// Runs one job with the openai package and prints its result as JSON.
//   node chat.mjs '{"kind": "create" | "helper" | "whole", "base": URL, ...}'
import OpenAI from "openai";

const job = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: job.base, apiKey: job.key, maxRetries: 0 });

// -- two turns of a chat: what was read of each, and the message that goes back

function read({ message, finish_reason }, usage) {
  const calls = (message.tool_calls ?? []).map((call) => [call.id, call.function.name, call.function.arguments]);
  return [{ text: message.content ?? "", finishes: [finish_reason], calls, usage: usage ?? null }, message];
}

async function create(messages) {
  const seen = { text: "", finishes: [], calls: [], usage: null };
  for await (const chunk of await client.chat.completions.create({ ...job.fields, messages })) {
    if (chunk.usage) seen.usage = chunk.usage;
    for (const { delta, finish_reason } of chunk.choices) {
      seen.text += delta.content ?? "";
      if (finish_reason) seen.finishes.push(finish_reason);
      for (const call of delta.tool_calls ?? []) {
        seen.calls[call.index] ??= [call.id, call.function.name, ""];
        seen.calls[call.index][2] += call.function.arguments ?? "";
      }
    }
  }
  const tool_calls = seen.calls.map(([id, name, text]) => ({ id, type: "function", function: { name, arguments: text } }));
  return [seen, { role: "assistant", content: seen.text, ...(tool_calls.length && { tool_calls }) }];
}

async function helper(messages) {
  const stream = client.chat.completions.stream({ ...job.fields, messages });
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const completion = await stream.finalChatCompletion();
  const [seen, message] = read(completion.choices[0], completion.usage);
  if (text !== seen.text) throw new Error("the events tell another text");
  return [seen, message];
}

async function whole(messages) {
  const completion = await client.chat.completions.create({ ...job.fields, messages });
  return read(completion.choices[0], completion.usage);
}

const twoTurns = (ask) => async () => {
  const [first, message] = await ask(job.messages);
  const results = first.calls.map(([id]) => ({ role: "tool", tool_call_id: id, content: "12 degrees" }));
  const [second] = await ask([...job.messages, message, ...results, { role: "user", content: job.next }]);
  return [first, second];
};

const kinds = { create: twoTurns(create), helper: twoTurns(helper), whole: twoTurns(whole) };
console.log(JSON.stringify(await kinds[job.kind]()));
