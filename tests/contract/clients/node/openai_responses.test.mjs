// OpenAI's client for Node: the Responses API and embeddings.

import assert from "node:assert/strict";
import { test as nodeTest } from "node:test";

import OpenAI from "openai";
import { zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import { CAPITAL, DEMO, LEGS, PARIS, REASONING, SCRIPTED, WEATHER } from "./servers.mjs";

const test = (name, body) => nodeTest(`responses: ${name}`, body);
const clientOf = ({ baseURL }) => new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const City = z.object({ name: z.string(), population: z.number().int(), is_capital: z.boolean() });
const TOOLS = [{
  type: "function", name: "get_weather", description: "Get the weather of a city.", strict: true,
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false },
}];

test("a response and its stream", async () => {
  const body = { model: DEMO.model, input: CAPITAL, temperature: 0 };
  const whole = await clientOf(DEMO).responses.create(body);
  assert.match(whole.output_text, /Paris/);
  assert.equal(whole.status, "completed");
  let text = "", last;
  for await (const event of await clientOf(DEMO).responses.create({ ...body, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  assert.equal(text, whole.output_text);
  assert.equal(last.type, "response.completed");
  assert.equal(last.response.usage.output_tokens, whole.usage.output_tokens);
});

test("the stream helper", async () => {
  const deltas = [];
  const stream = clientOf(SCRIPTED).responses.stream({ model: SCRIPTED.model, input: LEGS })
    .on("response.output_text.delta", ({ delta, snapshot }) => deltas.push([delta, snapshot]));
  const response = await stream.finalResponse();
  assert.equal(response.output_text, "Eight.");
  assert.equal(deltas.map(([delta]) => delta).join(""), "Eight.");
  assert.equal(deltas.at(-1)[1], "Eight.");
  assert.deepEqual(response.output.map((item) => item.type), ["reasoning", "message"]);
  assert.equal(response.output[0].content[0].text, REASONING);
});

test("a parsed object", async () => {
  const body = { model: SCRIPTED.model, input: "Describe Paris", text: { format: zodTextFormat(City, "city") } };
  assert.deepEqual((await clientOf(SCRIPTED).responses.parse(body)).output_parsed, PARIS);
  assert.deepEqual((await clientOf(SCRIPTED).responses.stream(body).finalResponse()).output_parsed, PARIS);
});

test("a parsed call", async () => {
  const tool = zodResponsesFunction({ name: "get_weather", parameters: z.object({ city: z.string() }) });
  const response = await clientOf(SCRIPTED).responses.parse({ model: SCRIPTED.model, input: WEATHER, tools: [tool] });
  assert.deepEqual(response.output[0].parsed_arguments, { city: "Paris" });
});

for (const isStored of [true, false]) {
  test(`a tool loop, ${isStored ? "by the stored response" : "with its items"}`, async () => {
    const client = clientOf(SCRIPTED), body = { model: SCRIPTED.model, tools: TOOLS, store: isStored };
    const question = [{ role: "user", content: "Please think about the weather in Rome." }];
    const first = await client.responses.create({ ...body, input: question });
    const [call] = first.output.filter((item) => item.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Rome" });
    const result = { type: "function_call_output", call_id: call.call_id, output: "rainy in Rome" };
    const second = await client.responses.create(isStored
      ? { ...body, input: [result], previous_response_id: first.id }
      : { ...body, input: [...question, ...first.output, result] });
    assert.equal(second.output_text, "It is rainy in Rome.");
  });
}

test("a forced call of the demo model", async () => {
  const response = await clientOf(DEMO).responses.create({
    model: DEMO.model, input: WEATHER, tools: TOOLS, tool_choice: "required", temperature: 0, max_output_tokens: 200,
  });
  assert.deepEqual(response.output.map((item) => item.type), ["function_call"]);
  assert.ok("city" in JSON.parse(response.output[0].arguments));
});

test("stored responses", async () => {
  const client = clientOf(SCRIPTED);
  const made = await client.responses.create({ model: SCRIPTED.model, input: "sunny in Paris", metadata: { a: "b" } });
  const read = await client.responses.retrieve(made.id);
  assert.deepEqual([read.id, read.output_text, read.metadata], [made.id, "It is sunny in Paris.", { a: "b" }]);
  const items = [];
  for await (const item of client.responses.inputItems.list(made.id)) items.push(item);
  assert.deepEqual(items.map((item) => item.content[0].text), ["sunny in Paris"]);
  await client.responses.delete(made.id);
  await assert.rejects(client.responses.retrieve(made.id), OpenAI.NotFoundError);
});

for (const tool_choice of ["auto", "none", "required"]) {
  test(`the count of a request's tokens with the tool choice ${tool_choice}`, async () => {
    for (const server of [DEMO, SCRIPTED]) {
      const client = clientOf(server);
      const body = { model: server.model, input: WEATHER, tools: TOOLS, tool_choice, instructions: "Be brief." };
      const counted = await client.responses.inputTokens.count(body);
      assert.equal(counted.object, "response.input_tokens");
      const { usage } = await client.responses.create({ ...body, max_output_tokens: 16 });
      assert.equal(counted.input_tokens, usage.input_tokens);
    }
  });
}

test("errors", async () => {
  const client = clientOf(DEMO), body = { model: DEMO.model, input: "Hello" };
  await assert.rejects(client.responses.create({ ...body, max_output_tokens: 0 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.status, error.param, error.code], [400, "max_output_tokens", "invalid_request"]);
    return true;
  });
  await assert.rejects(client.responses.create({ ...body, model: "missing" }), OpenAI.NotFoundError);
});

test("embeddings", async () => {
  const client = clientOf(DEMO), input = ["The lift is slow.", "A cat."];
  const { data, usage } = await client.embeddings.create({ model: DEMO.model, input });  // asks for base64
  assert.deepEqual(data.map((each) => each.index), [0, 1]);
  assert.ok(usage.prompt_tokens > 0 && usage.total_tokens === usage.prompt_tokens);
  const floats = await client.embeddings.create({ model: DEMO.model, input, encoding_format: "float" });
  for (const [index, { embedding }] of floats.data.entries()) {
    assert.equal(embedding.length, data[index].embedding.length);
    assert.ok(Math.abs(Math.hypot(...embedding) - 1) < 1e-4);
    assert.ok(embedding.every((value, place) => Math.abs(value - data[index].embedding[place]) < 1e-4));
  }
  const short = await client.embeddings.create({ model: DEMO.model, input: "A cat.", dimensions: 8 });
  assert.equal(short.data[0].embedding.length, 8);
});
