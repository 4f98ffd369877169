"""Tasks: a mail names values that its schema allows, and asks for them."""

import json
from random import Random

from speculation_speed.tasks import SCHEMA, mail_prompt


def test_a_mail_names_values_of_the_schema_and_ends_with_the_turn_of_the_model() -> None:
    prompts = {mail_prompt(Random(seed)) for seed in range(20)}
    assert len(prompts) == 20
    for prompt in prompts:
        task, mail = prompt.split("Dear shop team")
        assert json.dumps(SCHEMA) in task
        for values in (SCHEMA["properties"]["order_status"], SCHEMA["properties"]["payment_method"]):
            assert sum(value in mail for value in values["enum"]) == 1
        assert mail.endswith("<|im_end|>\n<|im_start|>assistant\n")
