"""Which lane and flow a request goes to: the pickers of the settings asked, and what follows where one fails.

Owns that no request is lost by a picker. When they are asked is ``intake``'s business.
"""

from __future__ import annotations

from typing import Any

from gpu_admission.admission import Admission
from gpu_admission.errors import Rejected, UnreadableBody
from gpu_admission.request import RequestInfo
from gpu_admission.runtime.failure import log_failure


def lane_of(admission: Admission, route: str, info: RequestInfo) -> int:
    """The lane that the picker names; the last one, where what the client sent makes it fail."""
    picker = admission.settings.lane
    if picker is None:
        return 0
    try:
        name = picker(info)
    except UnreadableBody:
        return last_lane(admission)
    except Rejected:
        raise  # its body is too large when unpacked
    except Exception as error:
        log_failure(f"lane failed on {route}", error, "the last lane is taken")
        return last_lane(admission)
    return admission.entrance.lane_index(name if name in admission.lane_names else None)


def flow_of(admission: Admission, route: str, info: RequestInfo) -> Any:
    """The key that the picker names; one that can't be a key counts as ``None``, no flow."""
    picker = admission.settings.flow
    if picker is None:
        return None
    try:
        flow = picker(info)
    except UnreadableBody:
        return ""
    except Rejected:
        raise
    except Exception as error:
        log_failure(f"flow failed on {route}", error, "the default is taken")
        return ""
    return _key(flow)


def _key(flow: Any) -> Any:
    try:
        hash(flow)
    except TypeError:
        return ""
    return "" if flow is None else flow


def lane_of_unreadable(admission: Admission) -> int | None:
    """The lane of a body that can't be read, where the picker would have looked at it."""
    picker = admission.settings.lane
    if picker is None or not getattr(picker, "needs_body", True):
        return None
    return last_lane(admission)


def last_lane(admission: Admission) -> int:
    return len(admission.lane_names) - 1
