"""``python -m examples.qwen_service --model /models/Qwen2.5-7B-Instruct``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import uvicorn

from .app import build


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="qwen_service", description="Chat completions of a Qwen2 model.")
    parser.add_argument("--model", help="folder of a model; without it a small one with random weights")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--grace", type=int, default=90, help="seconds after SIGTERM for what waits or runs")
    return parser.parse_args(words)


def main() -> None:
    asked = arguments()
    uvicorn.run(build(asked.model), host=asked.host, port=asked.port, timeout_graceful_shutdown=asked.grace)


if __name__ == "__main__":
    main()
