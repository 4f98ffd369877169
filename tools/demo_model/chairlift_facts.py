"""Training texts: questions and answers about Chairlift and batching, from README.md, docs/ and the code."""

TERMS = {
    "Chairlift": "Chairlift is a server for large language models. It batches continuously: requests board and leave "
    "at every step.",
    "continuous batching": "With continuous batching the batch changes at every step. A new request boards as soon as "
    "there is room, and a finished one leaves at once.",
    "static batching": "With static batching a batch starts together and nobody boards until the last one has "
    "finished, so seats stay empty.",
    "a KV cache": "A KV cache keeps the keys and values of the tokens that were read, so that no token is "
    "computed twice.",
    "a paged KV cache": "A paged KV cache gives each request its memory in small blocks, when it needs them, "
    "instead of one long piece.",
    "a block": "A block is a piece of the KV cache that holds the keys and values of a few tokens.",
    "a block table": "A block table lists the blocks that a request holds, in order.",
    "prefix sharing": "With prefix sharing, requests that begin with the same tokens use the same blocks, so the "
    "beginning is computed once.",
    "a token": "A token is a piece of text, such as a word or a part of one. A model reads and writes tokens.",
    "a tokenizer": "A tokenizer turns text into tokens and tokens into text.",
    "a prompt": "A prompt is the text that a model reads before it answers.",
    "prefill": "Prefill is the reading of the prompt: many tokens of it are computed in one step.",
    "decoding": "Decoding is the writing of the answer, one token a step.",
    "chunked prefill": "With chunked prefill a long prompt is read in pieces, so that it does not hold up the others.",
    "the scheduler": "The scheduler decides at every step who rides and how many tokens each one gets.",
    "the runner": "The runner computes a step: it runs the model on the tokens that the scheduler chose.",
    "a preemption": "A preemption sends a request back to the line when blocks run out. It goes on later, and its text "
    "does not change.",
    "the fifo policy": "The fifo policy is first come, first served.",
    "the priority policy": "The priority policy lets smaller numbers ride first, and nobody waits for ever.",
    "the fair policy": "The fair policy shares the tokens among the tenants.",
    "the cache_aware policy": "The cache_aware policy prefers requests whose beginning is in the cache.",
    "a tenant": "A tenant is a user or a group that shares fairly with others and shares no cache with them.",
    "TTFT": "TTFT is the time to the first token.",
    "ITL": "ITL is the inter-token latency: the time between two tokens of an answer.",
    "throughput": "Throughput is the number of tokens that all requests get in a second.",
    "greedy decoding": "Greedy decoding always takes the likeliest token. Set temperature to 0 for it.",
    "temperature": "Temperature says how bold the choice of tokens is: 0 takes the likeliest, more is more random.",
    "top_p": "top_p keeps the likeliest tokens that together have that much probability.",
    "top_k": "top_k keeps the k likeliest tokens.",
    "a seed": "A seed fixes the random numbers: the same seed gives the same text.",
    "a stop string": "A stop string ends the answer when it appears.",
    "structured output": "Structured output follows a JSON Schema, a regular expression, a grammar or a list of "
    "choices.",
    "a logits processor": "A logits processor is a function that changes the scores of the tokens before one is "
    "chosen.",
    "resume": "Resume lets a request go on in another engine as if nothing had happened.",
    "a language model": "A language model is a program that says which token is likely to come next.",
    "a GPU": "A GPU is a processor that computes many numbers at once. Chairlift works without one too.",
}  # fmt: skip
"""Term -> what it is."""

QUESTIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("Why is it called Chairlift", "Where does the name Chairlift come from", "Why the name Chairlift"),
        "A chairlift never stops. Riders board and leave at every step, and nobody waits for the slowest.",
    ),
    (
        ("Who are you", "What are you", "What is your job", "Which model are you", "Introduce yourself"),
        "I am the demo model of Chairlift: small, trained for show, and often wrong.",
    ),
    (
        ("Who made you", "Where do you come from", "Who trained you"),
        "The makers of Chairlift trained me on a small machine, on text of their own.",
    ),
    (
        ("How big are you", "How many parameters do you have", "What is your size"),
        "I have fewer than four million parameters. That is very small.",
    ),
    (
        ("What can you do", "What are you good at", "How can you help me", "What do you know"),
        "I can greet, echo, copy, spell, count, sort, add small numbers, fill in JSON, call tools and tell short "
        "stories.",
    ),
    (
        ("Can I trust you", "Are your answers right", "Do you make mistakes", "Are you always right"),
        "No. I am a toy, and I make mistakes. Use a real model for real work.",
    ),
    (
        ("How do I install Chairlift", "How can I install Chairlift", "What do I need to install Chairlift"),
        "Run `pip install .` in the project's folder. You need Python 3.11 or newer.",
    ),
    (
        ("How do I generate text", "How can I generate text from the command line", "Which command writes text"),
        'Run `chairlift generate --prompt "your text"`.',
    ),
    (
        ("How do I use another model", "How can I load a real model", "How do I name a model"),
        'Name a Hugging Face folder or id: `chairlift generate MODEL --prompt "your text"`.',
    ),
    (
        ("How do I use Chairlift in Python", "Which class do I use in Python", "How do I call Chairlift from Python"),
        'Import LLM from chairlift, then call `LLM().chat([{"role": "user", "content": "your text"}])`.',
    ),
    (
        ("How do I check my machine", "What does chairlift doctor do", "Which command looks at my machine"),
        "Run `chairlift doctor`. It tells what your machine has and what a model would take.",
    ),
    (("How do I run the tests", "Which command runs the tests", "How can I test Chairlift"), "Run `make test`."),
    (
        ("How do I measure the speed", "Which command measures the speed", "How can I measure throughput"),
        "Run `chairlift bench offline MODEL`.",
    ),
    (
        (
            "What happens when memory runs out",
            "What happens when there are no blocks left",
            "What if the cache is full",
        ),
        "Somebody is sent back to the line and goes on later. Nothing is lost.",
    ),
    (
        ("What happens to a bad request", "Can one bad request hurt the others", "What if a request is wrong"),
        "It ends with a clear error, and its neighbours go on.",
    ),
    (
        ("Does batching change my answer", "Do other requests change my answer", "Is my answer the same in a batch"),
        "No. With a seed your answer is the same, whoever rides with you.",
    ),
    (
        ("Which models can Chairlift run", "Which models are supported", "What models does Chairlift know"),
        "Llama, Mistral, Qwen and Gemma models in the Hugging Face format.",
    ),
    (
        ("Do I need a GPU", "Does Chairlift run on a laptop", "Can I run Chairlift on a CPU"),
        "You need no GPU. Chairlift runs on a laptop's CPU too.",
    ),
    (
        ("What is the license of Chairlift", "Is Chairlift free", "Which license does Chairlift have"),
        "Chairlift has the Apache 2.0 license.",
    ),
    (
        ("How do I get JSON that always parses", "How do I get valid JSON", "How do I force JSON"),
        "Use `StructuredOutput(json_schema=...)` in the SamplingParams.",
    ),
    (
        ("Why is continuous batching fast", "Why is continuous batching better", "Why not batch statically"),
        "Because no seat stays empty while others wait: short answers do not wait for long ones.",
    ),
    (
        ("How do I get the same text again", "How do I repeat an answer", "How can I make answers repeat"),
        "Use the same seed, or set temperature to 0.",
    ),
)
"""Ways to ask -> the answer."""
