"""Pipelines of diffusers: the denoiser at each step, and the VAE that makes the picture.

Owns what each class of denoiser is given, and how a picture's sides become those of its latents.
Text encoders are models of transformers: trace them there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import diffusers
import torch

from gpu_admission.estimators.traced.configs import torch_dtype
from gpu_admission.estimators.traced.grid import Axis, Group, PhaseOf, trace_groups
from gpu_admission.estimators.traced.modules import Module
from gpu_admission.estimators.traced.peaks import Trace

Inputs: TypeAlias = "dict[str, Any]"
_Shape: TypeAlias = "tuple[int, int, int]"
"""Rows, and the height and width of the latents."""

_TEXT: Final = 77
_T5_TEXT: Final = 512
"""Tokens of a prompt: CLIP's, and the most that pipelines give T5."""
_SIDE: Final = 8
"""Pixels of a picture for each of its latents, unless the VAE says otherwise."""
_DENOISERS: Final = ("unet", "transformer", "denoiser")


def trace(
    source: Any,
    *,
    guidance: bool,
    dtype: str | None,
    tiling: bool,
    slicing: bool,
    inputs: bool,
    device: str,
) -> Trace:
    """Trace a pipeline, its folder, or the configs of its parts. Raises ``ValueError``."""
    started = time.perf_counter()
    parts = _parts(source)
    groups: list[Group] = []
    modules: list[Module] = []
    held: dict[str, Any] = {"inputs": inputs, "device": device}
    compute = torch_dtype(None, dtype)
    side = _factor(parts.get("vae"))
    for name, config in parts.items():
        made = (
            _vae(config, compute, tiling, slicing, held)
            if name == "vae"
            else _denoiser(config, compute, guidance, side, held)
        )
        for group, module in made:
            groups.append(group)
            modules.append(module)
    found, check = trace_groups(groups)
    return Trace(
        model=" and ".join(_class_name(config) for config in parts.values()),
        phases=found,
        check=check,
        settings={
            "dtype": str(compute).removeprefix("torch."),
            "attention": "sdpa",
            "guidance": str(guidance),
            "tiling": str(tiling),
            "device": device,
            "diffusers": diffusers.__version__,
            "torch": str(torch.__version__),
        },
        notes=tuple(sorted({note for module in modules for note in module.notes})),
        seconds=round(time.perf_counter() - started, 1),
    )


def _parts(source: Any) -> dict[str, Any]:
    """The config of the denoiser and of the VAE, whichever there are."""
    if isinstance(source, (str, os.PathLike)):
        source = _from_path(Path(source))
    if isinstance(source, Mapping) and "_class_name" in source:
        return {"vae" if source["_class_name"].startswith("Autoencoder") else "denoiser": source}
    names = (*_DENOISERS, "vae")
    found = {n: source.get(n) if isinstance(source, Mapping) else getattr(source, n, None) for n in names}
    parts = {name: _config(part) for name, part in found.items() if part is not None}
    if not parts:
        raise ValueError("there is neither a denoiser (unet, transformer) nor a vae in what was given")
    return parts


def _from_path(path: Path) -> dict[str, Any]:
    if path.is_file():
        config: dict[str, Any] = json.loads(path.read_text())
        return config
    files = {name: path / name / "config.json" for name in (*_DENOISERS, "vae")}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}


def _config(part: Any) -> Mapping[str, Any]:
    config = part if isinstance(part, Mapping) else part.config
    if not isinstance(part, Mapping):
        return {**config, "_class_name": type(part).__name__}
    return config


def _class_name(config: Mapping[str, Any]) -> str:
    name: str = config.get("_class_name", "")
    return name


def _make(config: Mapping[str, Any], dtype: torch.dtype) -> Any:
    kind = getattr(diffusers, _class_name(config), None)
    if kind is None:
        raise ValueError(f"diffusers has no class {_class_name(config)!r}")
    return kind.from_config(dict(config)).to(dtype=dtype)


def _factor(config: Mapping[str, Any] | None) -> int:
    """Pixels of a side for each latent."""
    blocks = (config or {}).get("block_out_channels")
    return 2 ** (len(blocks) - 1) if blocks else _SIDE


def _sides(breaks: tuple[int, ...] = ()) -> tuple[Axis, ...]:
    sides = [Axis(name, 1, unit=128, least=256, breaks=breaks) for name in ("width", "height")]
    return (Axis("sequences", 1), *sides)


def _group(module: Module, axes: tuple[Axis, ...], phase: str) -> tuple[Group, Module]:
    named = PhaseOf(phase, {axis.name: (axis.name, 0) for axis in axes})
    return Group(axes, (named,), module.run), module


