"""``Diffusion``: published figures, and which stage is the peak."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_admission.estimators import Diffusion, DiffusionFamily
from gpu_admission.types import Workload
from tests.estimators.published import GIB, MIB, table

RESIDENT = 2174 * MIB  # of the web UI that decoded, by the fit to its rows
SD15_WEIGHTS = 2 * (859_520_964 + 123_060_480 + 83_653_863)
SDXL_WEIGHTS = 2 * (2_567_463_684 + 123_060_480 + 694_659_840 + 83_653_863)


def stages(
    family: str | DiffusionFamily = "sd15", side: int = 512, batch: int = 1, **options: Any
) -> dict[str, int]:
    return Diffusion(family, **options).stages(Workload(width=side, height=side, sequences=batch))


@pytest.mark.parametrize(("width", "height", "peak"), [r for r in table("sd15-vae-decode") if r[2] != "OOM"])
def test_decoding_an_image_is_met(width: int, height: int, peak: float) -> None:
    estimate = Diffusion("sd15").estimate(Workload(width=width, height=height))
    assert estimate.notes == ("peak in VAE decode",)
    error = (RESIDENT + estimate.bytes) / MIB / peak - 1
    assert abs(error) <= 0.05


@pytest.mark.parametrize(
    ("tile", "peak"), [row for row in table("sd15-vae-decode-tiled") if 64 <= row[0] <= 160]
)
def test_decoding_in_tiles_is_met_whatever_the_size_of_the_image(tile: int, peak: float) -> None:
    tiled = Diffusion("sd15", tile=8 * tile)
    decode = tiled.stages(Workload(width=2048, height=2048))["VAE decode"]
    assert abs((RESIDENT + decode) / MIB / peak - 1) <= 0.05
    assert tiled.stages(Workload(width=8192, height=8192))["VAE decode"] == decode


@pytest.mark.parametrize(("gpu", "side", "batch", "fits"), table("sd-oom-frontier"))
def test_what_fits_with_plain_attention_is_told_from_what_does_not(
    gpu: str, side: int, batch: int, fits: bool
) -> None:
    memory = {"A100": 40, "V100": 16}[gpu] * GIB
    estimate = Diffusion("sd15", attention="eager").estimate(
        Workload(width=side, height=side, sequences=batch)
    )
    assert (SD15_WEIGHTS + estimate.bytes <= memory) == fits


@pytest.mark.parametrize(("width", "height", "peak"), [row[:3] for row in table("sd15-pipeline")])
def test_a_pipeline_that_starts_from_an_image_is_met(width: int, height: int, peak: float) -> None:
    workload = Workload(width=width, height=height, images=((width, height),))
    total = SD15_WEIGHTS + Diffusion("sd15").estimate(workload).bytes
    assert abs(total / GIB - peak) <= 0.5


def test_sdxl_at_its_size_is_met() -> None:
    peak = next(row[-1] for row in table("sdxl-1024") if row[:5] == ["bf16", True, False, False, False])
    total = SDXL_WEIGHTS + Diffusion("sdxl", dtype="bf16").estimate(Workload(width=1024, height=1024)).bytes
    assert abs(total / 10**9 / peak - 1) <= 0.05


def test_the_peak_is_the_largest_stage_and_not_their_sum() -> None:
    estimate = Diffusion("sd15").estimate(Workload(width=512, height=512))
    assert estimate.bytes == max(stages().values()) == stages()["VAE decode"] == 512 * 512 * 2145


def test_guidance_doubles_the_denoisers_batch_where_the_family_is_guided() -> None:
    assert stages()["denoiser"] == 2 * stages(guidance=False)["denoiser"]
    assert stages("flux")["denoiser"] == stages("flux", guidance=False)["denoiser"]
    assert stages("flux", guidance=True)["denoiser"] == 2 * stages("flux")["denoiser"]


def test_slicing_decodes_one_image_at_a_time() -> None:
    assert stages(batch=4)["VAE decode"] == 4 * stages()["VAE decode"]
    assert stages(batch=4, slicing=True)["VAE decode"] == stages()["VAE decode"]


def test_an_upcast_vae_takes_twice_as_much() -> None:
    assert stages("sdxl", vae_dtype="f32")["VAE decode"] == 2 * stages("sdxl")["VAE decode"]


def test_memory_rises_with_the_square_of_the_side() -> None:
    assert stages(side=1024)["VAE decode"] == 4 * stages(side=512)["VAE decode"]
    assert stages(side=1024)["denoiser"] == 4 * stages(side=512)["denoiser"]


def test_attention_in_slices_takes_more_than_fused_and_less_than_all_scores() -> None:
    fused, split, eager = (stages(side=1024, attention=a)["denoiser"] for a in ("fused", "split", "eager"))
    assert fused < split < eager


def test_only_an_input_image_is_encoded() -> None:
    assert "VAE encode" not in stages()
    given = Diffusion("sd15").stages(Workload(width=512, height=512, images=((2048, 2048),)))
    assert given["VAE encode"] == 2048 * 2048 * 3534
    unknown = Diffusion("sd15").stages(Workload(width=512, height=512, images=((0, 0),)))
    assert unknown["VAE encode"] == 512 * 512 * 3534


def test_a_size_that_is_not_said_is_the_familys() -> None:
    assert Diffusion("sdxl").stages(Workload()) == stages("sdxl", 1024)


def test_offloaded_weights_are_part_of_the_stage_that_loads_them() -> None:
    offloaded = Diffusion("sd15", offload={"denoiser": "1.6GiB", "vae": "160MiB", "text_encoder": 2**28})
    estimate = offloaded.estimate(Workload(width=512, height=512))
    assert estimate.notes == ("peak in denoiser",)
    assert estimate.bytes == stages()["denoiser"] + offloaded.weights["denoiser"]
    assert estimate.parts["weights for denoiser"] == offloaded.weights["denoiser"]


def test_numbers_of_another_family_can_be_given() -> None:
    own = DiffusionFamily(
        factor=1.0, heads=8, stride=2, decode_pixel=9183, text=2**20, size=1024, guided=False
    )
    assert stages(own, 1024)["VAE decode"] == 9183 * 2**20


def test_explaining_names_every_stage() -> None:
    text = Diffusion("sd15").explain(Workload(width=512, height=512, images=((1, 1),)))
    assert all(stage in text for stage in ("text encoder", "denoiser", "VAE decode", "VAE encode"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"family": "sd9"}, "family"),
        ({"attention": "sdpa"}, "attention"),
        ({"tile": 4}, "tile"),
        ({"offload": {"unet": 1}}, "unet"),
        ({"offload": {"vae": "much"}}, "offload"),
        ({"dtype": "q8_0"}, "dtype"),
    ],
)
def test_an_option_that_makes_no_sense_is_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Diffusion(**{"family": "sd15", **options})


HUNYUAN_WEIGHTS = 25_600_000_000


@pytest.mark.parametrize(("width", "height", "peak"), [(1280, 720, 60e9), (960, 544, 45e9)])
def test_hunyuan_video_needs_what_its_authors_measured(width: int, height: int, peak: float) -> None:
    """Its README: 129 frames, one GPU, the text encoders on the host."""
    workload = Workload(width=width, height=height, frames=129)
    total = HUNYUAN_WEIGHTS + Diffusion("hunyuan-video", tile=256).estimate(workload).bytes
    assert abs(total / peak - 1) <= 0.03


@pytest.mark.parametrize(
    ("width", "height", "frames", "peak"),
    [(768, 512, 121, 33.9e9), (512, 768, 49, 13.3e9), (768, 1152, 17, 10.2e9), (1024, 1536, 9, 9.8e9)],
)
def test_decoding_with_ltx_is_never_below_what_was_measured(
    width: int, height: int, frames: int, peak: float
) -> None:
    decode = Diffusion("ltx-video").stages(Workload(width=width, height=height, frames=frames))["VAE decode"]
    assert 1 <= decode / peak <= 1.12


def test_wan_and_cogvideox_need_what_was_published() -> None:
    wan = Diffusion("wan-1.3b").estimate(Workload(width=832, height=480, frames=81)).bytes
    assert 1 <= (2_840_000_000 + wan) / 8.19e9 <= 1.15
    cog = Diffusion("cogvideox").stages(Workload(width=720, height=480, frames=49))
    assert 1 <= cog["VAE decode"] / 19e9 <= 1.1
    assert cog["denoiser"] <= 3 * GIB


VIDEOS = ["wan-1.3b", "wan-14b", "hunyuan-video", "ltx-video", "cogvideox"]


@pytest.mark.parametrize("family", [*VIDEOS, "sdxl", "qwen-image"])
def test_more_frames_take_more(family: str) -> None:
    at = [
        Diffusion(family).estimate(Workload(width=1280, height=720, frames=frames)).bytes
        for frames in (1, 33, 81, 345, 3001)
    ]
    assert at == sorted(set(at))


@pytest.mark.parametrize("family", VIDEOS)
def test_a_video_whose_length_is_not_said_has_the_familys(family: str) -> None:
    model = Diffusion(family)
    said = Workload(width=640, height=640, frames=model.family.frames)
    assert model.family.frames > 1
    assert model.estimate(Workload(width=640, height=640)).bytes == model.estimate(said).bytes


def test_an_image_of_one_frame_is_an_image() -> None:
    for family in ("sd15", "flux", "qwen-image"):
        assert (
            Diffusion(family).estimate(Workload(width=512, height=512, frames=1)).bytes
            == Diffusion(family).estimate(Workload(width=512, height=512)).bytes
        )
