"""The memory limit that CUDA MPS sets on a client process, by the environment.

NVIDIA's documentation: ``CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G,1=512M"``, devices numbered as this
process's CUDA counts; sizes end in ``G`` or ``M``. The driver still shows the whole card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
_LIMIT = re.compile(r"\s*(\d+)\s*=\s*(\d+)\s*([GMK]?)B?\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def allowance(index: int | None, env: Mapping[str, str]) -> int | None:
    """Bytes that this process may use of ``cuda:index``; ``None`` where no limit is set."""
    for part in env.get(VARIABLE, "").split(","):
        limit = _LIMIT.fullmatch(part)
        if limit is not None and int(limit[1]) == index:
            return int(limit[2]) * _UNITS[limit[3].lower()]
    return None
