"""``metrics_app``: an app to mount that answers a Prometheus scrape, for one process or all workers.

Owns what several processes need: their files are read together, and those of dead workers are
dropped, with what those still held counted as lost. No web server tells us that a worker has
died, so each scrape checks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from gpu_admission.observe.families import Families
from gpu_admission.observe.gateway import WithGatewayNames
from gpu_admission.types import ASGIApp, Receive, Scope, Send

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

READINGS = 10
"""A worker that begins makes its files empty, and sizes them next: a scrape in between reads again."""
_LIVE = re.compile(r"gauge_live[a-z]+_(\d+)\.db")


def metrics_app(*, registry: CollectorRegistry | None = None, inference_gateway: bool = False) -> ASGIApp:
    """The metrics of ``registry``, the default one if ``None``: ``app.mount("/metrics", metrics_app())``.

    Where ``PROMETHEUS_MULTIPROC_DIR`` is set, every worker answers for all of them.
    ``inference_gateway=True`` adds the three gauges by which the Gateway API inference extension
    chooses a server, under vLLM's names; leave it out if an engine beside it exports its own.
    """
    import prometheus_client

    registry = prometheus_client.REGISTRY if registry is None else registry
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if folder is None:
        one_process: ASGIApp = prometheus_client.make_asgi_app(_named(registry, inference_gateway))
        return one_process
    families = Families.of(registry)
    from prometheus_client.multiprocess import MultiProcessCollector

    async def all_processes(scope: Scope, receive: Receive, send: Send) -> None:
        drop_dead(Path(folder), families)
        families.refresh()
        together = prometheus_client.CollectorRegistry()
        MultiProcessCollector(together, folder)  # type: ignore[no-untyped-call]
        app = prometheus_client.make_asgi_app(_named(together, inference_gateway))
        for reading in range(1, READINGS + 1):
            try:
                await app(scope, receive, send)
                return
            except struct.error:
                if reading == READINGS:
                    raise
                await anyio.sleep(0.01)

    return all_processes


def _named(registry: CollectorRegistry, inference_gateway: bool) -> CollectorRegistry:
    """``registry``, and with it the gateway's names where they are asked for."""
    if not inference_gateway:
        return registry
    from prometheus_client import CollectorRegistry

    together = CollectorRegistry()
    together.register(WithGatewayNames(registry))
    return together


def drop_dead(folder: Path, families: Families) -> None:
    """Remove the gauges that dead workers left in ``folder``; their counters stay."""
    for path in folder.glob("gauge_live*.db"):
        match = _LIVE.fullmatch(path.name)
        if match and not _is_alive(int(match[1])):
            for budget, lost in _remove(path).items():
                families.leases_lost.labels(budget).inc(lost)


def _remove(path: Path) -> Counter[str]:
    """Remove a file, and return the leases that were open in it, by budget.

    It is renamed first, so that only one of several workers scraped at once counts it.
    """
    taken = path.with_suffix(".dead")
    lost: Counter[str] = Counter()
    with contextlib.suppress(FileNotFoundError):
        path.rename(taken)
        for name, labels, value in _values(taken):
            if name == "gpu_admission_running_requests":
                lost[labels["budget"]] += int(value)
        taken.unlink()
    return lost


def _values(path: Path) -> Iterator[tuple[str, dict[str, str], float]]:
    from prometheus_client.mmap_dict import MmapedDict

    for key, value, *_ in MmapedDict.read_all_values_from_file(str(path)):  # type: ignore[no-untyped-call]
        _, name, labels, _ = json.loads(key)
        yield name, labels, value


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether it is a killed worker that its parent has not reaped yet (seen on Linux only)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"
