"""Help texts: the descriptions and epilogs of the commands in --help."""

GENERATE_HELP = """\
Generate text with a model: one prompt with streamed output, or a file of prompts as one batch.

  chairlift generate MODEL --prompt "The lift is"
  echo "The lift is" | chairlift generate MODEL
  chairlift generate MODEL --prompts prompts.jsonl --output results.jsonl

A line of prompts.jsonl is {"prompt": "text"}, {"prompt": [1, 2, 3]} or {"messages": [...]}. It may also have
"id", "tools" (with "messages") and sampling settings such as "max_tokens": 9. Results are JSON lines in the
same order. Without MODEL the embedded demo model runs. It applies its chat template to prompts, except with
--no-chat."""
GENERATE_END = """\
Every setting can also be an environment variable (--max-tokens is CHAIRLIFT_MAX_TOKENS) or a key in the file of
--config (max_tokens: 100). A flag overrides a variable, and a variable the file."""

RUN_BATCH_HELP = """\
Run a file of requests in the format of OpenAI's batch API, and write a file of responses.

  chairlift run-batch MODEL --input batch.jsonl --output responses.jsonl
  chairlift run-batch --url http://localhost:8000 --input batch.jsonl --output responses.jsonl

A line of the input is {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": {...}}, a
line of the output {"custom_id": "one", "response": {"status_code": 200, "body": {...}}, "error": null}. Each
response is written when it comes. The same command after an interruption, also after kill -9, sends only the
requests without a response. The variable CHAIRLIFT_API_KEY is the API key for --url."""

SERVE_HELP = """\
Serve a model to OpenAI clients, by default at http://127.0.0.1:8000/v1.

  chairlift serve
  chairlift serve MODEL --port 8080 --key-file keys.txt
  curl localhost:8000/v1/chat/completions \\
       -H "Content-Type: application/json" \\
       -d '{"model": "chairlift:demo",
            "messages": [{"role": "user", "content": "Hello!"}]}'

Without MODEL the embedded demo model is served. /health has the server's state, /docs the API's documentation
and /metrics the metrics for Prometheus. On SIGTERM or Ctrl-C the server finishes open requests and exits; on a
second one it exits at once."""
SERVE_END = """\
Every setting can also be an environment variable (--drain-timeout is CHAIRLIFT_DRAIN_TIMEOUT) or a key in the
file of --config (drain_timeout: 10). A flag overrides a variable, and a variable the file. `chairlift
config show` prints each value and its source. API keys are the variables CHAIRLIFT_API_KEY and
CHAIRLIFT_ADMIN_KEY, or lines of --key-file, which `chairlift key TENANT` creates. The secret of tokens is the
variable CHAIRLIFT_JWT_SECRET or the content of --jwt-secret-file, and `chairlift token TENANT` creates a token."""
ROUTER_HELP = """\
Serve many replicas to OpenAI clients at one address. A response goes on when its replica is lost.

  chairlift serve --port 8101
  chairlift serve --port 8102
  chairlift router --replica http://127.0.0.1:8101 --replica http://127.0.0.1:8102
  curl localhost:8000/v1/completions -H "Content-Type: application/json" \\
       -d '{"model": "chairlift:demo", "prompt": "Hello"}'

Replicas are Chairlift servers or any server with the OpenAI API. /admin/replicas lists them with their health, and
/metrics has the metrics for Prometheus. On SIGTERM or Ctrl-C the router finishes open requests and exits."""
ROUTER_END = """\
Every setting can also be an environment variable (--policy is CHAIRLIFT_POLICY) or a key in the file of --config
(policy: session). A flag overrides a variable, and a variable the file. API keys are the variables
CHAIRLIFT_API_KEY and CHAIRLIFT_ADMIN_KEY, or lines of --key-file."""
FLEET_HELP = """\
Serve a model to OpenAI clients by as many replicas as the load needs. The replicas are processes of this machine.

  chairlift fleet
  chairlift fleet MODEL --min-replicas 1 --max-replicas 4 --replica-option dtype=bfloat16
  chairlift fleet MODEL --min-replicas 0 --scale-to-zero-after 600
  chairlift fleet update --replica-option dtype=int8

The fleet starts replicas when requests wait and stops those that are not needed, after their requests have ended. A
replica that fails is replaced, and its responses go on at another one. /admin/fleet has the replicas and the decisions.
On SIGTERM or Ctrl-C the fleet finishes open requests, stops the replicas and exits. After a crash the next start takes
over the replicas that still run."""
FLEET_END = """\
Every setting can also be an environment variable (--max-replicas is CHAIRLIFT_MAX_REPLICAS) or a key in the file of
--config (max_replicas: 4). A flag overrides a variable, and a variable the file. API keys are the variables
CHAIRLIFT_API_KEY and CHAIRLIFT_ADMIN_KEY, or lines of --key-file."""
AUTOSCALER_HELP = """\
Start and stop replicas of a deployment by their load. Requests reach them through another router, which finds them
itself.

  chairlift autoscaler --cluster kubernetes://default/deployment/replica --min-replicas 1 --max-replicas 8
  chairlift autoscaler --cluster https://scaler.internal/pool --max-replicas 4 --dry-run
  chairlift autoscaler --cluster ray --prometheus-url http://p:9090 --query "queue=sum(queue)" --query-target queue=8

The load is that of the replicas' /load and of Prometheus queries. A replica that goes drains by itself. The replicas
run on when the autoscaler ends. /metrics has its numbers and /admin/autoscaler its last decisions."""
FLEET_UPDATE_HELP = """\
Replace the replicas of a running fleet by those of another model or other options, one by one and without losing a
response. It needs an admin key, the variable CHAIRLIFT_ADMIN_KEY.

  chairlift fleet update MODEL
  chairlift fleet update --replica-option quantization=int8 --wait"""
