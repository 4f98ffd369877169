"""CLIENTS: the clients that are recorded; docs/clients.md has the same settings for people."""

import json
from dataclasses import replace

from record_clients.recorded_client import RecordedClient
from record_clients.scripted_answer import TEXT, ScriptedCall

VERSION_OF = "from importlib.metadata import version; print(version"
WRITE = "printf noon > answer.txt"
PATCH = "*** Begin Patch\n*** Add File: answer.txt\n+noon\n*** End Patch\n"

STREAMED = ("--output-format", "stream-json", "--verbose")
"""Options with which editors start Claude Code: it asks for thinking to be shown."""

CLAUDE_CODE = RecordedClient(
    "claude-code",
    [["claude", "--print", "{prompt}", "--allowedTools", "Read,Bash,Write", *STREAMED]],
    ["claude", "--version"],
    {
        "ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_AUTH_TOKEN": "{key}", "ANTHROPIC_MODEL": "{model}",
        "ANTHROPIC_SMALL_FAST_MODEL": "{model}", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8192",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "IS_SANDBOX": "1",
    },
    script=[
        ScriptedCall("Read", {"file_path": "{work}/note.txt"}, "I read the note."),
        ScriptedCall("Bash", {"command": WRITE, "description": "Write the answer"}),
    ],
)  # fmt: skip

CODEX_EXEC = ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
CODEX = RecordedClient(
    "codex",
    [[*CODEX_EXEC, "{prompt}"]],
    ["codex", "--version"],
    {"CODEX_HOME": "{home}/.codex", "CHAIRLIFT_API_KEY": "{key}"},
    {
        ".codex/config.toml": """\
model = "{model}"
model_provider = "chairlift"
model_context_window = 131072

[model_providers.chairlift]
name = "Chairlift"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "CHAIRLIFT_API_KEY"
"""
    },
    [
        ScriptedCall("exec_command", {"cmd": "cat note.txt"}, "I read the note."),
        ScriptedCall("exec_command", {"cmd": WRITE}),
    ],
)

CODEX_KNOWN_MODEL = replace(
    CODEX,
    name="codex-known-model",
    commands=[[*CODEX_EXEC, "--model", "gpt-5.5", "{prompt}"]],
    script=[CODEX.script[0], ScriptedCall("apply_patch", PATCH)],
)
"""Codex with the name of a model that it knows: it sends its custom tool apply_patch."""

