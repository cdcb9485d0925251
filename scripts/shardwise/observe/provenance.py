"""Where a result comes from, as other programs read it: ``ro-crate-metadata.json``.

It is a Workflow Run Crate (https://w3id.org/ro/wfrun/workflow) on RO-Crate 1.1, made from the plan
and the summary: it says what was run, when and how it ended, and names the files that say the rest.
It says nothing of the moment at which it is written, so the same run gives the same bytes.
"""

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardwise.files.commit import commit
from shardwise.observe.observation import Observation
from shardwise.observe.verdict import verdict
from shardwise.plan.plan import Made, Plan
from shardwise.records.receipts import SumReceipt
from shardwise.units import count

_CRATE = "https://w3id.org/ro/crate/1.1"
_WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    _WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
_STATUS = {"proven": "Completed", "unproven": "Completed", "unfinished": "Active"}
"""The status of a run by its verdict; any other verdict means that it has failed."""

_FORMATS = {".npy": "application/octet-stream", ".json": "application/json", ".html": "text/html",
            ".tsv": "text/tab-separated-values", ".prom": "text/plain"}  # fmt: skip

Entity = dict[str, Any]


def write(seen: Observation) -> None:
    """Commit ``ro-crate-metadata.json``; without a plan there is no run to describe."""
    if seen.plan is not None:
        graph = _graph(seen, seen.plan)
        text = json.dumps({"@context": f"{_CRATE}/context", "@graph": graph}, indent=1)
        with commit(seen.results.crate) as file:
            file.write(f"{text}\n".encode())


class _Graph(dict[str, Entity]):
    """Entities by their ids."""

    def entity(self, ident: str, kind: str | list[str], **properties: Any) -> Entity:
        """Add an entity, without properties that have no value; return a reference to it."""
        held = {key: value for key, value in properties.items() if value not in (None, [], "")}
        self[ident] = {"@id": ident, "@type": kind, **held}
        return {"@id": ident}

    def files(self, *paths: Path, **properties: Any) -> list[Entity]:
        """Add those of some files that are in the results folder."""
        return [
            self.entity(path.name, "File", name=path.name, encodingFormat=_FORMATS[path.suffix],
                        **properties)
            for path in paths if path.exists()
        ]  # fmt: skip


def _graph(seen: Observation, plan: Plan) -> list[Entity]:
    """All entities; those that the specification requires come first."""
    graph, results, problem, made = _Graph(), seen.results, plan.problem, plan.facts.made
    summary = None if seen.flaw else seen.summary  # else it is of other products
    asked = graph.files(results.plan, results.plan_facts, results.sources)
    found, workflow = _found(graph, seen, summary), _workflow(graph, summary or made)
    began = min((one.started for one in seen.done if one.started is not None), default=None)
    ended = summary.finished if summary else None
    judged, what = verdict(seen), f"{count(problem.matrices, 'product')} {problem.product}"
    run = graph.entity(
        "#run", "CreateAction", name=f"Shardwise run of {what}", description=judged.words,
        instrument=workflow, object=asked, result=found, startTime=_iso(began), endTime=_iso(ended),
        actionStatus=f"http://schema.org/{_STATUS.get(judged.kind, 'Failed')}ActionStatus",
    )  # fmt: skip
    profiles = [graph.entity(url, "CreativeWork", name=title, version=number)
                for url, (title, number) in _PROFILES.items()]  # fmt: skip
    published = ended or began or (made.time if made else None)
    graph.entity(
        "./", "Dataset", name=f"Shardwise: {what}", conformsTo=profiles, mainEntity=workflow,
        description="A results folder of Shardwise: a sum over products, and its receipts.",
        datePublished=_iso(published) or _iso(0.0), mentions=[run],
        hasPart=[workflow, *asked, *found],
    )  # fmt: skip
    graph.entity(
        results.crate.name, "CreativeWork", about={"@id": "./"},
        conformsTo=[{"@id": _CRATE}, {"@id": _WORKFLOW_CRATE}],
    )  # fmt: skip
    return list(reversed(graph.values()))


def _found(graph: _Graph, seen: Observation, summary: SumReceipt | None) -> list[Entity]:
    """What the run has made: the results with their checksums, and the folder of the products."""
    results = seen.results
    found = graph.files(results.ledger, results.summary, results.report, results.metrics)
    for name, facts in summary.files.items() if summary else ():
        checksum = f"shardwise-checksum:{facts.checksum}"
        found += graph.files(
            results.statistic(name), contentSize=str(facts.bytes), identifier=checksum
        )
    size = f"{len(seen.done)} of {count(len(seen.shards), 'shard')}"
    products = graph.entity(
        f"{results.products.name}/", "Dataset", name="products of all shards",
        description=f"{size}; one row per shard: {results.ledger.name}",
    )  # fmt: skip
    return [*found, products]


def _workflow(graph: _Graph, origin: SumReceipt | Made | None) -> Entity:
    """The workflow, by the name and version that package managers use."""
    version = origin.versions.get("shardwise", "unknown") if origin else "unknown"
    code = f" ({origin.commit})" if origin and origin.commit else ""
    snakemake = graph.entity(
        "https://w3id.org/workflowhub/workflow-ro-crate#snakemake", "ComputerLanguage",
        name="Snakemake", url="https://snakemake.readthedocs.io",
    )  # fmt: skip
    return graph.entity(
        f"pkg:generic/shardwise@{version}#workflow/Snakefile",
        ["File", "SoftwareSourceCode", "ComputationalWorkflow"], name="Shardwise",
        version=f"{version}{code}", programmingLanguage=snakemake,
    )  # fmt: skip


def _iso(moment: float | None) -> str | None:
    """A moment as text; None if it is unknown, or no calendar has it."""
    with suppress(ArithmeticError, OSError, TypeError, ValueError):
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")  # type: ignore[arg-type]
    return None