CHAT_HELP = """\
Chat with a model in the terminal, either with a local model or with the model of a server.

  chairlift chat
  chairlift chat MODEL --system "Answer in rhymes."
  chairlift chat --url http://localhost:8000 --stats
  chairlift chat --quick "What is continuous batching?"

In the chat, /help lists the commands. Without MODEL the embedded demo model answers. With --url, MODEL is a
model name of the server, by default its first, and the variable CHAIRLIFT_API_KEY is the API key."""
KEY_HELP = """\
Create an API key. The key is printed once, and a key file stores its SHA-256 hash.

  chairlift key alice --key-file keys.txt

With --key-file the line is appended to the file, otherwise it is printed. A running server reads its key file
again on SIGHUP."""

TOKEN_HELP = """\
Create a JSON Web Token (HS256) that a server with the same secret accepts in place of an API key.

  chairlift token alice --lifetime 12h --jwt-secret-file jwt.secret

The secret is the content of --jwt-secret-file, or the variable CHAIRLIFT_JWT_SECRET, and has 32 bytes or more:
`openssl rand -hex 32` makes one. Tokens cannot be revoked one by one: they end with their lifetime, or all at once when
the server reads a new secret on SIGHUP."""

BENCH_HELP = """\
Measure the engine or a server on a workload, which a seed makes reproducible."""
OFFLINE_HELP = """\
Run a workload on the engine without a server, and report its throughput and latencies.

  chairlift bench offline MODEL --workload longtail --requests 256 --json result.json --plot result.png
  chairlift bench offline MODEL --compare batching_policy=mixed,static --repeat 3
  chairlift bench offline MODEL --workload w1 --against transformers --repeat 3

Every request is decoded greedily to the output length of the workload. A line of a trace FILE.jsonl is {"at":
0.5, "prompt": [1, 2], "output_tokens": 9}, or has "prompt_tokens": N instead of "prompt". It may also have
"tenant", "priority", "timeout" and "structured", such as {"regex": "[0-9]+"}. Compared runs alternate, each in
its own process. Without MODEL the embedded demo model runs; chairlift:random is a tiny model with random
weights."""
OFFLINE_END = """\
Every setting can also be an environment variable (--max-running-requests is CHAIRLIFT_MAX_RUNNING_REQUESTS) or
a key in the file of --config. A flag overrides a variable, and a variable the file."""

SIMULATE_HELP = """\
Run a workload on the real scheduler and KV cache, with a simulated clock and simulated model steps.

  chairlift bench simulate --workload longtail --requests 10000 --rate 8 --json result.json
  chairlift bench simulate --scheduling-policy fair --tenants big=10,small=1 --rate 20
  chairlift bench offline MODEL --profile trace.json && chairlift bench simulate --fit trace.json

The duration of a step comes from --step-times, from --fit, or by default from a model that was measured for a
small language model on two CPU cores. A --step-times file is JSON in seconds, such as {"step": 0.02, "row":
0.001, "prefill_token": 0.0005, "context_token": 4e-6, "prefill_pair": 5e-7}. The same seed gives the same
report. The simulator ignores "structured" in a trace.

With --fleet N many replicas serve the load behind the router's policy, and the autoscaler decides how many run. Its
costs and its SLO attainment are compared with those of other rules:

  chairlift bench simulate --fleet 40 --workload diurnal --requests 100000 --period 14400
  chairlift bench simulate --fleet 8 --workload many_sessions --policy prefix,round_robin"""

