"""The Stable Diffusion web UI, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.bodies.numbers import CEILING
from gpu_admission.types import Workload
from gpu_admission.workloads import StableDiffusion
from tests.workloads import pictures
from tests.workloads.asking import request


def picture(**fields: Any) -> Workload:
    return StableDiffusion().read(request({"prompt": "a ferry", **fields}, "/sdapi/v1/txt2img"))


def size(**fields: Any) -> tuple[int, int]:
    workload = picture(**fields)
    return workload.width, workload.height


def test_sizes_have_their_defaults() -> None:
    workload = picture()
    assert (workload.task, workload.width, workload.height, workload.sequences) == ("image", 512, 512, 1)
    assert workload.defaulted == ("width", "height")
    assert picture(width=640).defaulted == ("height",)


def test_a_batch_runs_together_and_iterations_do_not() -> None:
    workload = picture(batch_size=4, n_iter=8, steps=30)
    assert workload.sequences == 4
    assert workload.features == {"steps": 30.0, "n_iter": 8.0, "scripts": 0.0}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"hr_scale": 2}, (512, 512)),
        ({"enable_hr": True}, (1024, 1024)),
        ({"enable_hr": True, "hr_scale": 1.5}, (768, 768)),
        ({"enable_hr": True, "hr_scale": "1.5"}, (768, 768)),
        ({"enable_hr": True, "hr_scale": 0.5}, (512, 512)),
        ({"enable_hr": True, "hr_scale": None}, (1024, 1024)),
        ({"enable_hr": True, "hr_resize_x": 1024}, (1024, 1024)),
        ({"enable_hr": True, "hr_resize_x": 1024, "hr_resize_y": 2048}, (2048, 2048)),
        ({"enable_hr": True, "hr_resize_y": 100, "hr_scale": 9}, (512, 512)),
        ({"enable_hr": True, "width": 768, "height": 512, "hr_resize_y": 1024}, (1536, 1024)),
        ({"enable_hr": True, "hr_scale": 1e300}, (CEILING, CEILING)),
    ],
)
def test_the_larger_of_both_passes_counts(fields: dict[str, Any], expected: tuple[int, int]) -> None:
    assert size(**fields) == expected


def test_pictures_that_come_are_measured() -> None:
    first = pictures.data_url(pictures.png(640, 480)).partition(",")[2]
    workload = picture(init_images=[first, "x"], mask=pictures.data_url(pictures.png(64, 48)))
    assert workload.images == ((640, 480), (0, 0), (64, 48))


def test_every_prompt_counts() -> None:
    plain = picture().prompt_tokens
    assert picture(negative_prompt="x" * 100).prompt_tokens == plain + 41
    assert StableDiffusion().read(request({}, "/sdapi/v1/img2img")).prompt_tokens == 1


def test_scripts_are_counted() -> None:
    assert picture(alwayson_scripts={"controlnet": {"args": []}}).features["scripts"] == 1.0
    assert picture(alwayson_scripts=[]).features["scripts"] == 0.0
