"""What the driver reports of a broken card: uncorrected ECC errors, failed rows, Xids.

Owns the choice of what is sticky. An Xid that the driver blames on one application is left
out: if it is ours, the app's own exception says so; if it is another's, it does not concern
us. Memory and temperature are in ``nvml``.
"""

from __future__ import annotations

from typing import Any

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 94, 109})
"""Errors of one process's work, contained to it (NVIDIA's Xid catalogue)."""
HARMLESS_XIDS = frozenset({63, 92})
"""A row was remapped, or corrected errors are frequent: nothing is lost."""


class FaultWatch:
    """Faults of one card since this watch began. What the driver does not support is not reported."""

    def __init__(self, nvml: Any, card: Any) -> None:
        self._nvml = nvml
        self._card = card
        # An older pynvml lacks some of the functions.
        self._untold = (nvml.NVMLError, AttributeError)
        self._xids: set[int] = set()
        self._uncorrected = self._count_uncorrected()
        self._events = self._listen()

    def faults(self) -> tuple[str, ...]:
        """One short text for each fault, in a fixed order; a fault stays once it was seen."""
        self._collect_xids()
        found = [f"Xid {xid}" for xid in sorted(self._xids)]
        now = self._count_uncorrected()
        if now is not None and self._uncorrected is not None and now > self._uncorrected:
            found.append(f"{now - self._uncorrected} uncorrected ECC errors")
        if self._row_remapping_failed():
            found.append("row remapping failed")
        return tuple(found)

    def _count_uncorrected(self) -> int | None:
        nvml = self._nvml
        try:
            count: int = nvml.nvmlDeviceGetTotalEccErrors(
                self._card, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
        except self._untold:
            return None
        return count

    def _row_remapping_failed(self) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetRemappedRows(self._card)[3])
        except self._untold:
            return False

    def _listen(self) -> Any:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(self._card, nvml.nvmlEventTypeXidCriticalError, events)
        except self._untold:
            return None
        return events

    def _collect_xids(self) -> None:
        """Take the events that are there; waits for none (a timeout of 0 ms)."""
        try:
            while self._events is not None:
                xid = int(self._nvml.nvmlEventSetWait_v2(self._events, 0).eventData)
                if xid not in APPLICATION_XIDS | HARMLESS_XIDS:
                    self._xids.add(xid)
        except self._nvml.NVMLError_Timeout:
            return
        except self._untold:
            self._events = None