OPENCODE = RecordedClient(
    "opencode",
    [["opencode", "run", "--model", "chairlift/{model}", "{prompt}"]],
    ["opencode", "--version"],
    {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"},
    {
        ".config/opencode/opencode.json": json.dumps(
            {
                "provider": {
                    "chairlift": {
                        "npm": "@ai-sdk/openai-compatible",
                        "options": {"baseURL": "{url}/v1", "apiKey": "{key}"},
                        "models": {"{model}": {"limit": {"context": 131_072, "output": 8192}}},
                    }
                },
                "autoupdate": False,
                "share": "disabled",
            }
        )
    },
    [
        ScriptedCall("read", {"filePath": "{work}/note.txt"}, "I read the note."),
        ScriptedCall("bash", {"command": WRITE, "description": "Write the answer"}),
    ],
)

QWEN_CODE = RecordedClient(
    "qwen-code",
    [["qwen", "--yolo", "--auth-type", "openai", "--prompt", "{prompt}"]],
    ["qwen", "--version"],
    {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}", "OPENAI_MODEL": "{model}"},
    {
        ".qwen/settings.json": json.dumps(
            {
                "privacy": {"usageStatisticsEnabled": False},
                "telemetry": {"enabled": False},
                "model": {"generationConfig": {"contextWindowSize": 131072, "samplingParams": {"max_tokens": 8192}}},
                "general": {"enableAutoUpdate": False, "disableAutoUpdate": True, "disableUpdateNag": True},
            }
        )
    },
    [
        ScriptedCall("read_file", {"file_path": "{work}/note.txt", "absolute_path": "{work}/note.txt"},
                     "I read the note."),
        ScriptedCall("run_shell_command",
                     {"command": WRITE, "is_background": False, "description": "Write the answer"}),
    ],
)  # fmt: skip

CLINE = RecordedClient(
    "cline",
    [
        ["cline", "auth", "openai-compatible", "--apikey", "{key}", "--modelid", "{model}", "--baseurl", "{url}/v1"],
        ["cline", "--provider", "openai-compatible", "--model", "{model}", "{prompt}"],
    ],
    ["cline", "--version"],
    {},
    {},
    [
        ScriptedCall("read_files", {"files": [{"path": "{work}/note.txt"}]}, "I read the note."),
        ScriptedCall("run_commands", {"commands": [WRITE]}),
    ],
)

CONTINUE = RecordedClient(
    "continue",
    [["cn", "--config", "{home}/config.yaml", "--auto", "--print", "{prompt}"]],
    ["cn", "--version"],
    {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_ENABLE_TELEMETRY": "0"},
    {
        "config.yaml": """\
name: Chairlift
version: 1.0.0
schema: v1
models:
  - name: Chairlift
    provider: openai
    model: "{model}"
    apiBase: "{url}/v1"
    apiKey: "{key}"
    roles: [chat, edit]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: 131072
      maxTokens: 8192
"""
    },
    [
        ScriptedCall("Read", {"filepath": "note.txt"}, "I read the note."),
        ScriptedCall("Bash", {"command": WRITE}),
    ],
)

AIDER = RecordedClient(
    "aider",
    [["aider", "--model", "openai/{model}", "--edit-format", "diff", "--no-check-update", "--analytics-disable",
      "--no-show-model-warnings", "--yes-always", "--no-gitignore", "--no-show-release-notes", "note.txt"]],
    ["aider", "--version"],
    {"OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "{key}"},
    texts=[
        "I add the answer.\n\nnote.txt\n```\n<<<<<<< SEARCH\nLunch is at noon.\n=======\n"
        "Lunch is at noon.\nAnswered.\n>>>>>>> REPLACE\n```\n",
        TEXT,
    ],
    prompts=["When is lunch? Then add the line Answered. to note.txt.", "Is it in the note now?"],
    needs_git=True,
)  # fmt: skip

OPEN_WEBUI = RecordedClient(
    "open-webui",
    [["{python}", "{tools}/record_clients/open_webui_chat.py", "{programs}/open-webui"]],
    ["/bin/sh", "-c", "$(head -n 1 {programs}/open-webui | cut -c 3-) -c \"" + VERSION_OF + "('open-webui'))\""],
    {
        "DATA_DIR": "{home}/data", "WEBUI_AUTH": "False", "ENABLE_OLLAMA_API": "False",
        "OPENAI_API_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}", "OFFLINE_MODE": "True", "HF_HUB_OFFLINE": "1",
        "RAG_EMBEDDING_ENGINE": "openai", "PYTHONPATH": "{tools}",
    },
    script=[ScriptedCall("read_note", {"name": "note"}, "I read the note.")],
)  # fmt: skip

OPEN_WEBUI_OLLAMA = replace(
    OPEN_WEBUI,
    name="open-webui-ollama",
    environ={**OPEN_WEBUI.environ, "ENABLE_OLLAMA_API": "True", "ENABLE_OPENAI_API": "False",
             "OLLAMA_BASE_URL": "{url}"},
)  # fmt: skip

HOME_ASSISTANT = RecordedClient(
    "home-assistant",
    [["{python}", "{tools}/record_clients/home_assistant_chat.py", "openai", "{url}"]],
    ["{python}", "-c", VERSION_OF + "('openai'))"],
    script=[ScriptedCall("HassTurnOn", {"name": "lamp", "area": "kitchen"})],
)

HOME_ASSISTANT_OLLAMA = replace(
    HOME_ASSISTANT,
    name="home-assistant-ollama",
    commands=[["{python}", "{tools}/record_clients/home_assistant_chat.py", "ollama", "{url}"]],
    version=["{python}", "-c", VERSION_OF + "('ollama'))"],
)

CLIENTS = {
    each.name: each
    for each in (
        CLAUDE_CODE, CODEX, CODEX_KNOWN_MODEL, OPENCODE, QWEN_CODE, CLINE, CONTINUE, AIDER, OPEN_WEBUI,
        OPEN_WEBUI_OLLAMA, HOME_ASSISTANT, HOME_ASSISTANT_OLLAMA,
    )
}  # fmt: skip
"""Name of a client -> the client."""
