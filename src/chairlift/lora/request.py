"""LoRARequest: the LoRA adapter that a prompt of LLM.generate or LLM.chat runs with."""

from dataclasses import dataclass

from chairlift.core.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter of a PEFT folder, with the field names of vLLM.

    Attributes:
        lora_name: names the adapter; the first request with a name loads it.
        lora_int_id: at least 1; accepted for vLLM's scripts, the name identifies the adapter.
        lora_path: its folder. Another folder under a known name replaces it: later requests get the new version.
        load_inplace: load the folder again although the name is loaded, because its files have changed.

    Raises InvalidRequest for values of other types or without content.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool = False

    def __post_init__(self) -> None:
        for field in ("lora_name", "lora_path"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise InvalidRequest(f"{field} must be a string that is not empty, got {value!r:.40}", param=field)
        number = self.lora_int_id
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InvalidRequest(f"lora_int_id must be an integer above 0, got {number!r:.40}", param="lora_int_id")
