// Runs one job with the openai package and prints its result as JSON.
//   node chat.mjs '{"kind": "turns" | "answer", "base": URL, "model": ID, ...}'
import OpenAI from "openai";

const job = JSON.parse(process.argv[2]);
const client = new OpenAI({ baseURL: job.base, apiKey: job.key, maxRetries: 0 });

async function complete(messages, fields) {
  const { stream } = fields;
  const { data, response } = await client.chat.completions
    .create({ model: job.model, messages, ...fields, ...(stream && { stream_options: { include_usage: true } }) })
    .withResponse();
  const result = { action: response.headers.get("x-spillway-action"), ids: [], roles: [], finishes: [] };
  if (!stream) {
    const [choice] = data.choices;
    return {
      ...result,
      ids: [data.id],
      roles: [choice.message.role],
      finishes: [choice.finish_reason],
      text: choice.message.content,
      usage: data.usage,
    };
  }
  result.text = "";
  const ids = new Set();
  for await (const chunk of data) {
    ids.add(chunk.id);
    if (chunk.usage) result.usage = chunk.usage;
    for (const choice of chunk.choices) {
      if (choice.delta.role) result.roles.push(choice.delta.role);
      if (choice.finish_reason) result.finishes.push(choice.finish_reason);
      result.text += choice.delta.content ?? "";
    }
  }
  result.ids = [...ids];
  return result;
}

async function turns() {
  const history = [];
  const results = [];
  for (const turn of job.turns) {
    history.push({ role: "user", content: turn.content });
    const result = await complete(history, { max_tokens: turn.max_tokens, stream: turn.stream });
    history.push({ role: "assistant", content: result.text });
    results.push(result);
  }
  return results;
}

async function answer() {
  return [await complete([{ role: "user", content: job.content }], { max_tokens: job.max_tokens, stream: job.stream })];
}

console.log(JSON.stringify(await { turns, answer }[job.kind]()));
