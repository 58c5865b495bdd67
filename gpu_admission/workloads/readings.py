"""A body that can be read in more than one way. Owns the ways, and that the larger result counts.

Apps differ in whether they look at the content type: one that calls ``request.json()`` reads
JSON under any header (``curl -d`` sends the type of a form), another trusts the header. A
client must not choose its price that way, so every reading is made, and of each size the
largest is charged. What a field means is up to the dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from gpu_admission.bodies.json import JSONObject, Pairs, read_object
from gpu_admission.bodies.multipart import HEAD
from gpu_admission.errors import UnreadableBody
from gpu_admission.request import Part
from gpu_admission.types import SIZES, Workload
from gpu_admission.workloads.forms import media_type, read_form, read_parts

if TYPE_CHECKING:
    from gpu_admission.request import RequestInfo

_FILE_TYPES = ("image/", "audio/", "video/", "application/octet-stream")
_FORM = "application/x-www-form-urlencoded"
_MOST_IMAGES = 20_000


def read_all(info: RequestInfo, *, repeats: Pairs | None = None) -> Sequence[JSONObject]:
    """Every way in which an app may read the fields of ``info``, at least one. Raises ``UnreadableBody``.

    ``repeats``: as for ``read_object``.
    """
    kind = media_type(info)
    if kind == "multipart/form-data" or info.was_form:
        return [_parts_or_json(info, repeats)]
    if kind == _FORM:
        return [*_as_forms(info.body), *_as_json(info, repeats)]
    return [read_object(info, repeats=repeats)]


def read_all_or_file(info: RequestInfo, *, repeats: Pairs | None = None) -> Sequence[JSONObject]:
    """The same if the body may also be a file itself: a list of one ``Part`` under the empty name."""
    kind = media_type(info)
    if not kind.startswith(_FILE_TYPES):
        return read_all(info, repeats=repeats)
    part = Part("", "", kind, len(info.body), info.body[:HEAD])
    return [JSONObject({"": [part]}, part.size), *_as_json(info, repeats)]


def largest(bodies: Sequence[JSONObject], read: Callable[[JSONObject], Workload]) -> Workload:
    """The workload of the body that ``bodies`` are readings of: of each size the largest.

    A reading that ``read`` refuses does not count, unless none is left.
    """
    if len(bodies) == 1:
        return read(bodies[0])
    found: list[Workload] = []
    refused = None
    for body in bodies:
        try:
            found.append(read(body))
        except UnreadableBody as error:
            refused = refused or error
    if not found and refused is not None:
        raise refused
    return reduce(larger, found)


def larger(one: Workload, other: Workload) -> Workload:
    """A workload that asks no less than either."""
    longest = max(one.prompt_tokens, other.prompt_tokens)
    total = max(one.total_prompt_tokens, other.total_prompt_tokens, longest)
    images = one.images if one.images == other.images else (*one.images, *other.images)[:_MOST_IMAGES]
    sizes: dict[str, Any] = {name: max(getattr(one, name), getattr(other, name)) for name in SIZES}
    return replace(
        one,
        **sizes,
        total_prompt_tokens=total if total != longest else 0,
        images=images,
        prompt_logprobs=one.prompt_logprobs or other.prompt_logprobs,
        stream=one.stream or other.stream,
        model=one.model or other.model,
        defaulted=tuple(dict.fromkeys((*one.defaulted, *other.defaulted))),
        features={**other.features, **_larger_features(one, other)},
    )


def _larger_features(one: Workload, other: Workload) -> dict[str, float]:
    return {name: max(value, other.features.get(name, value)) for name, value in one.features.items()}


def _parts_or_json(info: RequestInfo, repeats: Pairs | None) -> JSONObject:
    """A multipart body, or the JSON that came under its header: no body can be both."""
    try:
        return read_parts(info)
    except UnreadableBody:
        if info.was_form or not _may_be_json(info.body):
            raise
    return read_object(info, repeats=repeats)


def _as_forms(body: bytes) -> list[JSONObject]:
    """``&`` separates the fields; some readers take ``;`` for the same."""
    return [read_form(body), *([read_form(body, b"&;")] if b";" in body else ())]


def _as_json(info: RequestInfo, repeats: Pairs | None) -> list[JSONObject]:
    if not _may_be_json(info.body):
        return []
    try:
        return [read_object(info, repeats=repeats)]
    except UnreadableBody:
        return []


def _may_be_json(body: bytes) -> bool:
    """Whether ``body`` starts as an object does, in any of JSON's encodings."""
    start = body[:64].lstrip(b"\xef\xbb\xbf\xff\xfe\x00 \t\r\n")
    return start.startswith(b"{") or not start
