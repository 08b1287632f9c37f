// Clients for Node, as they come from npm, against a running server:
//   node clients.mjs URL MODEL [URL of a model of embeddings, its name]
// What a small model says does not count here, only whether each client understands its answers.
import Anthropic from "@anthropic-ai/sdk";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [url, model, embedder, embedding] = process.argv.slice(2);
const Weather = z.object({ city: z.enum(["Oslo", "Rome"]), days: z.number().int().min(1).max(9) });
const schema = z.toJSONSchema(Weather);
const messages = [{ role: "user", content: "How is the weather in Oslo?" }];
const described = { name: "weather", description: "The weather in a city" };
const run = ({ city }) => `Sun in ${city}`;
const checked = (value) => assert(Weather.parse(value));
const all = async (stream) => assert((await Array.fromAsync(stream)).length > 1);

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const chat = { model, messages, max_tokens: 300 };
const formed = { ...chat, response_format: zodResponseFormat(Weather, "weather") };
const tools = [{ type: "function", function: { ...described, parameters: schema } }];
const required = { ...chat, tools, tool_choice: "required", parallel_tool_calls: false };
const runner = { ...required, tools: [zodFunction({ ...described, parameters: Weather, function: run })] };
const asked = { model, input: messages[0].content, max_output_tokens: 300, store: false };
const asForm = { ...asked, text: { format: zodTextFormat(Weather, "weather") } };
const functions = [{ type: "function", ...described, parameters: schema, strict: true }];
const asCall = { ...asked, tools: functions, tool_choice: "required", parallel_tool_calls: false };
const answered = (call) => ({ type: "function_call_output", call_id: call.call_id, output: "Sun" });
const parsed = ({ choices }) => checked(choices[0].message.parsed);
const called = ({ choices }) => checked(JSON.parse(choices[0].message.tool_calls[0].function.arguments));
const ran = async (asked) => {
  const chats = openai.chat.completions.runTools(asked, { maxChatCompletions: 2 });
  await chats.done();
  assert(chats.messages.some((each) => each.role === "tool"));
};

const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const message = { model, messages, max_tokens: 300 };
const use = { ...message, tools: [{ ...described, input_schema: schema }], tool_choice: { type: "any" } };
const used = ({ content }) => content.find((each) => each.type === "tool_use");

const ollama = new Ollama({ host: url });
const asChat = { model, messages, options: { num_predict: 300 } };
const asFormed = { ...asChat, format: schema };
const asText = { model, prompt: "Hello", options: { num_predict: 300 } };

const cases = {
  "openai models": async () => assert((await openai.models.list()).data.some((m) => m.id === model)),
  "openai chat": () => openai.chat.completions.create(chat),
  "openai chat stream": () => openai.chat.completions.stream(chat).finalChatCompletion(),
  "openai parse": async () => parsed(await openai.chat.completions.parse(formed)),
  "openai parse stream": async () => parsed(await openai.chat.completions.stream(formed).finalChatCompletion()),
  "openai tools": async () => called(await openai.chat.completions.create(required)),
  "openai tools stream": async () => called(await openai.chat.completions.stream(required).finalChatCompletion()),
  "openai runTools": () => ran(runner),
  "openai runTools stream": () => ran({ ...runner, stream: true }),
  "openai responses": async () => assert((await openai.responses.create(asked)).output_text),
  "openai responses stream": async () => assert((await openai.responses.stream(asked).finalResponse()).output_text),
  "openai responses events": async () => all(await openai.responses.create({ ...asked, stream: true })),
  "openai responses parse": async () => checked((await openai.responses.parse(asForm)).output_parsed),
  "openai responses parse stream": async () => checked((await openai.responses.stream(asForm).finalResponse()).output_parsed),
  "openai responses tools": async () => {
    const { output } = await openai.responses.create(asCall);
    const calls = output.filter((each) => each.type === "function_call");
    checked(JSON.parse(calls[0].arguments));
    const input = [...messages, ...output, ...calls.map(answered)];
    await openai.responses.create({ ...asked, input, tools: functions, tool_choice: "none" });
  },
  "anthropic messages": async () => assert((await anthropic.messages.create(message)).content[0]),
  "anthropic stream": async () => assert((await anthropic.messages.stream(message).finalMessage()).content[0]),
  "anthropic tools": async () => {
    const first = await anthropic.messages.create(use);
    checked(used(first).input);
    const results = first.content.filter((each) => each.type === "tool_use");
    const content = results.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: "Sun" }));
    const turns = [{ role: "assistant", content: first.content }, { role: "user", content }];
    await anthropic.messages.create({ ...use, messages: [...messages, ...turns] });
  },
  "anthropic tools stream": async () => checked(used(await anthropic.messages.stream(use).finalMessage()).input),
  "anthropic countTokens": async () => assert((await anthropic.messages.countTokens({ model, messages })).input_tokens),
  "ollama list": async () => assert((await ollama.list()).models.length),
  "ollama show": async () => assert((await ollama.show({ model })).details),
  "ollama chat": async () => assert((await ollama.chat(asChat)).message.content),
  "ollama chat stream": async () => all(await ollama.chat({ ...asChat, stream: true })),
  "ollama chat format": async () => checked(JSON.parse((await ollama.chat(asFormed)).message.content)),
  "ollama chat tools": () => ollama.chat({ ...asChat, tools }),
  "ollama generate": async () => assert((await ollama.generate(asText)).response),
  "ollama generate stream": async () => all(await ollama.generate({ ...asText, stream: true })),
};

