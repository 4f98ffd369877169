"""Send what Home Assistant's integrations of OpenAI and Ollama send: python home_assistant_chat.py openai|ollama URL.

Home Assistant does not run here. These are its requests by the real client libraries, with texts and tools of our own:
one tool per intent, whose parameters have neither descriptions nor a list of required ones.
"""

import asyncio
import json
import sys
from typing import Any

import ollama
import openai

MODEL, KEY = "recorded-model", "sk-recorded"
INSTRUCTIONS = "You control the lights of a home. Answer in one sentence.\nThe time is 12:00:00."
PROMPT = "Turn on the lamp in the kitchen."
PARAMETERS = {
    "type": "object",
    "properties": {
        "name": {"type": "string"}, "area": {"type": "string"}, "floor": {"type": "string"},
        "domain": {"type": "array", "items": {"type": "string"}},
        "device_class": {"type": "array", "items": {"type": "string", "enum": ["outlet", "switch"]}},
    },
    "required": [],
}  # fmt: skip
TOOLS = (
    {"name": "HassTurnOn", "description": "Turns on a device", "parameters": PARAMETERS},
    {"name": "GetLiveContext", "parameters": {"type": "object", "properties": {}, "required": []}},
)  # fmt: skip
RESULT = {"data": {"speech": {}, "response_type": "action_done", "success": ["lamp"], "failed": []}, "error": None}


async def chat_with_openai(url: str) -> None:
    """Hold a chat by /v1/responses: the instructions are an item of the developer."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY)
    items: list[Any] = [
        {"type": "message", "role": "developer", "content": INSTRUCTIONS},
        {"type": "message", "role": "user", "content": PROMPT},
    ]
    tools: list[Any] = [{"type": "function", "description": None, "strict": False, **tool} for tool in TOOLS]
    for _ in range(2):
        stream = await client.responses.create(
            model=MODEL, input=items, max_output_tokens=3000, user="01KE0000000000000000000000", store=False,
            stream=True, top_p=1.0, temperature=1.0, tools=tools,
        )  # fmt: skip
        async for event in stream:
            if event.type != "response.output_item.done":
                continue
            if event.item.type == "message":
                text = "".join(getattr(part, "text", "") for part in event.item.content)
                items.append({"type": "message", "role": "assistant", "content": text})
            elif event.item.type == "function_call":
                call = event.item
                items += [
                    {"type": "function_call", "name": call.name, "arguments": call.arguments, "call_id": call.call_id},
                    {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps(RESULT)},
                ]


async def chat_with_ollama(url: str) -> None:
    """Hold a chat by /api/chat: results have no name of a tool."""
    client = ollama.AsyncClient(host=url, headers={"Authorization": f"Bearer {KEY}"})
    await client.list()
    messages = [ollama.Message(role="system", content=INSTRUCTIONS), ollama.Message(role="user", content=PROMPT)]
    tools = [{"type": "function", "function": tool} for tool in TOOLS]
    for _ in range(2):
        stream = await client.chat(
            model=MODEL, messages=list(messages), tools=tools, stream=True, keep_alive=-1, options={"num_ctx": 8192},
            think=False,
        )  # fmt: skip
        content, calls = "", list[Any]()
        async for part in stream:
            content += part.message.content or ""
            calls += part.message.tool_calls or []
        messages.append(ollama.Message(role="assistant", content=content, tool_calls=calls or None))
        messages += [ollama.Message(role="tool", content=json.dumps(RESULT)) for _ in calls]


if __name__ == "__main__":
    asyncio.run({"openai": chat_with_openai, "ollama": chat_with_ollama}[sys.argv[1]](sys.argv[2]))
