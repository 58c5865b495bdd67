"""From settings to a budget: one of this process alone, or one that it shares with others.

Owns which settings the budget goes by. Who may start under them is the ledger's business.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gpu_admission.admission.locked import LockedLedger
from gpu_admission.admission.seam import Budget, Woken
from gpu_admission.budget.ledger import Ledger
from gpu_admission.budget.placement import POLICIES
from gpu_admission.settings import Settings
from gpu_admission.shared.gossip import Use


def budget_of(
    settings: Settings, given: Collection[str], capacity: Any, devices: int, woken: Woken, use: Use
) -> Budget:
    """The budget of ``capacity`` on each of so many ``devices``; measured unless it is given in bytes.

    ``given``: the names of settings that were given. ``use()`` is what ``Sharing`` expects. Nothing is
    opened yet.
    """
    size = usable(settings, capacity) if isinstance(capacity, int) else 0
    terms: dict[str, Any] = {
        "lanes": settings.lanes,
        "max_waiting": settings.max_waiting,
        "max_waiting_per_flow": _per_flow(settings),
        "max_running": settings.max_running,
        "max_bypass": settings.max_bypass,
        "max_bypass_wait": settings.max_bypass_wait,
    }
    if settings.shared is None:
        return LockedLedger(Ledger([size] * devices, placement=settings.placement, **terms), woken)
    terms |= {"capacities": (size,) * devices, "lease_ttl": settings.lease_ttl}
    return _shared(settings, given, terms, woken, use)


def _shared(
    settings: Settings, given: Collection[str], terms: dict[str, Any], woken: Woken, use: Use
) -> Budget:
    # Imported here: most budgets are shared with nobody, and need none of it.
    from gpu_admission.admission.sharing import Sharing
    from gpu_admission.shared.operations import Terms

    placement = next(name for name, policy in POLICIES.items() if policy is settings.placement)
    said = Terms(placement=placement, **terms, defaults=_defaults(given))
    return Sharing(
        settings.shared,
        said,
        woken,
        fallback=settings.shared_fallback,
        use=use,
        devices=settings.devices,
    )


def _defaults(given: Collection[str]) -> tuple[str, ...]:
    """The names of those terms that nobody set. A capacity in bytes is always given."""
    from gpu_admission.shared.operations import TERMS

    known = {"capacities", "defaults", *given}
    if "flow" in given:
        known.add("max_waiting_per_flow")  # which follows from it
    return tuple(name for name in TERMS if name not in known)


def usable(settings: Settings, capacity: int) -> int:
    """How much of a ``capacity`` in bytes may be leased."""
    return int(capacity * settings.overcommit * (1 - (settings.margin or 0.0)))


def _per_flow(settings: Settings) -> int | None:
    if settings.max_waiting_per_flow is None and settings.flow is not None:
        return max(1, settings.max_waiting // 2)
    return settings.max_waiting_per_flow
