"""``Vision``: images as pixels and as patches."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.estimators import Vision
from gpu_admission.types import Workload
from tests.estimators.published import QWEN_VISION, VIT, load, table


def size(vision: Vision, *images: tuple[int, int], batch: int = 1) -> int:
    return vision.estimate(Workload(images=images, sequences=batch)).bytes


def test_a_convolutional_model_is_linear_in_pixels_and_in_the_batch() -> None:
    vision = Vision.convolutional(channels=32, dtype="f16", live=3, max_pixels=10**7)
    assert size(vision, (640, 480)) == 640 * 480 * 32 * 2 * 3
    assert size(vision, (640, 480), (640, 480)) == 2 * size(vision, (640, 480))


def test_an_image_of_unknown_size_is_the_largest() -> None:
    vision = Vision.convolutional(channels=1, live=1, max_pixels=10**6)
    assert size(vision, (0, 0)) == size(vision, (5000, 5000)) == 4 * 10**6


def test_images_that_are_scaled_cost_the_same() -> None:
    vision = Vision.convolutional(channels=1, live=1, size=(224, 224))
    assert size(vision, (10, 10)) == size(vision, (5000, 5000)) == 4 * 224**2


def test_a_batch_that_lists_no_images_counts_its_rows() -> None:
    vision = Vision.from_config(VIT, attention="flash")
    assert size(vision, batch=8) == 8 * size(vision, (1, 1))


def test_a_tower_at_a_fixed_size_takes_its_patches() -> None:
    patch = (2 * 4096 + 4 * 1024) * 2 + 3 * 14 * 14 * 4
    estimate = Vision.from_config(VIT, attention="eager").estimate(Workload(images=((100, 100),)))
    assert estimate.parts == {"activations": 576 * patch, "scores and masks": 576**2 * (16 * 10 + 2)}


def test_a_gate_and_the_names_of_another_family_are_read() -> None:
    gated = {**VIT, "hidden_act": "silu"}
    assert Vision.from_config(gated).patch - Vision.from_config(VIT).patch == 4096 * 2


def test_images_of_one_request_may_be_one_sequence() -> None:
    *_, (what, _, _, positions, element, mask, _) = table("dense-attention-tensors")
    assert "22 images" in what
    tower = Vision.from_config(
        {"vision_config": {**QWEN_VISION["vision_config"], "patch_size": 16}}, attention="eager", dtype="f32"
    )
    images = tower.estimate(Workload(images=((832, 1184),) * 22))
    assert positions == 22 * 52 * 74
    assert images.parts["scores and masks"] == positions**2 * (16 * 8 + element)
    assert images.parts["scores and masks"] > mask
    apart = Vision.from_config(QWEN_VISION, together=False, attention="eager")
    joined = Vision.from_config(QWEN_VISION, attention="eager")
    assert size(apart, (560, 560), (560, 560)) < size(joined, (560, 560), (560, 560))


def test_a_tower_for_any_size_has_a_limit() -> None:
    tower = Vision.from_config(QWEN_VISION)
    assert tower.max_pixels == 16_384 * 28 * 28
    assert Vision.from_config(QWEN_VISION, max_pixels=10**6).max_pixels == 10**6


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Vision(pixel=1), "size"),
        (lambda: Vision(pixel=1, size=(1, 1), max_pixels=1), "size"),
        (lambda: Vision(patch=1, max_pixels=1), "patch_size"),
        (lambda: Vision.convolutional(channels=0, max_pixels=1), "channels"),
        (lambda: Vision.from_config({}), "patch_size"),
        (lambda: Vision.from_config({**VIT, "image_size": None}), "image_size"),
    ],
)
def test_what_makes_no_sense_is_named(make: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()


TOWERS = load("vision_configs.json")["configs"]


@pytest.mark.parametrize("name", TOWERS)
def test_the_tower_of_every_vision_language_type_is_read(name: str) -> None:
    vision = Vision.from_config(TOWERS[name])
    image = vision.estimate(Workload(images=((1024, 1024),)))
    assert 2**20 <= image.bytes <= 2**31
    unknown = vision.estimate(Workload(images=((0, 0),)))
    assert unknown.bytes >= image.bytes


def test_a_tower_that_the_config_does_not_describe_is_said() -> None:
    assert "no vision tower" in Vision.from_config({"model_type": "gemma4"}).estimate(Workload()).notes[0]
    timm = {"vision_config": {"model_type": "gemma3n_vision", "architecture": "mobilenetv5_300m_enc"}}
    assert "taken for convolutional" in Vision.from_config(timm).estimate(Workload()).notes[0]


def test_tiles_of_one_image_are_one_sequence() -> None:
    tiled = Vision.from_config({**VIT, "max_num_tiles": 4}, attention="eager")
    one = Vision.from_config(VIT, attention="eager")
    assert size(tiled, (9, 9)) > 4 * size(one, (9, 9))
