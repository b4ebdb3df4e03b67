// What the unmodified openai package for Node makes of a gateway: one JSON object on stdout.
// node openai_clients.mjs BASE_URL PACKAGE_FOLDER
import { createRequire } from "node:module";

const [baseURL, packages] = process.argv.slice(2);
const OpenAI = createRequire(packages + "/")("openai");
const client = new OpenAI({ baseURL, apiKey: "sk-client", maxRetries: 0 });
const messages = [{ role: "user", content: "Why is the sky blue?" }];
const asked = { model: "chat", messages, max_tokens: 12, temperature: 0 };
const found = {};

const refusal = async (ask) => {
  try {
    await ask();
    return null;
  } catch (error) {
    return { kind: error.constructor.name, status: error.status, param: error.param, code: error.code };
  }
};

const whole = await client.chat.completions.create(asked);
found.text = whole.choices[0].message.content;
found.usage = whole.usage;

const chunks = [];
for await (const chunk of await client.chat.completions.create({
  ...asked,
  stream: true,
  stream_options: { include_usage: true },
}))
  chunks.push(chunk);
found.streamed = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? "")).join("");
found.streamedUsage = chunks.at(-1).usage;

const stop = found.text.trim().split(" ")[2];
const stopped = await client.chat.completions.create({ ...asked, stop: [stop] });
found.stopped = { text: stopped.choices[0].message.content, reason: stopped.choices[0].finish_reason, stop };

found.badRequest = await refusal(() => client.chat.completions.create({ ...asked, max_tokens: -1 }));
found.unknownModel = await refusal(() => client.chat.completions.create({ ...asked, model: "none" }));
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
found.toolsRefused = await refusal(() => client.chat.completions.create({ ...asked, tools }));
const run = client.chat.completions.stream({ model: "tools", messages, tools });
found.toolCall = (await run.finalChatCompletion()).choices[0].message.tool_calls[0].function;

const patient = new OpenAI({ baseURL, apiKey: "sk-client", maxRetries: 2 });
found.retried = (await patient.chat.completions.create({ model: "flaky-node", messages })).choices[0].message.content;

const endless = await client.chat.completions.create({ ...asked, max_tokens: 1500, ignore_eos: true, stream: true });
let seen = 0;
for await (const _ of endless) if (++seen === 3) break; // leaving the loop aborts the request
found.aborted = seen;

const response = await client.responses.create({ model: "chat", input: messages[0].content, max_output_tokens: 12, temperature: 0 });
found.response = { text: response.output_text, status: response.status };
const events = [];
for await (const event of await client.responses.create({
  model: "chat",
  input: messages[0].content,
  max_output_tokens: 12,
  temperature: 0,
  stream: true,
  background: true,
}))
  events.push(event);
found.events = events.map((event) => event.sequence_number);
const resumed = [];
for await (const event of await client.responses.retrieve(events[0].response.id, { stream: true, starting_after: 3 }))
  resumed.push(event);
found.resumed = JSON.stringify(resumed) === JSON.stringify(events.slice(4));

console.log(JSON.stringify(found));
