"""``python -m tests.rayserver PORT``: ``examples/ray_serve.py`` on a Ray of its own, until stdin closes."""

from __future__ import annotations

import os
import sys

import ray
from ray import serve


def main(port: int) -> None:
    passed = {name: os.environ[name] for name in ("SHARED_FOLDER", "GPU_SHARE", "PYTHONPATH")}
    ray.init(num_cpus=4, include_dashboard=False, runtime_env={"env_vars": passed})
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    from examples.ray_serve import service

    serve.run(service)
    print("serving", flush=True)
    sys.stdin.read()
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
