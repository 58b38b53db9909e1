"""Prometheus metrics that both services have; each service adds its own to the same registry."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

SECONDS_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKENS_BUCKETS = tuple(float(1 << power) for power in range(4, 18))
"""16 to 131,072: from one short prompt to the longest sequence of a pass."""


class ServiceMetrics:
    """Request metrics of one service, in a registry of its own (two services may share a process in tests).

    Args:
        prefix: `tauscope_target` or `tauscope_drafter`.
    """

    def __init__(self, prefix: str) -> None:
        self.registry = CollectorRegistry()
        self.prefix = prefix
        self._watch_stages: Callable[[Mapping[str, float]], None] = lambda timing_ms: None
        self.requests = Counter(
            f"{prefix}_requests",
            "Requests by route, status and key",
            ("route", "status", "key"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            f"{prefix}_request_seconds",
            "Time from the first byte of a request to the last of its answer",
            ("route",),
            registry=self.registry,
            buckets=SECONDS_BUCKETS,
        )
        self.stage_seconds = Histogram(
            f"{prefix}_stage_seconds",
            "Time of the stages of a request: waiting for a pass, the pass, and what the service tells apart",
            ("stage",),
            registry=self.registry,
            buckets=SECONDS_BUCKETS,
        )
        self.in_flight = Gauge(f"{prefix}_requests_in_flight", "Requests being answered", registry=self.registry)
        self.rejected = Counter(
            f"{prefix}_rejected", "Requests answered with an error, by its code", ("code",), registry=self.registry
        )
        self.tokens = Counter(
            f"{prefix}_tokens", "Tokens accepted for compute, by key", ("key",), registry=self.registry
        )
        self.answer_bytes = Counter(
            f"{prefix}_answer_bytes", "Bytes of tensor answers, by key", ("key",), registry=self.registry
        )

    def watch_stages(self, watch: Callable[[Mapping[str, float]], None]) -> None:
        """Have stages told to somebody else as well, in the context of their request."""
        self._watch_stages = watch

    def observe_stages(self, timing_ms: Mapping[str, float]) -> None:
        """Count the times that an answer reports; names that are no times (`..._tokens`) are left out."""
        self._watch_stages(timing_ms)
        for stage, value_ms in timing_ms.items():
            if not stage.endswith("tokens"):
                self.stage_seconds.labels(stage).observe(value_ms / 1e3)

    def gauge(self, name: str, help_text: str) -> Gauge:
        """A gauge `<prefix>_<name>` in this registry."""
        return Gauge(f"{self.prefix}_{name}", help_text, registry=self.registry)

    def counter(self, name: str, help_text: str, labels: tuple[str, ...] = ()) -> Counter:
        """A counter `<prefix>_<name>` in this registry."""
        return Counter(f"{self.prefix}_{name}", help_text, labels, registry=self.registry)

    def counts(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A counter `<prefix>_<name>` that somebody else keeps, read when metrics are scraped."""
        self.registry.register(_KeptElsewhere(f"{self.prefix}_{name}", help_text, read))

    def histogram(
        self, name: str, help_text: str, *, labels: tuple[str, ...] = (), buckets: tuple[float, ...]
    ) -> Histogram:
        """A histogram `<prefix>_<name>` in this registry."""
        return Histogram(f"{self.prefix}_{name}", help_text, labels, buckets=buckets, registry=self.registry)


class _KeptElsewhere(Collector):
    """A counter whose number an object of the service keeps."""

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self._name, self._help, self._read = name, help_text, read

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Its name, asked for at registration, before anything counts."""
        yield CounterMetricFamily(self._name, self._help)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The number now."""
        yield CounterMetricFamily(self._name, self._help, value=self._read())
