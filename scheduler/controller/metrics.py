"""Counters and gauges of one controller, for Prometheus; units in their names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily

_NAMESPACE: Final = "pertinax"
#: From one applied entry to ten seconds.
_LATENCY_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Tally:
    """A labelled counter that costs one dictionary entry to raise: for hot paths."""

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], registry: CollectorRegistry
    ) -> None:
        self._name = f"{_NAMESPACE}_{name}"
        self._text = text
        self._labels = labels
        self._counts: dict[tuple[str, ...], int] = {}
        registry.register(self)

    def add(self, *labels: str, amount: int = 1) -> None:
        """Raise the count of these label values."""
        self._counts[labels] = self._counts.get(labels, 0) + amount

    def collect(self) -> Iterator[Metric]:
        """What Prometheus' registry asks for."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in sorted(self._counts.items()):
            family.add_metric(labels, count)
        yield family


class Metrics:
    """A registry of its own, so that several controllers can live in one process (tests)."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter, gauge, tally = self._counter, self._gauge, self._tally
        self.entries = tally("entries_applied", "Log entries applied", "kind")
        self.rejections = tally("entries_rejected", "Entries that apply refused", "code")
        self.transitions = tally("transitions", "Transitions applied here", "object", "to", "cause")
        self.propose_s = self._histogram("propose_seconds", "From a proposal to its apply")
        self.plan_s = self._histogram("plan_seconds", "One placement pass")
        self.placements = tally("placements", "Placements by outcome", "outcome")
        self.reports = counter("reports_committed", "Reports of agents committed")
        self.reports_refused = counter("reports_refused", "Reports refused for now")
        self.reports_deferred = counter(
            "reports_deferred", "Reports dropped, to be sent again: too many at once"
        )
        self.inventories_wanted = counter(
            "inventories_wanted", "Inventories asked for because digests differed"
        )
        self.garbage = counter("garbage_connections", "Connections cut for what they sent")
        self.hellos = tally("hellos", "Hellos by answer", "answer")
        self.offline = tally("nodes_offline", "Nodes declared Offline", "reason")
        self.orders = tally("orders", "Orders sent to agents", "kind")
        self.takeovers = counter("takeovers", "Leaderships of this controller")
        self.loop_lag_s = gauge("loop_lag_seconds", "Lateness of the event loop's timer")
        self.apply_lag_ms = gauge(
            "apply_lag_milliseconds", "From commit to apply of the newest entry"
        )
        self.commit_index = gauge("commit_index", "Highest committed index")
        self.applied_index = gauge("applied_index", "Highest applied index")
        self.log_bytes = gauge("log_bytes", "Size of the log on disk")
        self.is_leader = gauge("is_leader", "1 while this controller leads")
        self.connections = gauge("agent_connections", "Connections on the agents' port")
        self.jobs = gauge("jobs", "Jobs by phase", "phase")
        self.nodes = gauge("nodes", "Nodes by phase", "phase")
        self.registry_size = gauge("registry_reports", "Reports waiting for their attempt")
        self.digest_agreed_index = gauge(
            "digest_agreed_index", "Newest index at which all members that answered had one state"
        )
        self.digest_mismatches = counter(
            "digest_mismatches", "Comparisons in which the members' states differed: an alarm"
        )
        self.replicated = gauge("replicated_count", "Counters of the replicated state", "name")

    def text(self) -> str:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, namespace=_NAMESPACE, registry=self.registry)

    def _tally(self, name: str, text: str, *labels: str) -> Tally:
        return Tally(name, text, labels, self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace=_NAMESPACE, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            name,
            text,
            namespace=_NAMESPACE,
            registry=self.registry,
            buckets=_LATENCY_BUCKETS_S,
        )
