"""``Vision``: models that read images, either convolutional or as a tower of patches.

Owns how an image's size becomes pixels and patches inside the model. How many *tokens* an image
takes in a language model is a matter of its request: ``workloads``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gpu_admission.estimators.model.activations import AttentionPath, layer_cost
from gpu_admission.estimators.model.config import ConfigObject, config_dict
from gpu_admission.estimators.model.dtypes import DType, dtype_name, whole_bytes
from gpu_admission.estimators.model.towers import Tower, towers
from gpu_admission.estimators.terms import clamp, render
from gpu_admission.request import RequestInfo
from gpu_admission.types import Estimate, Workload


class Vision:
    """Bytes that one forward over a request's images adds.

    Give ``size`` when the app scales every image to it, else ``max_pixels``, which an image of
    unknown size is charged too. ``together`` says that all images of a request are one sequence of
    patches, whose scores and masks grow with the square of their sum.
    """

    def __init__(
        self,
        *,
        pixel: int = 0,
        patch: int = 0,
        pair: int = 0,
        patch_size: int = 0,
        size: tuple[int, int] | None = None,
        max_pixels: int | None = None,
        together: bool = False,
        notes: tuple[str, ...] = (),
    ) -> None:
        if (size is None) == (max_pixels is None):
            raise ValueError("give either size, or max_pixels, of an image as the model sees it")
        if patch and patch_size < 1:
            raise ValueError("patch_size is needed with patch")
        self.pixel = pixel
        """Bytes for each pixel."""
        self.patch = patch
        """Bytes for each patch of ``patch_size`` squared pixels."""
        self.pair = pair
        """Bytes for each pair of patches that attend to each other."""
        self.patch_size = patch_size
        self.size = size
        self.max_pixels = size[0] * size[1] if size is not None else max_pixels or 1
        self.together = together
        self.notes = notes

    @classmethod
    def convolutional(
        cls,
        *,
        channels: int,
        dtype: str = "f32",
        live: int = 4,
        size: tuple[int, int] | None = None,
        max_pixels: int | None = None,
    ) -> Vision:
        """A convolutional model, of which the ``live`` (2 to 4) largest feature maps are alive at once.

        ``channels`` is the width of the largest at full resolution: of a map at 1/k of each side
        count ``1/k**2`` of its channels.
        """
        if channels < 1 or live < 1:
            raise ValueError(f"channels and live must be at least 1, got {channels!r} and {live!r}")
        pixel = channels * whole_bytes(dtype, option="dtype") * live
        return cls(pixel=pixel, size=size, max_pixels=max_pixels)

    @classmethod
    def from_config(
        cls,
        config: ConfigObject | Mapping[str, Any] | str | os.PathLike[str],
        *,
        dtype: DType = "bf16",
        attention: AttentionPath = "sdpa",
        max_pixels: int | None = None,
        together: bool | None = None,
    ) -> Vision:
        """The tower of a vision-language model's config, or of a ``vision_config``; the costliest of several.

        Towers with a ``spatial_merge_size`` (the Qwen family) take images at their own size, up to
        ``max_pixels`` (by default 16,384 merged tokens), all of a request together; so do, one by one,
        those without an ``image_size``. The others take every image at ``image_size``. Raises
        ``ValueError`` when sizes are missing.
        """
        name = dtype_name(dtype, option="dtype")
        found = [_of(tower, name, attention, max_pixels, together) for tower in towers(config_dict(config))]
        return max(found, key=lambda vision: vision.estimate(Workload(images=((0, 0),))).bytes)

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes of all images of ``workload``; of ``sequences`` images when it lists none."""
        pixels = [self._pixels(*image) for image in workload.images]
        pixels = pixels or [self.max_pixels] * max(1, min(workload.sequences, 2**16))
        parts: dict[str, int] = {}
        if self.pixel:
            parts["feature maps"] = sum(pixels) * self.pixel
        if self.patch:
            patches = [-(-count // self.patch_size**2) for count in pixels]
            parts["activations"] = sum(patches) * self.patch
            squares = sum(patches) ** 2 if self.together else sum(count * count for count in patches)
            parts["scores and masks"] = squares * self.pair
        return Estimate(clamp(sum(parts.values())), None, "device", parts, self.notes)

    def explain(self, workload: Workload) -> str:
        """The terms of ``workload``, as text."""
        return render("Vision", self.estimate(workload))

    def __repr__(self) -> str:
        return (
            f"Vision(pixel={self.pixel}, patch={self.patch}, pair={self.pair}, max_pixels={self.max_pixels})"
        )

    def _pixels(self, width: int, height: int) -> int:
        """Pixels of an image as the model sees it: whole patches, and no more than it accepts."""
        if self.size is not None or width < 1 or height < 1:
            return self.max_pixels
        grain = self.patch_size or 1
        return min(self.max_pixels, (-(-width // grain) * grain) * (-(-height // grain) * grain))


def _of(
    tower: Tower, dtype: str, attention: AttentionPath, max_pixels: int | None, together: bool | None
) -> Vision:
    notes = (tower.note,) if tower.note else ()
    size = None if max_pixels else tower.size
    most = max_pixels or (None if size else tower.max_pixels)
    if tower.channels:
        pixel = Vision.convolutional(channels=tower.channels, dtype=dtype, size=size, max_pixels=most).pixel
        return Vision(pixel=pixel, size=size, max_pixels=most, notes=notes)
    cost = layer_cost(
        hidden=tower.hidden,
        heads=tower.heads,
        kv_heads=tower.heads,
        head_dim=tower.hidden // tower.heads,
        mlp=tower.inner,
        dtype=dtype,
        attention=attention,
    )
    return Vision(
        patch=cost.activations + 3 * tower.side**2 * 4,
        pair=cost.score + cost.mask + cost.expanded_mask if tower.hidden and not tower.windowed else 0,
        patch_size=tower.side,
        size=size,
        max_pixels=most,
        together=tower.together if together is None else together,
        notes=notes,
    )
