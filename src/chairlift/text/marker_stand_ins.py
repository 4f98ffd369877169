"""with_stand_ins, without_stand_ins: markers that the server writes into a message, apart from those that users spell.

A special token in a message stays text (see ChatTemplate). Calls that the server writes for a template that writes none
have markers that must become special tokens. Until the template has been rendered, a stand-in with a secret takes the
place of each: no message can spell it.
"""

import re
import secrets

from chairlift.text.call_grammar_rules import MARKER

_BEGIN, _END = f"\U0010e000{secrets.token_hex(16)}:", "\U0010e001"
_STAND_IN = re.compile(f"{_BEGIN}([0-9a-f]+){_END}")


def with_stand_ins(text: str) -> str:
    """Return a text whose markers are stand-ins."""
    return MARKER.sub(lambda marker: f"{_BEGIN}{marker[0].encode().hex()}{_END}", text)


def without_stand_ins(text: str) -> str:
    """Return a text with the markers in place of their stand-ins."""
    return _STAND_IN.sub(lambda match: bytes.fromhex(match[1]).decode(), text)
