"""Tokens of an image agree with the published preprocessors."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.workloads.imagetokens import FAMILIES, rule_of

# Placeholder tokens without begin and end marks, computed from each family's published
# preprocessing rules; the end points agree with published facts (Qwen2-VL 4 to 16384 tokens,
# LLaVA-NeXT at most 2928, Pixtral 4160 at 1024 x 1024).
COLUMNS = ("qwen2-vl", "qwen3-vl", "llava-next", "pixtral", "mistral-small-3.1")
PUBLISHED = [
    (28, 28, 4, 64, 1176, 6, 2),
    (336, 336, 144, 100, 1176, 462, 156),
    (640, 480, 391, 300, 2340, 1230, 432),
    (1024, 1024, 1369, 1024, 2928, 4160, 1406),
    (720, 1280, 1196, 880, 1968, 2368, 1242),
    (3840, 2160, 10549, 8160, 1948, 2340, 1736),
    (224, 224, 64, 64, 1176, 210, 72),
    (1920, 1080, 2691, 2040, 1948, 2340, 1736),
]
MOST = {
    "any": 18195, "emu3": 18195, "gemma-3": 256, "internvl": 3328, "llama-3.2-vision": 1, "llava-1.5": 576,
    "llava-next": 2928, "mistral-small-3.1": 3080, "openai": 1445, "pixtral": 4160,
    "qwen2-vl": 16384, "qwen2.5-vl": 16384, "qwen3-vl": 16384,
}  # fmt: skip


@pytest.mark.parametrize("row", PUBLISHED)
def test_tokens_are_the_published_ones(row: tuple[int, ...]) -> None:
    width, height, *expected = row
    assert [FAMILIES[name](width, height) for name in COLUMNS] == expected


@pytest.mark.parametrize(
    ("width", "height", "tokens"), [(224, 224, 256), (640, 480, 3328), (1920, 1080, 2304)]
)
def test_internvl_cuts_tiles_in_the_nearest_ratio(width: int, height: int, tokens: int) -> None:
    assert FAMILIES["internvl"](width, height) == tokens


@pytest.mark.parametrize(
    ("width", "height", "tokens"), [(1024, 1024, 765), (4096, 8192, 1105), (2048, 768, 1445), (512, 512, 255)]
)
def test_openai_cuts_tiles_of_512(width: int, height: int, tokens: int) -> None:
    assert FAMILIES["openai"](width, height) == tokens


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_an_unknown_size_costs_the_most_that_a_family_can(family: str) -> None:
    sides = (1, 27, 28, 200, 336, 449, 700, 1007, 1540, 4000, 60_000, 2**31)
    assert FAMILIES[family](0, 0) == MOST[family]
    assert all(
        1 <= FAMILIES[family](w, h) <= MOST[family] for w in sides for h in sides if 1 / 200 <= w / h <= 200
    )


def test_any_is_no_less_than_each_family() -> None:
    sides = (*range(1, 400, 7), *range(400, 5000, 211), 20_000)
    for width in sides:
        for height in sides:
            assert FAMILIES["any"](width, height) >= max(rule(width, height) for rule in FAMILIES.values())


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_an_absurd_shape_still_has_a_finite_size(family: str) -> None:
    assert 1 <= FAMILIES[family](1, 2**31) < 2**26


def test_a_number_or_a_function_may_be_given() -> None:
    assert rule_of(77)(1, 2) == 77
    assert rule_of(lambda width, height: width + height)(1, 2) == 3
    assert rule_of("gemma-3")(9, 9) == 256


@pytest.mark.parametrize(
    ("option", "error"), [("gpt", ValueError), (0, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_wrong_rule_is_refused_by_name(option: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="image_tokens"):
        rule_of(option)
