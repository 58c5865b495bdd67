"""The towers that look at images, read from the config of a vision-language model.

Owns where a config keeps them, and what their keys are called. What a forward of one costs is in
``activations``, how an image becomes patches in ``Vision``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

_NESTED = ("encoder", "vlm_config", "thinker_config", "vq_config", "sam_config", "encoder_config")
_HIDDEN = ("embed_dim", "hidden_size", "d_model", "width")
_HEADS = ("num_heads", "num_attention_heads", "attention_heads")
_INNER = ("intermediate_size", "mlp_dim", "d_ff")
_NO_TOWER = frozenset(("fuyu", "gemma4", "gemma4_unified", "mistral4", "evolla"))
"""Their decoder takes patches as they are, or their config has no tower unless it says so."""
_PATCH = {"kosmos_2_5_vision_model": 16, "pix2struct_vision_model": 16}
_TIMM = {"gemma3n_vision": 768}
"""Sides of the images that timm's models are given."""
_TIMM_SIDE = 1024
_TIMM_CHANNELS = 64
_MOST_MERGED = 16_384
"""Merged tokens of the largest image that the Qwen family takes by default."""


class Tower(msgspec.Struct, frozen=True, kw_only=True):
    """One tower: of patches, or where ``channels`` is not 0, convolutional. Elements and pixels."""

    side: int = 1
    """Side of a patch."""
    hidden: int = 0
    heads: int = 1
    inner: int = 0
    """Width of all the MLP's tensors that are alive at once."""
    size: tuple[int, int] | None = None
    """Every image is scaled to it; ``None``: images keep their own size."""
    max_pixels: int | None = None
    together: bool = False
    windowed: bool = False
    """Patches attend to few others, whatever the image's size."""
    channels: int = 0
    note: str = ""


def towers(config: Mapping[str, Any]) -> list[Tower]:
    """All that ``config``, a vision config or one that has some, describes.

    Raises ``ValueError`` when sizes are missing.
    """
    found = [_tower(each) for each in _configs(config, ())]
    if not found and config.get("model_type") in _NO_TOWER:
        return [_pixels(config)]
    return found or [_tower(config)]


def _configs(config: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    """Those inside ``config`` that describe a tower; it itself where there are none."""
    inside = [
        (name, value)
        for name, value in config.items()
        if isinstance(value, Mapping) and ("vision" in name or name in _NESTED) and len(path) < 4
    ]
    if any("vision" in name for name, _ in inside):  # if so, a quantiser is for images to be made
        inside = [(name, value) for name, value in inside if name != "vq_config"]
    found = [each for name, value in inside for each in _configs(value, (*path, name))]
    own = any(config.get(name) is not None for name in ("patch_size", "base_channels", "architecture"))
    if (
        not found
        and config.get("model_type") not in _NO_TOWER
        and (own or config.get("model_type") in _PATCH)
    ):
        found = [config]
    yield from found


def _tower(vision: Mapping[str, Any]) -> Tower:
    if vision.get("base_channels"):
        return _quantiser(vision)
    if vision.get("architecture"):
        return _timm(vision)
    side = _side(vision)
    hidden = _number(vision, *_HIDDEN)
    merge = _first(vision.get("spatial_merge_size") or vision.get("merge_size"))
    return Tower(
        side=side,
        hidden=hidden,
        heads=_number(vision, *_HEADS),
        inner=_inner(vision, hidden),
        size=_size(vision, merge),
        max_pixels=_most(vision, side * (merge or 1), side),
        together=bool(merge),
        windowed=bool(vision.get("patch_stride")),
    )


def _pixels(config: Mapping[str, Any]) -> Tower:
    side = _first(config.get("patch_size")) or 16
    note = "the config has no vision tower: an image costs its pixels"
    return Tower(side=side, max_pixels=_MOST_MERGED * side**2, note=note)


def _quantiser(vision: Mapping[str, Any]) -> Tower:
    """The convolutional encoder of a model that makes tokens of images (VQ-GAN)."""
    side = _first(vision.get("resolution")) or 1024
    return Tower(channels=_number(vision, "base_channels"), size=(side, side))


def _timm(vision: Mapping[str, Any]) -> Tower:
    """A model that timm builds from its name."""
    side = _TIMM.get(str(vision.get("model_type")), _TIMM_SIDE)
    note = f"{vision['architecture']!r} is taken for convolutional, of {_TIMM_CHANNELS} channels at full size"
    return Tower(channels=_TIMM_CHANNELS, size=(side, side), note=note)


def _side(vision: Mapping[str, Any]) -> int:
    """Side of a patch; for a tower in stages, the step of the first stage, which has the most patches."""
    if vision.get("patch_stride"):
        return _number(vision, "patch_stride")
    default = _PATCH.get(str(vision.get("model_type")))
    return default if vision.get("patch_size") is None and default else _number(vision, "patch_size")


def _inner(vision: Mapping[str, Any], hidden: int) -> int:
    width = next((size for name in _INNER if (size := _first(vision.get(name)))), None)
    ratio = vision.get("mlp_ratio") or 4
    act = vision.get("hidden_act") or vision.get("dense_act_fn")
    tensors = 5 if act == "gelu_new" else 3 if act in ("silu", "quick_gelu") else 2
    return tensors * (width or int(hidden * ratio))


def _size(vision: Mapping[str, Any], merge: int | None) -> tuple[int, int] | None:
    """What every image is scaled to; tiles of one image lie below each other."""
    if merge or ("image_size" not in vision and not vision.get("patch_stride")):
        return None
    if vision.get("patch_stride"):
        return (768, 768)  # Florence-2's processor: the config does not say
    side = _number(vision, "image_size")
    return side, side * (_first(vision.get("max_num_tiles")) or 1)


def _most(vision: Mapping[str, Any], merged: int, side: int) -> int:
    patches = _first(vision.get("max_num_patches") or vision.get("seq_len"))
    return patches * side**2 if patches else _MOST_MERGED * merged**2


def _first(value: Any) -> int | None:
    """A positive whole number, or the first of a list of them."""
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _number(vision: Mapping[str, Any], *names: str) -> int:
    for name in names:
        if value := _first(vision.get(name)):
            return value
    raise ValueError(f"the vision config lacks {' or '.join(names)}")
