"""Queue and passes of a compute loop as metrics, read when they are scraped."""

from typing import Any

from tauscope_serving.compute import ComputeLoop
from tauscope_serving.metrics import ServiceMetrics


def publish_loop(metrics: ServiceMetrics, loop: ComputeLoop[Any, Any], *, cost: str) -> None:
    """Add the gauges of a loop.

    Args:
        metrics: where to.
        loop: what they tell about.
        cost: what a job's cost counts, plural: it names the gauge `queued_<cost>`.
    """
    metrics.gauge("queued_requests", "Requests that wait for a pass").set_function(lambda: loop.state().queued)
    metrics.gauge(f"queued_{cost}", f"{cost.capitalize()} that wait for a pass").set_function(
        lambda: loop.state().queued_cost
    )
    metrics.gauge("passes", "Passes since the start").set_function(lambda: loop.state().passes)
    metrics.gauge("failed_passes", "Passes in which every job failed").set_function(lambda: loop.state().failed_passes)
    metrics.gauge("pass_busy_seconds", "How long the running pass has run").set_function(lambda: loop.state().busy_s)
