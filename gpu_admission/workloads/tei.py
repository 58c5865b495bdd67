"""Text Embeddings Inference: embed, predict and similarity. Owns its field ``inputs``.

Its ``/rerank`` is read in ``rerank``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_admission.bodies.json import JSONObject, read_object
from gpu_admission.bodies.numbers import positive_option
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.limits import unchanged
from gpu_admission.workloads.tokens import Counter, TokensOption, counter, rows

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo


class TEI:
    """Reads ``inputs``: a text, token ids, a list of them, pairs, or sentences to compare.

    ``max_length`` is the row length that the server cuts to; without it nothing is cut.
    """

    __slots__ = ("_counter", "_max_length", "offload_bytes")
    clamp = staticmethod(unchanged)
    sse_error = staticmethod(problem_event)

    def __init__(self, *, max_length: int | None = None, tokens: TokensOption = "usual") -> None:
        self._max_length = None if max_length is None else positive_option(max_length, "max_length")
        self._counter = counter(tokens)
        self.offload_bytes = self._counter.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        body = read_object(info)
        inputs = body.fields.get("inputs", body.fields.get("input"))
        if type(inputs) is dict:
            inputs = [
                text for value in inputs.values() for text in (value if type(value) is list else [value])
            ]
        prompts = _rows(body, self._counter, inputs)
        if not prompts:
            raise UnreadableBody("inputs are needed")
        if self._max_length is not None:
            prompts = [min(tokens, self._max_length) for tokens in prompts]
        longest, total = max(prompts), sum(prompts)
        return Workload(
            task="embed",
            prompt_tokens=longest,
            total_prompt_tokens=total if total != longest else 0,
            sequences=len(prompts),
        )


def _rows(body: JSONObject, counter: Counter, inputs: Any) -> list[int]:
    """One row for each text, and for each pair of texts (a list of two texts inside the list)."""
    if type(inputs) is not list or not any(_is_pair(item) for item in inputs):
        return rows(body, counter, inputs)
    return [max(1, sum(rows(body, counter, item))) for item in inputs]


def _is_pair(item: Any) -> bool:
    return type(item) is list and any(type(text) is str for text in item)
