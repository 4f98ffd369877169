// Vercel's `ai` with its provider for OpenAI, whose default is the Responses API, and its embeddings.

import assert from "node:assert/strict";
import { test as nodeTest } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  APICallError, embed, embedMany, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool,
} from "ai";
import { z } from "zod";

import { CAPITAL, DEMO, LEGS, PARIS, SCRIPTED, WEATHER } from "./servers.mjs";

const test = (name, body) => nodeTest(`responses: ${name}`, body);
const modelOf = ({ baseURL, model }) => createOpenAI({ baseURL, apiKey: "none" })(model);
const City = z.object({ name: z.string(), population: z.number().int(), is_capital: z.boolean() });
const weatherTool = (cities) => tool({
  description: "Get the weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => { cities.push(city); return `sunny in ${city}`; },
});

test("generateText", async () => {
  const result = await generateText({ model: modelOf(DEMO), prompt: CAPITAL, temperature: 0 });
  assert.match(result.text, /Paris/);
  assert.equal(result.finishReason, "stop");
  assert.ok(result.usage.inputTokens > 0 && result.usage.outputTokens > 0);
  assert.match(result.providerMetadata.openai.responseId, /^resp_/);
  assert.deepEqual(result.warnings, []);
});

test("streamText", async () => {
  const whole = await generateText({ model: modelOf(DEMO), prompt: CAPITAL, temperature: 0 });
  const result = streamText({ model: modelOf(DEMO), prompt: CAPITAL, temperature: 0 });
  let text = "";
  for await (const part of result.textStream) text += part;
  assert.equal(text, whole.text);
  assert.deepEqual(await result.usage, whole.usage);
  assert.equal(await result.finishReason, "stop");
});

test("an answer that is cut off", async () => {
  const options = { model: modelOf(DEMO), prompt: CAPITAL, temperature: 0, maxOutputTokens: 2 };
  assert.equal((await generateText(options)).finishReason, "length");
  assert.equal(await streamText(options).finishReason, "length");
});

