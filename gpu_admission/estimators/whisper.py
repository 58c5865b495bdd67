"""``Whisper``: transcription, whose memory grows with beams and batched windows, not with time.

Owns the windows of 30 seconds: a long file runs window by window, so that its length only
counts up to the number of windows that run at once.
"""

from __future__ import annotations

import math

from gpu_admission.estimators.model.activations import AttentionPath, decoder_cost, encoder_cost
from gpu_admission.estimators.model.config import ConfigSource, ModelConfig
from gpu_admission.estimators.model.dtypes import DType, whole_bytes
from gpu_admission.estimators.terms import clamp, render
from gpu_admission.request import RequestInfo
from gpu_admission.types import Estimate, Workload

_WINDOW_SECONDS = 30
_FRAMES_PER_POSITION = 2


class Whisper:
    """Bytes that one transcription adds: the larger of encoding its windows and decoding them.

    Make one with ``from_config``.
    """

    def __init__(
        self, *, encoding: int, decoding: int, self_cache: int, cross_cache: int, beams: int, windows: int
    ) -> None:
        if beams < 1 or windows < 1:
            raise ValueError(f"beams and windows must be at least 1, got {beams!r} and {windows!r}")
        self.encoding = encoding
        """For each window, while the encoder runs."""
        self.decoding = decoding
        """For each beam and step: activations and logits."""
        self.self_cache = self_cache
        """For each beam: keys and values of the tokens written."""
        self.cross_cache = cross_cache
        """For each window: keys and values of the encoder's output, and the output itself."""
        self.beams = beams
        self.windows = windows

    @classmethod
    def from_config(
        cls,
        config: ConfigSource,
        *,
        dtype: DType | None = None,
        attention: AttentionPath = "sdpa",
        beams: int = 1,
        windows: int = 1,
        positions: int | None = None,
    ) -> Whisper:
        """The model of a Hugging Face ``config`` (a path, a ``dict``, or ``model.config``).

        ``beams`` are the server's own, a request can ask for more; ``windows`` how many run at once in
        pipelines that batch; ``positions`` the cells of a self cache, by default the model's limit
        (448; whisper.cpp pads to 512). Raises ``ValueError`` when the model has no encoder.
        """
        model = ModelConfig.read(config)
        name = model.computes_in(dtype)
        encoder, cost = model.encoder, encoder_cost(model, name, attention)
        if encoder is None or cost is None or not encoder.positions:
            raise ValueError(
                f"Whisper needs a model with an audio encoder, not model_type {model.model_type!r}"
            )
        size, step = whole_bytes(name, option="dtype"), decoder_cost(model, name, attention)
        frames = _FRAMES_PER_POSITION * encoder.positions
        convolved = 2 * frames * encoder.hidden_size * size
        attended = encoder.positions * cost.activations + encoder.positions**2 * cost.score
        stored = sum(a.heads * (a.key_dim + a.value_dim) for layer in model.layers if (a := layer.attention))
        crossed = sum(a.heads * (a.key_dim + a.value_dim) for layer in model.layers if (a := layer.cross))
        return cls(
            encoding=max(convolved, attended),
            decoding=step.activations + model.vocab_size * (size + 4),
            self_cache=(positions or model.max_positions or 448) * stored * size,
            cross_cache=encoder.positions * (crossed * size + cost.hidden),
            beams=beams,
            windows=windows,
        )

    def __call__(self, info: RequestInfo, /) -> Estimate:
        return self.estimate(info.workload)

    def estimate(self, workload: Workload) -> Estimate:
        """Bytes of ``workload``: each window with a cross cache for every beam, as transformers copies
        it; ``low`` is with one for all its beams. 0 seconds of audio: not known, all windows count."""
        rows = max(1, workload.sequences, self.beams)
        windows = self.windows
        if workload.audio_seconds > 0 and windows > 1:
            windows = min(windows, math.ceil(min(workload.audio_seconds, 1e9) / _WINDOW_SECONDS))
        encoding = windows * self.encoding
        decoding = windows * rows * (self.decoding + self.self_cache)
        high = max(encoding, decoding + windows * rows * self.cross_cache)
        low = max(encoding, decoding + windows * self.cross_cache)
        if high == encoding:
            parts = {"encoder activations": encoding}
        else:
            parts = {
                "cross-attention cache": windows * rows * self.cross_cache,
                "self-attention cache": windows * rows * self.self_cache,
                "activations and logits": windows * rows * self.decoding,
            }
        return Estimate(clamp(high), clamp(low), "device", parts)

    def explain(self, workload: Workload) -> str:
        """The terms of ``workload``, as text."""
        return render("Whisper", self.estimate(workload))

    def __repr__(self) -> str:
        caches = f"cross={self.cross_cache}, self={self.self_cache}"
        return f"Whisper({caches}, beams={self.beams}, windows={self.windows})"
