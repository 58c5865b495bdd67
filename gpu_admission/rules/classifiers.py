"""Ready pickers for the setting ``lane``: by how many tokens a request asks for, or by its path.

Each is a callable of one ``RequestInfo`` that names a lane. What a lane is and who may
start in it is the ledger's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpu_admission.request import RequestInfo
from gpu_admission.rules.patterns import Patterns


def by_tokens(*, rest: str = "long", **limits: int) -> Callable[[RequestInfo], str]:
    """The lane for at most so many tokens: ``by_tokens(short=512)``, or ``(short=512, medium=4096)``.

    Tokens are those of all prompts and all new ones of every sequence. What is above every
    limit goes to the lane ``rest``. A request whose body can't be read goes to the last
    lane of the admission. Raises ``TypeError``/``ValueError`` for limits that are no counts.
    """
    if not limits:
        raise TypeError("by_tokens needs at least one limit, such as by_tokens(short=512)")
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise TypeError(f"by_tokens: {name} must be an int of tokens, not {type(limit).__name__}")
        if limit < 1:
            raise ValueError(f"by_tokens: {name} must be 1 or more tokens, got {limit}")
    if rest in limits:
        raise ValueError(f"by_tokens: rest={rest!r} is one of the limits already")
    ordered = sorted(limits.items(), key=lambda item: item[1])

    def pick(info: RequestInfo) -> str:
        asked = tokens(info)
        return next((lane for lane, limit in ordered if asked <= limit), rest)

    return pick


def tokens(info: RequestInfo) -> int:
    """Tokens that a request may hold: its prompts and what it may generate. Raises ``UnreadableBody``."""
    workload = info.workload
    prompts = workload.total_prompt_tokens or workload.prompt_tokens
    return prompts + workload.new_tokens * workload.sequences


def by_path(lanes: Mapping[str, str]) -> Callable[[RequestInfo], str | None]:
    """The lane of the first pattern that matches: ``by_path({"/v1/embeddings": "quick", "/v1/*": "chat"})``.

    Paths that match none go to the first lane of the admission. Raises ``TypeError`` or
    ``ValueError`` for what is no pattern or no name.
    """
    if not isinstance(lanes, Mapping) or not lanes:
        raise TypeError("by_path needs a dict of path patterns to names of lanes")
    for pattern, lane in lanes.items():
        if not isinstance(lane, str) or not lane:
            raise TypeError(f"by_path: the lane of {pattern!r} must be a name, not {lane!r}")
    patterns = Patterns(lanes, name="by_path")

    def pick(info: RequestInfo) -> str | None:
        pattern = patterns.match(info.path)
        return None if pattern is None else lanes[pattern]

    pick.needs_body = False  # type: ignore[attr-defined]
    return pick
