"""``Diffusion``: images and videos. Their stages run one after the other, so the peak is a maximum.

Owns the stages (text encoder, VAE encoder, denoiser, VAE decoder) and what slicing, tiling,
guidance and offloading do to them. Numbers of a family are values of ``DiffusionFamily``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from gpu_admission.estimators.model.activations import score_bytes
from gpu_admission.estimators.model.dtypes import whole_bytes
from gpu_admission.estimators.terms import assumed, clamp, render
from gpu_admission.request import RequestInfo
from gpu_admission.sizes import format_bytes, parse_bytes
from gpu_admission.types import Estimate, Workload

_MIB = 2**20
_PIXEL = 3 * 4
"""Bytes per pixel of a finished frame."""


class DiffusionFamily(msgspec.Struct, frozen=True, kw_only=True):
    """What tells families apart. ``decode_pixel`` (of a frame) and ``encode_pixel`` are bytes at 16 bits."""

    factor: float
    """Factor for the denoiser's memory per latent element (ComfyUI's ``memory_usage_factor``)."""
    heads: int
    """Heads of the attention at the highest resolution that has one."""
    stride: int
    """Latent pixels of a side for one position of that attention."""
    decode_pixel: int
    encode_pixel: int = 2 * 1767
    text: int
    """Bytes that encoding one prompt takes at 16 bits."""
    guided: bool = True
    """Whether guidance runs the denoiser on a doubled batch."""
    size: int
    """Side of an image whose size a request does not say, in pixels."""
    scale: int = 8
    """Pixels of a side for one of the latent."""
    temporal: int = 4
    """Frames for one of the latent, behind the first."""
    frames: int = 1
    """Frames of a video whose length a request does not say."""
    decode_frames: int | None = None
    """The most frames that the decoder has in hand at once; ``None``: all of them."""


# decode_pixel: 2145 is fitted to measured decodes (SD 1.5) and fits SDXL; 4356 is ComfyUI's.
_FAMILIES = {
    "sd15": DiffusionFamily(factor=2.0, heads=8, stride=1, decode_pixel=2145, text=4 * _MIB, size=512),
    "sdxl": DiffusionFamily(factor=0.8, heads=10, stride=2, decode_pixel=2145, text=8 * _MIB, size=1024),
    "sd3": DiffusionFamily(factor=2.8, heads=24, stride=2, decode_pixel=4356, text=128 * _MIB, size=1024),
    "flux": DiffusionFamily(
        factor=2.8, heads=24, stride=2, decode_pixel=4356, text=64 * _MIB, size=1024, guided=False
    ),
    "qwen-image": DiffusionFamily(
        factor=2.8, heads=24, stride=2, decode_pixel=5799, text=256 * _MIB, size=1024
    ),
    # Wan: factor and decoder are ComfyUI's (dim / 2222; 7,000 elements a pixel, streamed). The
    # 1.3B's README states 8.19 GB at 832 x 480 x 81, weights included: 5.4 beside them, 5.6 here.
    "wan-1.3b": DiffusionFamily(
        factor=0.7, heads=12, stride=2, decode_pixel=14_000, text=128 * _MIB, size=640, guided=False,
        frames=81, decode_frames=1,
    ),
    "wan-14b": DiffusionFamily(
        factor=2.31, heads=40, stride=2, decode_pixel=14_000, text=128 * _MIB, size=960, guided=False,
        frames=81, decode_frames=1,
    ),
    # HunyuanVideo: factor fitted to its README (60 GB at 720 x 1280 x 129, 45 at 544 x 960 x 129,
    # weights of 25.6 included), twice ComfyUI's; decoder ComfyUI's, in diffusers' tiles of 16 frames.
    "hunyuan-video": DiffusionFamily(
        factor=3.5, heads=24, stride=2, decode_pixel=5600, text=256 * _MIB, size=960, guided=False,
        frames=129, decode_frames=16,
    ),
    # LTX-Video: factor ComfyUI's; decoder measured, 678 to 712 bytes (dgrauet/ltx-2-mlx#142, #146).
    "ltx-video": DiffusionFamily(
        factor=5.5, heads=32, stride=1, decode_pixel=750, text=128 * _MIB, size=624, scale=32, temporal=8,
        frames=161,
    ),
    # CogVideoX: decoder from diffusers' table for 49 frames of 720 x 480 (19 GB with offloading, 11
    # with tiling), 9 frames at once. No measurement tells the factor; tiling bounds it at about 1.
    "cogvideox": DiffusionFamily(
        factor=1.0, heads=48, stride=2, decode_pixel=6500, text=128 * _MIB, size=588, frames=49,
        decode_frames=9,
    ),
}  # fmt: skip


class Diffusion:
    """Bytes that making a batch of images or videos adds: the largest of its stages, which run in turn.

    - ``family``: of images ``"sd15"``, ``"sdxl"``, ``"sd3"``, ``"flux"``, ``"qwen-image"``; of videos
      ``"wan-1.3b"``, ``"wan-14b"``, ``"hunyuan-video"``, ``"ltx-video"``, ``"cogvideox"``; or numbers
      of your own.
    - ``dtype``, ``vae_dtype``: what denoiser and VAE compute in; the VAE's is the denoiser's unless it
      is upcast.
    - ``attention``: ``"fused"``, ``"eager"`` (all scores stored) or ``"split"`` (in slices).
    - ``guidance``: whether the denoiser's batch is doubled; by default as the family does.
    - ``slicing``, ``tile``: the VAE takes one image at a time; or squares of ``tile`` pixels a side.
    - ``offload``: bytes of the weights of each component, ``{"text_encoder": "1GiB", "denoiser": …,
      "vae": …}``, where they are on the device only for their stage. Left out: they stay there.
    """

    def __init__(
        self,
        family: str | DiffusionFamily,
        *,
        dtype: str = "f16",
        vae_dtype: str | None = None,
        attention: Literal["fused", "eager", "split"] = "fused",
        guidance: bool | None = None,
        slicing: bool = False,
        tile: int | None = None,
        offload: Mapping[str, int | str] | None = None,
    ) -> None:
        known = _FAMILIES.get(family) if isinstance(family, str) else family
        if known is None:
            raise ValueError(f"family={family!r} is not known; known are {', '.join(_FAMILIES)}")
        if attention not in ("fused", "eager", "split"):
            raise ValueError(f"attention must be 'fused', 'eager' or 'split', not {attention!r}")
        if tile is not None and tile < known.scale:
            raise ValueError(f"tile must be at least {known.scale} pixels, got {tile!r}")
        self.family = known
        self.attention = attention
        self.size = whole_bytes(dtype, option="dtype")
        self.vae_size = whole_bytes(vae_dtype or dtype, option="vae_dtype")
        self.passes = 2 if (known.guided if guidance is None else guidance) else 1
        self.slicing = slicing
        self.tile = tile
        self.weights = _weights(offload or {})
        self._fused = math.ceil(self.size * 0.01 * known.factor * _MIB)
        self._score = score_bytes(dtype)
        self._split = math.ceil(0.15 * known.factor * _MIB)

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes of ``sequences`` images of ``width`` by ``height`` at once; 0 by 0 is the family's size.

        With ``frames`` each is a video of so many; 0 is the family's number, which is 1 for images.

        With input images it starts by encoding them. ``parts`` are the terms of the largest stage.
        """
        sizes = self.stages(workload)
        totals = {stage: size + self.weights.get(stage, 0) for stage, size in sizes.items()}
        peak = max(totals, key=lambda stage: totals[stage])
        parts = {peak: sizes[peak]}
        if peak in self.weights:
            parts[f"weights for {peak}"] = self.weights[peak]
        notes = (f"peak in {peak}", *assumed(workload))
        return Estimate(clamp(totals[peak]), None, "device", parts, notes)

    def stages(self, workload: Workload) -> dict[str, int]:
        """Bytes of each stage that ``workload`` goes through, without weights."""
        images = max(1, workload.sequences)
        family = self.family
        width, height = workload.width or family.size, workload.height or family.size
        frames = workload.frames or family.frames
        latent = -(-width // family.scale) * -(-height // family.scale)
        pixels = latent * family.scale**2
        latents = latent * (1 + -(-(frames - 1) // family.temporal))
        stages: dict[str, int] = {
            "text encoder": self.passes * family.text * self.size // 2,
            "denoiser": self._denoiser(images * self.passes, latents),
            "VAE decode": self._decode(images, pixels, frames),
        }
        if workload.images:
            given = max((w * h for w, h in workload.images), default=0)
            stages["VAE encode"] = self._vae(family.encode_pixel, images, max(pixels, given))
        return stages

    def explain(self, workload: Workload) -> str:
        """The peak and every stage, as text."""
        stages = [f"  {stage}: {format_bytes(size)}" for stage, size in self.stages(workload).items()]
        return "\n".join([render("Diffusion", self.estimate(workload)), "  stages:", *stages])

    def __repr__(self) -> str:
        return f"Diffusion({self.family!r}, attention={self.attention!r}, tile={self.tile})"

    def _denoiser(self, batch: int, latent: int) -> int:
        fused = batch * latent * self._fused
        if self.attention == "fused":
            return fused
        if self.attention == "split":
            return max(fused, batch * latent * self._split)
        positions = -(-latent // self.family.stride**2)
        return fused + batch * self.family.heads * positions**2 * self._score

    def _decode(self, images: int, pixels: int, frames: int) -> int:
        """Bytes of the frames in hand, and of those already done, as 32-bit floats."""
        in_hand = min(frames, self.family.decode_frames or frames)
        done = images * pixels * frames * _PIXEL if frames > in_hand else 0
        return self._vae(self.family.decode_pixel, images, pixels) * in_hand + done

    def _vae(self, pixel: int, images: int, pixels: int) -> int:
        at_once = 1 if self.slicing else images
        covered = pixels if self.tile is None else min(pixels, self.tile**2)
        return at_once * covered * pixel * self.vae_size // 2


_COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "text_encoder": ("text encoder",),
    "denoiser": ("denoiser",),
    "vae": ("VAE encode", "VAE decode"),
}


def _weights(offload: Mapping[str, int | str]) -> dict[str, int]:
    unknown = set(offload) - set(_COMPONENTS)
    if unknown:
        raise ValueError(f"offload has {sorted(unknown)}; its components are {', '.join(_COMPONENTS)}")
    return {
        stage: parse_bytes(size, name=f"offload[{name!r}]")
        for name, size in offload.items()
        for stage in _COMPONENTS[name]
    }
