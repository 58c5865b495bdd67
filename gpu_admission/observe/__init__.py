"""What an operator sees: metrics, the status page, logs, traces, the decision log."""

from gpu_admission.admission.profiler import Profiler
from gpu_admission.admission.report import Report
from gpu_admission.admission.shadow import ShadowSummary
from gpu_admission.http.request_id import current_request_id
from gpu_admission.observe.batches import BatchMetrics
from gpu_admission.observe.decisions import DecisionLog
from gpu_admission.observe.logs import Logs, RequestIdFilter
from gpu_admission.observe.metrics import Metrics
from gpu_admission.observe.otel import OpenTelemetry
from gpu_admission.observe.scrape import metrics_app
from gpu_admission.observe.status import local_only, status_app

__all__ = [
    "BatchMetrics",
    "DecisionLog",
    "Logs",
    "Metrics",
    "OpenTelemetry",
    "Profiler",
    "Report",
    "RequestIdFilter",
    "ShadowSummary",
    "current_request_id",
    "local_only",
    "metrics_app",
    "status_app",
]