def _denoiser(
    config: Mapping[str, Any], dtype: torch.dtype, guidance: bool, side: int, held: Mapping[str, Any]
) -> Iterator[tuple[Group, Module]]:
    """One step. With guidance each picture is in it twice, with and without its prompt."""
    inputs = _INPUTS.get(_class_name(config))
    if inputs is None:
        known = ", ".join(_INPUTS)
        raise ValueError(f"{_class_name(config)} has no ready-made inputs ({known} have): use Traced.of")

    def call(sequences: int, width: int, height: int) -> Inputs:
        rows = 2 * sequences if guidance else sequences
        return inputs(config, dtype, (rows, -(-height // side), -(-width // side)))

    yield _group(Module(lambda: _make(config, dtype), call, phase="denoise", **held), _sides(), "denoise")


def _vae(
    config: Mapping[str, Any], dtype: torch.dtype, tiling: bool, slicing: bool, held: Mapping[str, Any]
) -> Iterator[tuple[Group, Module]]:
    side = _factor(config)

    def make() -> Any:
        vae = _make(config, dtype)
        if tiling:
            vae.enable_tiling()
        if slicing:
            vae.enable_slicing()
        return vae

    def call(sequences: int, width: int, height: int) -> Inputs:
        shape = (sequences, config.get("latent_channels", 4), -(-height // side), -(-width // side))
        return {"z": torch.zeros(shape, dtype=dtype)}

    breaks = (config.get("sample_size", 512),) if tiling else ()
    module = Module(make, call, phase="decode", method="decode", **held)
    yield _group(module, _sides(breaks), "decode")


def _unet(config: Mapping[str, Any], dtype: torch.dtype, shape: _Shape) -> Inputs:
    rows, height, width = shape
    inputs: Inputs = {
        "sample": torch.zeros((rows, config.get("in_channels", 4), height, width), dtype=dtype),
        "timestep": torch.zeros((), dtype=torch.long),
        "encoder_hidden_states": torch.zeros((rows, _TEXT, _width_of(config)), dtype=dtype),
    }
    if config.get("addition_embed_type") == "text_time":
        ids = 6
        text = config["projection_class_embeddings_input_dim"] - ids * config["addition_time_embed_dim"]
        inputs["added_cond_kwargs"] = {
            "text_embeds": torch.zeros((rows, text), dtype=dtype),
            "time_ids": torch.zeros((rows, ids), dtype=dtype),
        }
    return inputs


def _width_of(config: Mapping[str, Any]) -> int:
    width = config.get("cross_attention_dim", 1280)
    return int(width[0] if isinstance(width, (list, tuple)) else width)


def _sd3(config: Mapping[str, Any], dtype: torch.dtype, shape: _Shape) -> Inputs:
    rows, height, width = shape
    return {
        "hidden_states": torch.zeros((rows, config.get("in_channels", 16), height, width), dtype=dtype),
        "encoder_hidden_states": torch.zeros(
            (rows, _TEXT + 256, config.get("joint_attention_dim", 4096)), dtype=dtype
        ),
        "pooled_projections": torch.zeros((rows, config.get("pooled_projection_dim", 2048)), dtype=dtype),
        "timestep": torch.zeros((rows,), dtype=torch.long),
    }


def _flux(config: Mapping[str, Any], dtype: torch.dtype, shape: _Shape) -> Inputs:
    rows, height, width = shape
    patches = -(-height // 2) * -(-width // 2)
    return {
        "hidden_states": torch.zeros((rows, patches, config.get("in_channels", 64)), dtype=dtype),
        "encoder_hidden_states": torch.zeros(
            (rows, _T5_TEXT, config.get("joint_attention_dim", 4096)), dtype=dtype
        ),
        "pooled_projections": torch.zeros((rows, config.get("pooled_projection_dim", 768)), dtype=dtype),
        "timestep": torch.zeros((rows,), dtype=dtype),
        "img_ids": torch.zeros((patches, 3), dtype=dtype),
        "txt_ids": torch.zeros((_T5_TEXT, 3), dtype=dtype),
        "guidance": torch.zeros((rows,), dtype=torch.float32) if config.get("guidance_embeds") else None,
    }


_INPUTS: Final[Mapping[str, Callable[[Mapping[str, Any], torch.dtype, _Shape], Inputs]]] = {
    "UNet2DConditionModel": _unet,
    "SD3Transformer2DModel": _sd3,
    "FluxTransformer2DModel": _flux,
}
"""What one step of each class of denoiser is given."""
