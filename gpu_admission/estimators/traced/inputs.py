"""What a model of transformers is given in a run: zeros of the sizes that are traced.

Owns the inputs that are not text: a window of sound, a picture. How a run proceeds is in
``transformers``.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from gpu_admission.estimators.traced.build import Built
from gpu_admission.estimators.traced.grid import Sizes

_SIDE: Final = 224
"""Pixels of a picture's side, if the config does not say for what size the model was made."""


def inputs_of(
    built: Built, sizes: Sizes, *, device: torch.device | str = "meta", padded: bool = False
) -> dict[str, torch.Tensor]:
    """The inputs for ``sizes``; ``padded``: the first row is shorter than the others.

    Raises ``ValueError`` where there are no ready-made ones.
    """
    with torch.device(device):
        inputs = _main(built, sizes)
        if padded and "attention_mask" in inputs:
            inputs["attention_mask"][0, 0] = 0
        if built.kind in ("speech", "encoder-decoder"):
            prompt = (sizes["sequences"], sizes["new_tokens"])
            inputs["decoder_input_ids"] = torch.zeros(prompt, dtype=torch.long)
    return inputs


def _main(built: Built, sizes: Sizes) -> dict[str, torch.Tensor]:
    rows = sizes["sequences"]
    if built.input != "input_ids":
        return {built.input: _features(built.config, built.input, rows, built.dtype)}
    ids = torch.zeros((rows, sizes["prompt_tokens"]), dtype=torch.long)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if built.kind == "encoder" and hasattr(built.config, "vision_config"):  # a picture for each text
        looks = built.config.vision_config
        inputs["pixel_values"] = _features(looks, "pixel_values", rows, built.dtype)
    return inputs


def _features(config: Any, name: str, rows: int, dtype: torch.dtype) -> torch.Tensor:
    """An input that is not text: a window of sound, or a picture of the size the model was made for."""
    if name == "pixel_values":
        side = getattr(config, "image_size", None) or _SIDE
        height, width = (side, side) if isinstance(side, int) else side
        return torch.zeros((rows, getattr(config, "num_channels", 3), height, width), dtype=dtype)
    if name == "input_features" and hasattr(config, "max_source_positions"):
        return torch.zeros((rows, config.num_mel_bins, 2 * config.max_source_positions), dtype=dtype)
    raise ValueError(
        f"{config.model_type} takes {name}, for which there is no ready-made input: use Traced.of"
    )
