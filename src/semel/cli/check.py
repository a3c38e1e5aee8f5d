"""``semel worker --check``: reports what semel would do with a cluster's connectors."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.markup import escape
from rich.table import Table

from semel.cli.console import console
from semel.config.worker import WorkerConfig
from semel.core.errors import ConfigError


def check_worker(
    config: WorkerConfig, connectors: Sequence[Mapping[str, str]], *, as_json: bool
) -> None:
    """Print a verdict on each connector; the exit code is 2 if one cannot run."""
    from semel.config.cluster import ClusterConfig
    from semel.kafka.clients import worker_client
    from semel.worker.cluster.check import check, check_alone

    if isinstance(config, ClusterConfig):
        found = check(config, worker_client(config))
    else:
        found = check_alone(config, connectors)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        out = console()
        for verdict in found.connectors:
            table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
            table.add_row("[bold]connector[/]", f"[bold]{escape(verdict.name)}[/]")
            facts = {
                "class": verdict.connector_class,
                "state": verdict.state,
                "delivery": verdict.guarantee,
                "continues at": verdict.begins,
                "fails": verdict.problem,
            }
            for name, fact in facts.items():
                if fact:
                    table.add_row(name, escape(fact))
            for warning in verdict.warnings:
                table.add_row("[yellow]warning[/]", escape(warning))
            out.print(table)
            out.print()
        bad = sum(1 for verdict in found.connectors if verdict.problem)
        out.print(f"{len(found.connectors)} connectors, {bad} of which cannot run here")
        if found.members:
            out.print(
                f"[yellow]group {escape(config.originals['group.id'])} has members now[/]: "
                f"{escape(', '.join(found.members))}. Stop those of Kafka Connect first"
            )
    if any(verdict.problem for verdict in found.connectors):
        sys.exit(ConfigError.exit_code)
