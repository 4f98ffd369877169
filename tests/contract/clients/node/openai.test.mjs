// OpenAI's client for Node.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

import { CAPITAL, DEMO, LEGS, PARIS, REASONING, SCRIPTED, WEATHER } from "./servers.mjs";

const clientOf = ({ baseURL }, options = {}) => new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, ...options });
const user = (content) => [{ role: "user", content }];
const TOOLS = [{
  type: "function",
  function: {
    name: "get_weather", description: "Get the weather of a city.",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
}];

test("an answer and its stream", async () => {
  const body = { model: DEMO.model, messages: user(CAPITAL), temperature: 0 };
  const whole = await clientOf(DEMO).chat.completions.create(body);
  assert.match(whole.choices[0].message.content, /Paris/);
  let text = "", usage = null;
  const stream = await clientOf(DEMO).chat.completions.create({
    ...body, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("a parsed object", async () => {
  const City = z.object({ name: z.string(), population: z.number().int(), is_capital: z.boolean() });
  const completion = await clientOf(SCRIPTED).chat.completions.parse({
    model: SCRIPTED.model, messages: user("Describe Paris"), response_format: zodResponseFormat(City, "city"),
  });
  assert.deepEqual(completion.choices[0].message.parsed, PARIS);
});

for (const stream of [false, true]) {
  test(`a tool loop of the client, ${stream ? "streamed" : "whole"}`, async () => {
    const cities = [];
    const tool = { ...TOOLS[0].function, parse: JSON.parse, function: ({ city }) => { cities.push(city); return `sunny in ${city}`; } };
    const runner = clientOf(SCRIPTED).chat.completions.runTools({
      model: SCRIPTED.model, messages: user(WEATHER), stream, tools: [{ type: "function", function: tool }],
    });
    assert.equal(await runner.finalContent(), "It is sunny in Paris.");
    assert.deepEqual(cities, ["Paris"]);
  });
}

test("a forced call of the demo model", async () => {
  const completion = await clientOf(DEMO).chat.completions.create({
    model: DEMO.model, messages: user(WEATHER), tools: TOOLS, tool_choice: "required", temperature: 0, max_tokens: 200,
  });
  const [call] = completion.choices[0].message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.ok("city" in JSON.parse(call.function.arguments));
  assert.equal(completion.choices[0].finish_reason, "tool_calls");
});

test("reasoning", async () => {
  const body = { model: SCRIPTED.model, messages: user(LEGS) };
  const { message } = (await clientOf(SCRIPTED).chat.completions.create(body)).choices[0];
  assert.deepEqual([message.reasoning_content, message.content], [REASONING, "Eight."]);
  let reasoning = "", content = "";
  for await (const chunk of await clientOf(SCRIPTED).chat.completions.create({ ...body, stream: true })) {
    reasoning += chunk.choices[0]?.delta.reasoning_content ?? "";
    content += chunk.choices[0]?.delta.content ?? "";
  }
  assert.deepEqual([reasoning, content], [REASONING, "Eight."]);
});

test("an abandoned stream", async () => {
  const stream = await clientOf(DEMO).chat.completions.create({
    model: DEMO.model, messages: user("Tell me a story."), stream: true, max_tokens: 1000, ignore_eos: true,
  });
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    break;
  }
  assert.ok(stream.controller.signal.aborted);
});

test("errors, headers and models", async () => {
  const client = clientOf(DEMO);
  const body = { model: DEMO.model, messages: user("Hello") };
  await assert.rejects(client.chat.completions.create({ ...body, temperature: 3 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.status, error.param, error.code], [400, "temperature", "invalid_request"]);
    assert.ok(error.requestID);
    return true;
  });
  await assert.rejects(client.chat.completions.create({ ...body, model: "missing" }), OpenAI.NotFoundError);
  await assert.rejects(client.moderations.create({ model: DEMO.model, input: "Hello" }), OpenAI.NotFoundError);
  const { response, request_id } = await client.chat.completions.create({ ...body, store: true }).withResponse();
  assert.equal(response.headers.get("x-ignored-parameters"), "store");
  assert.ok(request_id);
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert.ok(names.includes(DEMO.model));
});

test("a text completion", async () => {
  const completion = await clientOf(DEMO).completions.create({
    model: DEMO.model, prompt: ["Once upon a time", "The lift"], max_tokens: 4, logprobs: 1,
  });
  assert.deepEqual(completion.choices.map((choice) => choice.logprobs.tokens.length), [4, 4]);
});
