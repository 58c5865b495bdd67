"""Reranking: one query against many documents. Owns the fields of Cohere, Jina, TEI and vLLM.

Each document becomes a row of query and document. ``max_tokens_per_doc`` is not believed:
most servers that take these requests do not cut documents to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_admission.bodies.json import JSONObject, read_object
from gpu_admission.bodies.numbers import capped, positive, positive_option
from gpu_admission.errors import UnreadableBody
from gpu_admission.types import Workload
from gpu_admission.workloads.anycase import spellings
from gpu_admission.workloads.content import Tallies, Tally
from gpu_admission.workloads.events import problem_event
from gpu_admission.workloads.imagetokens import ImageTokensOption
from gpu_admission.workloads.limits import unchanged
from gpu_admission.workloads.members import listed, model_in
from gpu_admission.workloads.readings import largest
from gpu_admission.workloads.tokens import TokensOption

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_PAIR_TOKENS = 4
_QUERIES = ("query", "queries", "text_1", "data_1")
_DOCUMENTS = ("documents", "texts", "items", "text_2", "data_2")


class Rerank:
    """Reads ``query`` with ``documents`` (Cohere, Jina) or ``texts`` (TEI), and vLLM's scores.

    ``max_length`` is the row length that the server cuts to, ``max_batch`` the rows that it
    runs at once; without them nothing is cut and all rows run together.
    """

    __slots__ = ("_max_batch", "_max_length", "_tally", "offload_bytes")
    clamp = staticmethod(unchanged)
    sse_error = staticmethod(problem_event)

    def __init__(
        self,
        *,
        max_length: int | None = None,
        max_batch: int | None = None,
        tokens: TokensOption = "usual",
        image_tokens: ImageTokensOption = "any",
    ) -> None:
        self._max_length = None if max_length is None else positive_option(max_length, "max_length")
        self._max_batch = None if max_batch is None else positive_option(max_batch, "max_batch")
        self._tally = Tallies(tokens, image_tokens)
        self.offload_bytes = self._tally.offload_bytes

    def read(self, info: RequestInfo) -> Workload:
        """The workload of ``info``. Raises ``UnreadableBody``."""
        return largest(spellings(read_object(info)), self.of)

    def of(self, body: JSONObject, tally: Tally | None = None) -> Workload:
        """The workload of ``body``. Raises ``UnreadableBody``.

        ``tally`` is an empty one of the caller's, which is left with what it has added up.
        """
        tally = self._tally(body) if tally is None else tally
        queries, documents = _tokens(tally, _QUERIES), _tokens(tally, _DOCUMENTS)
        rows = self._rows(queries, documents)
        longest, total = max(rows), sum(rows)
        sequences = len(rows) * positive(body.fields, "max_chunks_per_doc", 1)
        return Workload(
            task="rerank",
            prompt_tokens=longest,
            total_prompt_tokens=total if total != longest else 0,
            sequences=capped(min(sequences, self._max_batch or sequences)),
            images=tuple(tally.images),
            model=model_in(body.fields),
        )

    def _rows(self, queries: list[int], documents: list[int]) -> list[int]:
        """Tokens of each pair: one query with all documents, or one with each."""
        if not queries or not documents:
            raise UnreadableBody("a query and documents are needed")
        query = max(queries)
        if len(documents) == 1:
            documents = documents * len(queries)
        rows = [query + document + _PAIR_TOKENS for document in documents]
        return rows if self._max_length is None else [min(row, self._max_length) for row in rows]


def _tokens(tally: Tally, names: tuple[str, ...]) -> list[int]:
    """Tokens of each text, or picture, under ``names``; ``tally`` gets the pictures."""
    return [tally.row(item) for name in names for item in _items(tally.body.fields.get(name))]


def _items(value: Any) -> list[Any]:
    """The items of a list, even one inside ``content`` (vLLM's), or the only item."""
    if type(value) is dict and type(value.get("content")) is list:
        value = value["content"]
    return listed(value)