BENCH_SERVE_HELP = """\
Measure a running server that has the OpenAI API, by sending it requests.

  chairlift bench serve --url http://localhost:8000 --rate 2,4,8 --slo ttft=0.5,tpot=0.05 --json result.json
  chairlift bench serve --concurrency 64 --duration 20
  chairlift bench serve --overload 2,5,10 --duration 30 --plot result.png

With --rate, or with a trace FILE.jsonl that has "at", each request is sent when it is due, even if earlier
responses are late, and latencies count from that time. Requests are decoded greedily to the output length of
the workload.

The exit code is 1 when a request fails with another status than 429, or when the server does not meet a
criterion of --overload. docs/benchmarks.md explains the numbers."""
BENCH_SERVE_END = """\
Every setting can also be an environment variable (--request-timeout-ms is CHAIRLIFT_REQUEST_TIMEOUT_MS) or a
key in the file of --config. A flag overrides a variable, and a variable the file."""

DOCTOR_HELP = """\
Check whether this machine can run MODEL (by default the embedded demo model), and show its memory use.

  chairlift doctor
  chairlift doctor MODEL --max-model-len 8192

  chairlift doctor --url http://localhost:8000

Every problem is printed with a remedy. The exit code is 1 when the model cannot run. With --url a live server is
checked, and the replicas behind a router; the exit code is 1 when requests fail or will fail soon. The keys are the
variables CHAIRLIFT_API_KEY and CHAIRLIFT_ADMIN_KEY. docs/troubleshooting.md has a section on each problem."""

PLAN_HELP = """\
Plan a deployment of MODEL: the memory and the parallel sizes of a replica, how many replicas keep the latency targets
at a rate, and their cost. Only config.json is read, and nothing is loaded.

  chairlift plan MODEL --rate 4 --input 512 --output 128 --ttft-ms 1000 --itl-ms 80
  chairlift plan MODEL --cores 16 --memory 64 --rate 20 --price 0.8
  chairlift plan MODEL --gpus 8 --gpu-memory 80 --memory-bandwidth 3350 --tflops 989 --rate 20 --json

A replica is simulated with the real scheduler. Its step times are estimated from the speed of the devices, or fitted to
measured steps (--step-model). The last column says where each number comes from. docs/planning.md explains them."""

DEBUG_DUMP_HELP = """\
Write what explains the behaviour of a live server to one archive: its state, open requests without their texts,
settings without secrets, recent log lines, metrics, versions, and what `doctor --url` finds. Through a router it has
the replicas, too.

  chairlift debug-dump --url http://localhost:8000
  chairlift debug-dump --url http://router:8000 --output dump.tar.gz

The keys are the variables CHAIRLIFT_API_KEY and CHAIRLIFT_ADMIN_KEY. A part that fails or hangs is in the archive with
its error. The exit code is 1 when the server does not answer at all."""
TOP_HELP = """\
Show the replicas of a router, or one replica, in a table that is read again every two seconds: state, requests, tokens
a second, cache hits, KV cache use and attempts.

  chairlift top --url http://localhost:8000
  chairlift top --url http://localhost:8000 --once
  chairlift top --json --interval 10

The keys are the variables CHAIRLIFT_ADMIN_KEY and CHAIRLIFT_API_KEY. A server that does not respond is shown as down,
and tried again. q or Ctrl-C ends the command. Without a terminal one table is printed, as with --once. Its exit code is
1 when the server is down."""

CONFIG_HELP = """\
Show the settings and their sources, or validate a settings file.

  chairlift config show --config serve.yaml
  chairlift config validate serve.yaml"""
SHOW_HELP = """\
Show every setting with its value and its source: a flag, an environment variable, a line of the settings file,
or the default. The flags are those of `chairlift serve`, and the sampling settings.

  chairlift config show --config serve.yaml --port 8080
  chairlift config show --json

The values of API keys are never shown."""
VALIDATE_HELP = """\
Validate a settings file and print every problem with its line and a remedy. The exit code is 1 when there is a
problem. The model and the files that the settings name are not read.

  chairlift config validate serve.yaml

A settings file is YAML without sections. Its keys are flag names without the leading dashes:

  model: Qwen/Qwen2.5-0.5B-Instruct
  served_model_name: [qwen]
  port: 8080
  max_batch_tokens: 4096"""
