// Vercel's `ai` with its provider for servers of OpenAI's API.

import assert from "node:assert/strict";
import { test } from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

import { CAPITAL, DEMO, LEGS, PARIS, REASONING, SCRIPTED, WEATHER } from "./servers.mjs";

const modelOf = ({ baseURL, model }, supportsStructuredOutputs = true) => createOpenAICompatible({
  name: "chairlift", baseURL, apiKey: "none", includeUsage: true, supportsStructuredOutputs,
})(model);
const City = z.object({ name: z.string(), population: z.number().int(), is_capital: z.boolean() });
const weatherTool = (cities) => tool({
  description: "Get the weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => { cities.push(city); return { weather: `sunny in ${city}` }; },
});

test("generateText", async () => {
  const result = await generateText({ model: modelOf(DEMO), prompt: CAPITAL, temperature: 0 });
  assert.match(result.text, /Paris/);
  assert.equal(result.finishReason, "stop");
  assert.ok(result.usage.inputTokens > 0 && result.usage.outputTokens > 0);
});

test("streamText", async () => {
  const whole = await generateText({ model: modelOf(DEMO), prompt: CAPITAL, temperature: 0 });
  const result = streamText({ model: modelOf(DEMO), prompt: CAPITAL, temperature: 0 });
  let text = "";
  for await (const part of result.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal((await result.usage).outputTokens, whole.usage.outputTokens);
  assert.equal(await result.finishReason, "stop");
});

test("a tool loop", async () => {
  const cities = [];
  const result = await generateText({
    model: modelOf(SCRIPTED), prompt: WEATHER, tools: { get_weather: weatherTool(cities) }, stopWhen: stepCountIs(3),
  });
  assert.deepEqual(cities, ["Paris"]);
  assert.deepEqual(result.steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
  assert.equal(result.text, "It is sunny in Paris.");
});

test("a streamed tool loop with parallel calls", async () => {
  const cities = [];
  const result = streamText({
    model: modelOf(SCRIPTED), prompt: "What is the weather in Paris and Rome?",
    tools: { get_weather: weatherTool(cities) }, stopWhen: stepCountIs(3),
  });
  await result.consumeStream();
  assert.deepEqual(cities.toSorted(), ["Paris", "Rome"]);
  assert.equal((await result.steps).length, 2);
});

test("a tool loop of the demo model", async () => {
  const cities = [];
  const result = await generateText({
    model: modelOf(DEMO), prompt: WEATHER, temperature: 0, tools: { get_weather: weatherTool(cities) },
    stopWhen: stepCountIs(3), maxOutputTokens: 200,
  });
  assert.deepEqual(cities, ["Paris"]);
  assert.ok(result.text);
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

test("generateObject with a JSON object instead of a schema", async () => {
  const { object } = await generateObject({ model: modelOf(SCRIPTED, false), schema: City, prompt: "Describe Paris" });
  assert.deepEqual(object, PARIS);
});

test("structured output of generateText", async () => {
  const { output } = await generateText({
    model: modelOf(SCRIPTED), prompt: "Describe Paris", output: Output.object({ schema: City }),
  });
  assert.deepEqual(output, PARIS);
});

test("an enumeration follows from the grammar alone", async () => {
  const { object } = await generateObject({
    model: modelOf(DEMO), output: "enum", enum: ["yes", "no"], prompt: "Is Paris the capital of France?",
    temperature: 0, maxOutputTokens: 200,
  });
  assert.ok(["yes", "no"].includes(object));
});

test("reasoning", async () => {
  const whole = await generateText({ model: modelOf(SCRIPTED), prompt: LEGS });
  assert.deepEqual([whole.reasoningText, whole.text], [REASONING, "Eight."]);
  const streamed = streamText({ model: modelOf(SCRIPTED), prompt: LEGS });
  assert.deepEqual([await streamed.reasoningText, await streamed.text], [REASONING, "Eight."]);
});

test("errors", async () => {
  await assert.rejects(
    generateText({ model: modelOf({ ...DEMO, model: "missing" }), prompt: "Hello", maxRetries: 0 }),
    (error) => APICallError.isInstance(error) && error.statusCode === 404 && /missing/.test(error.message),
  );
});
