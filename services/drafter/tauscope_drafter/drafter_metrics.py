"""Metrics by drafter: how often each is asked, for how many anchors, and what that costs."""

from collections.abc import Mapping

from tauscope_serving.metrics import ServiceMetrics

COMPUTE = ("fuse", "draft")
"""Stages on the compute thread; reading states is time of the target service and of the network."""


class DrafterMetrics:
    """Counters with the label `drafter`. Names are the operator's: those of the command line and of `POST /drafters`.

    Args:
        metrics: of the service.
    """

    def __init__(self, metrics: ServiceMetrics) -> None:
        self._metrics = metrics
        self._drafts = metrics.counter("drafts", "Requests drafted, by drafter", ("drafter",))
        self._anchors = metrics.counter("anchors", "Anchors drafted, by drafter", ("drafter",))
        self._seconds = metrics.counter("draft_seconds", "Time of the compute thread, by drafter", ("drafter",))

    def observe(self, drafter: str, num_anchors: int, timing_ms: Mapping[str, float]) -> None:
        """Count one answer."""
        self._drafts.labels(drafter).inc()
        self._anchors.labels(drafter).inc(num_anchors)
        self._seconds.labels(drafter).inc(sum(timing_ms.get(stage, 0.0) for stage in COMPUTE) / 1e3)
        self._metrics.observe_stages(timing_ms)
