"""Settings of sampling and output, of `generate` and `chat`."""

from collections.abc import Mapping

from chairlift.cli.settings.setting_declaration import Setting
from chairlift.cli.settings.value_parsers import boolean, integer, number, structured_output, token_biases, token_ids

SAMPLING_SECTIONS: Mapping[str, tuple[Setting, ...]] = {
    "length and stop": (
        Setting(name="max_tokens", parse=integer, metavar="N", default=256, help="maximum number of output tokens"),
        Setting(name="min_tokens", parse=integer, metavar="N", default=0,
                help="minimum number of output tokens; end-of-text and stop tokens are banned before"),
        Setting(name="stop", is_repeatable=True, metavar="TEXT", help="stop the output at this text"),
        Setting(name="stop_token_ids", parse=token_ids, metavar="ID,..",
                help="stop at these token ids, in addition to the model's end-of-text tokens"),
        Setting(name="include_stop_str_in_output", parse=boolean, default=False,
                help="keep the stop text in the output"),
        Setting(name="ignore_eos", parse=boolean, default=False, help="continue after the model's end-of-text tokens"),
    ),
    "randomness": (
        Setting(name="temperature", parse=number, metavar="T", default_text="the model's, else 1",
                help="sampling temperature, from 0 (greedy) to 2"),
        Setting(name="top_k", parse=integer, metavar="K", default_text="the model's, else 0",
                help="sample from the K most likely tokens; 0 keeps all"),
        Setting(name="top_p", parse=number, metavar="P", default_text="the model's, else 1",
                help="sample from the most likely tokens whose probabilities sum to P; 1 keeps all"),
        Setting(name="min_p", parse=number, metavar="P", default_text="the model's, else 0",
                help="drop tokens with less than P times the probability of the most likely one; 0 keeps all"),
        Setting(name="typical_p", parse=number, metavar="P", default_text="the model's, else 1",
                help="sample from the most typical tokens whose probabilities sum to P; 1 keeps all"),
        Setting(name="epsilon_cutoff", parse=number, metavar="P", default_text="the model's, else 0",
                help="drop tokens with a probability below P; 0 keeps all"),
        Setting(name="eta_cutoff", parse=number, metavar="P", default_text="the model's, else 0",
                help="drop tokens with a probability below min(P, sqrt(P) * exp(-entropy)); 0 keeps all"),
        Setting(name="seed", parse=integer, metavar="N", default_text="a random one, which is reported",
                help="random seed of the request"),
    ),
    "penalties and bans": (
        Setting(name="repetition_penalty", parse=number, metavar="X", default_text="the model's, else 1",
                help="divide the logits of tokens in the prompt or the output by X; 1 disables it"),
        Setting(name="presence_penalty", parse=number, metavar="X", default=0,
                help="subtract X from the logits of tokens in the output; -2 to 2"),
        Setting(name="frequency_penalty", parse=number, metavar="X", default=0,
                help="subtract X from a token's logit for each occurrence in the output; -2 to 2"),
        Setting(name="no_repeat_ngram_size", parse=integer, metavar="N", default_text="the model's, else 0",
                help="never repeat a sequence of N tokens; 0 disables it"),
        Setting(name="bad_words", is_repeatable=True, metavar="TEXT", flag_name="bad_word",
                help="ban this text from the output"),
        Setting(name="bad_words_ids", parse=token_ids, is_repeatable=True, metavar="ID,..",
                help="ban this sequence of token ids from the output"),
        Setting(name="allowed_token_ids", parse=token_ids, metavar="ID,..", default_text="all",
                help="sample only from these token ids"),
        Setting(name="logit_bias", parse=token_biases, metavar="ID=X,..",
                help="add X to the logit of token ID; -100 to 100"),
        Setting(name="logits_processors", is_repeatable=True, metavar="NAME", flag_name="logits_processor",
                help="apply this logits processor of --logits-processor-factories"),
    ),
    "output": (
        Setting(name="n", parse=integer, metavar="N", default=1, help="number of choices for each prompt"),
        Setting(name="best_of", parse=integer, metavar="N", default_text="the value of --n",
                help="generate N choices and return the most likely --n of them"),
        Setting(name="structured", parse=structured_output, metavar="KIND=TEXT",
                help="constrain the output: json_schema=, regex=, grammar= (TEXT or @FILE), json_object, choice=A|B"),
        Setting(name="logprobs", parse=integer, metavar="K",
                help="return the log-probability of each output token and of the K most likely ones"),
        Setting(name="prompt_logprobs", parse=integer, metavar="K",
                help="return the log-probability of each prompt token and of the K most likely ones"),
        Setting(name="echo", parse=boolean, default=False, help="begin the output text with the prompt"),
        Setting(name="skip_special_tokens", parse=boolean, default=True, help="leave special tokens out of the text"),
    ),
}  # fmt: skip
"""Settings by the section that they have in --help."""

SAMPLING = tuple(setting for section in SAMPLING_SECTIONS.values() for setting in section)