const providerOptions = {
  openai: { parallelToolCalls: false },
  headway: { parallel_tool_calls: false },
  anthropic: { disableParallelToolUse: true },
};
const providers = {
  "ai openai": createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" })(model),
  "ai openai-compatible": createOpenAICompatible({
    ...{ name: "headway", baseURL: `${url}/v1`, supportsStructuredOutputs: true, includeUsage: true },
  })(model),
  "ai anthropic": createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })(model),
};
for (const [name, provider] of Object.entries(providers)) {
  const common = { model: provider, prompt: "How is the weather?", maxOutputTokens: 300, maxRetries: 0 };
  const weather = ai.tool({ ...described, inputSchema: Weather, execute: run });
  const stopWhen = ai.stepCountIs(2);
  const steps = { ...common, providerOptions, tools: { weather }, stopWhen, toolChoice: "required" };
  const called = (found) => assert(found[0].toolResults[0].output.startsWith("Sun") && found[1]);
  const streamed = async (asked) => {
    const stream = ai.streamText({ ...asked, onError: () => {} });
    return stream.consumeStream().then(() => stream);
  };
  const formed = { ...common, output: ai.Output.object({ schema: Weather }) };
  Object.assign(cases, {
    [`${name} generateText`]: async () => assert((await ai.generateText(common)).usage.inputTokens > 5),
    [`${name} streamText`]: async () => assert((await (await streamed(common)).usage).outputTokens > 0),
    [`${name} generateObject`]: async () => checked((await ai.generateObject({ ...common, schema: Weather })).object),
    [`${name} Output.object`]: async () => checked((await ai.generateText(formed)).output),
    [`${name} Output.object stream`]: async () => checked(await (await streamed(formed)).output),
    [`${name} tools`]: async () => called((await ai.generateText(steps)).steps),
    [`${name} tools stream`]: async () => called(await (await streamed(steps)).steps),
  });
}
if (embedder) {
  const asked = { model: embedding, input: ["Hello", "World"] };
  const where = { baseURL: `${embedder}/v1`, apiKey: "none" };
  const many = { model: createOpenAI(where).embeddingModel(embedding), values: asked.input };
  Object.assign(cases, {
    "openai embeddings": async () => assert((await new OpenAI(where).embeddings.create(asked)).data[1]),
    "ollama embed": async () => assert((await new Ollama({ host: embedder }).embed(asked)).embeddings[1]),
    "ai openai embedMany": async () => assert((await ai.embedMany(many)).embeddings[1]),
  });
}

globalThis.AI_SDK_LOG_WARNINGS = false;
let worked = 0;
for (const [name, attempt] of Object.entries(cases)) {
  const told = (error) => `FAIL  ${name}: ${error.name}: ${String(error.message).slice(0, 300)}`;
  const line = await attempt().then(() => `ok    ${name}`, told);
  worked += line.startsWith("ok");
  console.log(line);
}
console.log(`${worked} of ${Object.keys(cases).length} work`);
process.exitCode = worked < Object.keys(cases).length ? 1 : 0;
