"""The requests that are replayed: a slice of a real trace, with lengths scaled to the demo's model.

The file and its attribution are in ``data/``. Sizes only; what a request says is made up.
"""

from __future__ import annotations

import csv
from importlib.resources import files
from math import ceil

import msgspec

PROMPT_SCALE = 16
NEW_SCALE = 8
SOURCE = "Azure LLM inference trace 2023, conversation (Patel et al., Splitwise, ISCA 2024; CC-BY 4.0)"
PATH = "/v1/completions"
WORKER = "x-demo-worker"
"""Header of an answer: which web process passed it on."""
ENDS = "ends_after"
"""Field of the body that plays the model's end of sequence; a budget never sees such a thing."""
_FILE = "azure2023_conv_head.csv"
_WORDS = "a budget of bytes lets work in when it fits "


class Ask(msgspec.Struct, frozen=True):
    """One request, in tokens; one byte of prompt is one token."""

    prompt_tokens: int
    new_tokens: int
    """Of its answer."""
    asked: int = 0
    """``max_tokens``, where the client asks for more than the answer will have."""

    @property
    def body(self) -> dict[str, object]:
        """As the API takes it. A model with random weights has to be told where its answer ends."""
        text = (_WORDS * ceil(self.prompt_tokens / len(_WORDS)))[: self.prompt_tokens]
        body: dict[str, object] = {"model": "demo", "prompt": text, "max_tokens": self.new_tokens}
        return body | {"max_tokens": self.asked, ENDS: self.new_tokens} if self.asked else body

    def asking(self, tokens: int) -> Ask:
        """The same, from a client that asks for ``tokens`` (before scaling), or for as many as it needs."""
        return msgspec.structs.replace(self, asked=max(self.new_tokens, tokens // NEW_SCALE))


def load(count: int) -> list[Ask]:
    """The first ``count`` requests, shortened: prompts by ``PROMPT_SCALE``, answers by ``NEW_SCALE``.

    Raises ``ValueError`` when there are not that many.
    """
    with files(__package__).joinpath("data", _FILE).open() as lines:
        rows = list(csv.DictReader(lines))
    if not 1 <= count <= len(rows):
        raise ValueError(f"the trace that ships with the package has {len(rows)} requests, not {count}")
    return [
        Ask(ceil(int(row["input_tokens"]) / PROMPT_SCALE), ceil(int(row["output_tokens"]) / NEW_SCALE))
        for row in rows[:count]
    ]