for (const store of [true, false]) {
  test(`a tool loop, ${store ? "stored" : "not stored"}`, async () => {
    const cities = [];
    const result = await generateText({
      model: modelOf(SCRIPTED), prompt: WEATHER, system: "Be brief.", tools: { get_weather: weatherTool(cities) },
      stopWhen: stepCountIs(3), providerOptions: { openai: { store } },
    });
    assert.deepEqual(cities, ["Paris"]);
    assert.deepEqual(result.steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
    assert.equal(result.text, "It is sunny in Paris.");
  });

  test(`a streamed tool loop with reasoning, ${store ? "stored" : "not stored"}`, async () => {
    const cities = [];
    const result = streamText({
      model: modelOf(SCRIPTED), prompt: "Please think about the weather in Rome.", stopWhen: stepCountIs(3),
      tools: { get_weather: tool({
        description: "Get the weather of a city.", inputSchema: z.object({ city: z.string() }),
        execute: async ({ city }) => { cities.push(city); return `rainy in ${city}`; },
      }) },
      providerOptions: { openai: { store } },
    });
    let text = "";
    for await (const part of result.textStream) text += part;
    assert.deepEqual(cities, ["Rome"]);
    assert.equal(text, "It is rainy in Rome.");
    assert.deepEqual((await result.steps).map((step) => step.finishReason), ["tool-calls", "stop"]);
  });
}

test("parallel calls and a conversation that goes on", async () => {
  const cities = [];
  const first = await generateText({
    model: modelOf(SCRIPTED), prompt: "What is the weather in Paris and Rome?",
    tools: { get_weather: weatherTool(cities) }, stopWhen: stepCountIs(3),
  });
  assert.deepEqual(cities.toSorted(), ["Paris", "Rome"]);
  const messages = [{ role: "user", content: WEATHER }, ...first.response.messages, { role: "user", content: LEGS }];
  assert.equal((await generateText({ model: modelOf(SCRIPTED), messages })).text, "Eight.");
});

test("a conversation that the server keeps", async () => {
  const first = await generateText({ model: modelOf(SCRIPTED), prompt: "sunny in Paris" });
  const options = { model: modelOf(SCRIPTED), prompt: LEGS };
  const alone = await generateText(options);
  const second = await generateText({
    ...options, providerOptions: { openai: { previousResponseId: first.providerMetadata.openai.responseId } },
  });
  assert.equal(second.text, "Eight.");
  assert.ok(second.usage.inputTokens > alone.usage.inputTokens);
});

test("a forced call", async () => {
  const result = await generateText({
    model: modelOf(DEMO), prompt: WEATHER, temperature: 0, maxOutputTokens: 200,
    tools: { get_weather: weatherTool([]) }, toolChoice: { type: "tool", toolName: "get_weather" },
  });
  assert.equal(result.toolCalls[0].toolName, "get_weather");
  assert.equal(typeof result.toolCalls[0].input.city, "string");
});

test("generateObject and streamObject", async () => {
  const options = { model: modelOf(SCRIPTED), schema: City, prompt: "Describe Paris" };
  assert.deepEqual((await generateObject(options)).object, PARIS);
  const streamed = streamObject(options);
  let last;
  for await (const part of streamed.partialObjectStream) last = part;
  assert.deepEqual(last, PARIS);
  assert.deepEqual(await streamed.object, PARIS);
});

test("structured output of generateText", async () => {
  const options = { model: modelOf(SCRIPTED), prompt: "Describe Paris", output: Output.object({ schema: City }) };
  assert.deepEqual((await generateText(options)).output, PARIS);
  assert.deepEqual(await streamText(options).output, PARIS);
});

test("an enumeration follows from the grammar alone", async () => {
  const { object } = await generateObject({
    model: modelOf(DEMO), output: "enum", enum: ["yes", "no"], prompt: "Is Paris the capital of France?",
    temperature: 0, maxOutputTokens: 200,
  });
  assert.ok(["yes", "no"].includes(object));
});

test("logprobs", async () => {
  const result = await generateText({
    model: modelOf(DEMO), prompt: CAPITAL, temperature: 0, providerOptions: { openai: { logprobs: 2 } },
  });
  const [logprobs] = result.providerMetadata.openai.logprobs;
  assert.ok(logprobs.length > 0 && logprobs.every((token) => token.top_logprobs.length === 2));
});

test("the text behind reasoning", async () => {
  assert.equal((await generateText({ model: modelOf(SCRIPTED), prompt: LEGS })).text, "Eight.");
  assert.equal(await streamText({ model: modelOf(SCRIPTED), prompt: LEGS }).text, "Eight.");
});

test("errors", async () => {
  await assert.rejects(
    generateText({ model: modelOf({ ...DEMO, model: "missing" }), prompt: "Hello", maxRetries: 0 }),
    (error) => APICallError.isInstance(error) && error.statusCode === 404 && /missing/.test(error.message),
  );
});

const PROVIDERS = {
  openai: ({ baseURL, model }) => createOpenAI({ baseURL, apiKey: "none" }).textEmbeddingModel(model),
  compatible: ({ baseURL, model }) => (
    createOpenAICompatible({ name: "chairlift", baseURL, apiKey: "none" }).textEmbeddingModel(model)
  ),
};
for (const [name, embeddingsOf] of Object.entries(PROVIDERS)) {
  test(`embed and embedMany of the provider ${name}`, async () => {
    const model = embeddingsOf(DEMO);
    const one = await embed({ model, value: "The lift is slow." });
    assert.ok(one.usage.tokens > 0);
    const many = await embedMany({ model, values: ["A cat.", "The lift is slow."] });
    assert.equal(many.embeddings.length, 2);
    const distance = Math.max(...many.embeddings[1].map((value, index) => Math.abs(value - one.embedding[index])));
    assert.ok(distance < 1e-4, `${distance}`);
    const providerOptions = { openai: { dimensions: 8 }, chairlift: { dimensions: 8 } };
    const short = await embed({ model, value: "A cat.", providerOptions });
    assert.equal(short.embedding.length, 8);
  });
}
