"""What the replay service tells of itself: counters for a person or a client, metrics for the writer."""

from collections.abc import Mapping
from dataclasses import dataclass

from protos.records import Version
from protos.telemetry import Metrics, last
from replay.table import Table


@dataclass(frozen=True, slots=True)
class TableInfo:
    """Always inserted == held + consumed + sum(evicted)."""

    inserted: int
    held: int
    consumed: int
    evicted: Mapping[str, int]  # by reason
    nbytes: int  # of the distinct copies that the items keep alive


@dataclass(frozen=True, slots=True)
class ReplayInfo:
    version: Version  # the weights in service
    tables: Mapping[str, TableInfo]  # by name
    leases: Mapping[str, int]  # leased, sealed, short, expired, abandoned; open: those that are out
    appends: Mapping[str, int]  # by outcome; grouped, discarded: what became of the stored
    in_flight: int  # groups admitted and not yet trained on or dropped
    sampled: int  # policy groups in the learner's hands
    copies: int
    nbytes: int  # of all copies


def table_info(table: Table) -> TableInfo:
    account = table.account
    return TableInfo(account.inserted, account.held, account.consumed, dict(account.evicted), table.nbytes)


def to_metrics(info: ReplayInfo) -> Metrics:
    """Counters since the start of the run, each `last`: `replay/policy/evicted/stale`, `replay/leases/short`, ..."""
    metrics: Metrics = {"replay/bytes": last(info.nbytes), "replay/in_flight": last(info.in_flight)}
    for name, table in info.tables.items():
        metrics[f"replay/{name}/held"] = last(table.held)
        metrics[f"replay/{name}/inserted"] = last(table.inserted)
        metrics[f"replay/{name}/consumed"] = last(table.consumed)
        metrics |= {f"replay/{name}/evicted/{reason}": last(count) for reason, count in table.evicted.items()}
    metrics |= {f"replay/leases/{name}": last(count) for name, count in info.leases.items()}
    metrics |= {f"replay/appends/{name}": last(count) for name, count in info.appends.items()}
    return metrics
