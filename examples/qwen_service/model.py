"""The model behind the service: real Qwen2 code, with real weights or a few random ones."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    StoppingCriteriaList,
)

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Answer:
    """How a generation ended."""

    new_tokens: int
    reached_end: bool


@dataclass(frozen=True)
class Model:
    """A model with its tokenizer: what the service asks of both."""

    network: Any
    tokenizer: Any
    name: str

    @property
    def context(self) -> int:
        """Tokens of the longest prompt and answer together."""
        return int(self.network.config.max_position_embeddings)

    def prompt(self, messages: Sequence[Mapping[str, str]]) -> torch.Tensor:
        """The tokens of a conversation, ready to be answered: one row."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: torch.Tensor = self.tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        return ids

    @torch.inference_mode()
    def answer(
        self, prompt: torch.Tensor, streamer: Any, stop: threading.Event, **sampling: float | bool
    ) -> Answer:
        """Generate into ``streamer`` until the end, the limit or ``stop``. Blocks: call it in a thread."""

        def stopped(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return torch.full((ids.shape[0],), stop.is_set(), device=ids.device, dtype=torch.bool)

        try:
            rows = self.network.generate(
                prompt.to(self.network.device),
                attention_mask=torch.ones_like(prompt, device=self.network.device),
                stopping_criteria=StoppingCriteriaList([stopped]),
                streamer=streamer,
                pad_token_id=self.tokenizer.pad_token_id,
                **sampling,
            )
        finally:
            streamer.end()  # whoever reads it hears of an error, too
        new = rows[0, prompt.shape[1] :]
        ends = self.network.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        return Answer(len(new), bool(len(new)) and int(new[-1]) in ends)


def load(path: str | None) -> Model:
    """The model in the folder ``path``; without one a small Qwen2 that has learned nothing."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if path is None:
        tokenizer = _bytes_as_tokens()
        return Model(_random(tokenizer).to(device).eval(), tokenizer, "qwen2-random")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    network: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    return Model(network.to(device).eval(), tokenizer, path.rstrip("/").rpartition("/")[2])


def _random(tokenizer: Any) -> Any:
    """13 MB of weights that write lower-case letters and spaces."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
        dtype="float32",
    )
    torch.manual_seed(0)
    network = Qwen2ForCausalLM(config)
    letters = {tokenizer.convert_tokens_to_ids(letter) for letter in "abcdefghijklmnopqrstuvwxyzĠ"}
    network.generation_config.suppress_tokens = sorted(set(range(len(tokenizer))) - letters)
    return network


def _bytes_as_tokens() -> Any:
    """Each byte is a token: a vocabulary that needs no file."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=CHAT)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|im_start|>"], "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}
    )
    return tokenizer
