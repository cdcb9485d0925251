"""Where a result comes from, as other programs read it: ``ro-crate-metadata.json``.

It is a Workflow Run Crate (https://w3id.org/ro/wfrun/workflow) on RO-Crate 1.1, made from the plan,
the summary and the receipts. It says nothing of the moment at which it is written, so the same run
gives the same bytes. What counts are the plan and the receipts; the crate repeats and names them.
"""

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.files.commit import commit
from shardwise.observe.observation import Observation
from shardwise.observe.verdict import verdict
from shardwise.plan.plan import Plan
from shardwise.records import receipts
from shardwise.records.receipts import ProductReceipt
from shardwise.units import count

MOST_LISTED = 1000
"""Shards, and input files, that are listed one by one; of more the crate has the number."""

_CRATE = "https://w3id.org/ro/crate/1.1"
_WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    _WORKFLOW_CRATE: ("Workflow RO-Crate", "1.0"),
}
_PARAMETER = "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"
_STATUS = {"proven": "Completed", "unproven": "Completed", "unfinished": "Active"}
"""How a run stands, by the verdict on it; any other verdict: it has failed."""

_FORMATS = {".npy": "application/octet-stream", ".json": "application/json", ".html": "text/html",
            ".tsv": "text/tab-separated-values", ".prom": "text/plain"}  # fmt: skip

Entity = dict[str, Any]


def write(seen: Observation) -> None:
    """Commit ``ro-crate-metadata.json``; where there is no plan, there is no run to speak of."""
    if seen.plan is not None:
        with commit(seen.results.crate) as file:
            file.write(text(seen, seen.plan).encode())


def text(seen: Observation, plan: Plan) -> str:
    """The crate of a results folder, as JSON-LD."""
    graph = _Crate(seen, plan).entities()
    return json.dumps({"@context": f"{_CRATE}/context", "@graph": graph}, indent=1) + "\n"


class _Crate:
    """The entities that describe one results folder."""

    def __init__(self, seen: Observation, plan: Plan) -> None:
        self._seen, self._plan, self._results = seen, plan, seen.results
        self._summary = None if seen.flaw else seen.summary  # else it is of other products
        self._entities: dict[str, Entity] = {}

    def entities(self) -> list[Entity]:
        """All entities; first those that the specification asks for."""
        name = f"{count(self._plan.problem.matrices, 'product')} {self._plan.problem.product}"
        judged, files, workflow = verdict(self._seen), self._files(), self._workflow()
        shards = self._shards(workflow)
        began, ended = self._times()
        run = self._add(
            "#run", "CreateAction", name=f"Shardwise run of {name}", description=judged.words,
            instrument=workflow, object=[*self._inputs(), *self._config(workflow)],
            result=[*files, shards], startTime=began, endTime=ended,
            actionStatus=f"http://schema.org/{_STATUS.get(judged.kind, 'Failed')}ActionStatus",
            additionalProperty=self._makers(),
        )  # fmt: skip
        profiles = [
            self._add(url, "CreativeWork", name=title, version=version)
            for url, (title, version) in _PROFILES.items()
        ]
        made = self._plan.facts.made
        self._add(
            "./", "Dataset", name=f"Shardwise: {name}", conformsTo=profiles, mainEntity=workflow,
            description="A results folder of Shardwise: a sum over products, and its receipts.",
            datePublished=ended or began or _iso(made.time if made else 0.0) or _iso(0.0),
            mentions=[run, *({"@id": key} for key in self._entities if key.startswith("#shard/"))],
            hasPart=[workflow, *files, shards],
        )  # fmt: skip
        self._add(
            self._results.crate.name, "CreativeWork", about={"@id": "./"},
            conformsTo=[{"@id": _CRATE}, {"@id": _WORKFLOW_CRATE}],
        )  # fmt: skip
        return list(reversed(self._entities.values()))

    def _add(self, ident: str, kind: str | list[str], **properties: Any) -> Entity:
        """Add an entity without the properties that have no value; a reference to it comes back."""
        told = {key: value for key, value in properties.items() if value not in (None, [], "")}
        self._entities[ident] = {"@id": ident, "@type": kind, **told}
        return {"@id": ident}

    def _file(self, path: Path, size: int | None = None, checksum: str | None = None) -> Entity:
        """A file of the results folder. ``checksum`` is of its elements, as receipts have it."""
        return self._add(
            path.relative_to(self._results.root).as_posix(), "File", name=path.name,
            contentSize=None if size is None else str(size),
            identifier=checksum and f"shardwise-checksum:{checksum}",
            encodingFormat=_FORMATS[path.suffix],
        )  # fmt: skip

    def _files(self) -> list[Entity]:
        """The files at the top of the folder that are there."""
        results, arrays = self._results, self._summary.files if self._summary else {}
        plain = (results.plan, results.plan_facts, results.sources, results.ledger,
                 results.summary, results.report, results.metrics)  # fmt: skip
        found = [self._file(path) for path in plain if path.exists()]
        for name, facts in arrays.items():
            found.append(self._file(results.statistic(name), facts.bytes, facts.checksum))
        return found

    def _shards(self, workflow: Entity) -> Entity:
        """The folder of the products; a file, a receipt and an action for each shard, if few."""
        done, every = self._seen.done, len(self._plan.shards)
        parts: list[Entity] = []
        if every <= MOST_LISTED:
            for one in done:
                with suppress(ShardwiseError):  # it may have been replaced since the look
                    receipt = receipts.read(self._results.receipt(one.shard), ProductReceipt)
                    parts += self._shard(receipt, workflow)
        folder = self._results.products
        size = f"{len(done)} of {count(every, 'shard')}"
        return self._add(
            f"{folder.name}/", "Dataset", name="products of all shards",
            description=f"{size}; one row per shard: {self._results.ledger.name}", hasPart=parts,
        )  # fmt: skip

    def _shard(self, receipt: ProductReceipt, workflow: Entity) -> list[Entity]:
        """The product and the receipt of a shard, and the action that made both."""
        path, device = self._results.product(receipt.shard), receipt.device
        made = [
            self._file(path, receipt.file.bytes, receipt.file.checksum),
            self._file(self._results.receipt(receipt.shard)),
        ]
        who = " ".join(filter(None, (device.name, device.uuid)))
        self._add(
            f"#shard/{receipt.shard}", "CreateAction", name=f"shard {receipt.shard}",
            description=f"matrices {receipt.start} to {receipt.stop} on {who} of {receipt.node}, "
            f"attempt {receipt.attempt}; checksum of the input {receipt.input_checksum}",
            instrument=workflow, result=made,
            startTime=_iso(receipt.started), endTime=_iso(receipt.finished),
        )  # fmt: skip
        return made

    def _times(self) -> tuple[str | None, str | None]:
        """When the run began, and when it ended; None where nobody knows, or it goes on."""
        began = min(
            (one.started for one in self._seen.done if one.started is not None), default=None
        )
        return _iso(began), _iso(self._summary.finished) if self._summary else None

    def _workflow(self) -> Entity:
        """The workflow, by the name and version that package managers know it by."""
        made = self._summary or self._plan.facts.made
        versions, code = (made.versions, made.commit) if made else ({}, None)
        version = versions.get("shardwise", "unknown")
        snakemake = self._add(
            "https://w3id.org/workflowhub/workflow-ro-crate#snakemake", "ComputerLanguage",
            name="Snakemake", url="https://snakemake.readthedocs.io",
        )  # fmt: skip
        return self._add(
            f"pkg:generic/shardwise@{version}#workflow/Snakefile",
            ["File", "SoftwareSourceCode", "ComputationalWorkflow"], name="Shardwise",
            version=f"{version} ({code})" if code else version, programmingLanguage=snakemake,
            softwareRequirements=self._software(versions),
            input=[{"@id": f"#parameter/{key}"} for key in self._plan.facts.config],
        )  # fmt: skip

    def _software(self, of_reduce: dict[str, str]) -> list[Entity]:
        """Each version of each library that has computed a shard, or the sum."""
        makers = self._summary.made_by["software"] if self._summary else []
        used = [of_reduce, *(maker["versions"] for maker in makers)]
        pairs = sorted({pair for versions in used for pair in versions.items()})
        return [
            self._add(f"#software/{number}", "SoftwareApplication", name=name, version=version)
            for number, (name, version) in enumerate(pairs)
            if name != "shardwise"
        ]  # fmt: skip

    def _inputs(self) -> list[Entity]:
        """The files of A and of B; their number where they are many, or cannot be read."""
        facts = self._plan.facts
        if facts.synthetic:
            recipe = ", ".join(f"{key} {value}" for key, value in facts.synthetic.items())
            return [self._add("#input", "CreativeWork", name=f"synthetic stack: {recipe}")]
        sources = list(facts.right_sources)
        with suppress(ShardwiseError, OSError):
            sources = [*self._plan.sources, *sources]
        if len(sources) > MOST_LISTED:
            name = f"{count(len(sources), 'file')}, one row each in {self._results.sources.name}"
            return [self._add("#input", "CreativeWork", name=name)]
        return [
            self._add(
                f"#input/{number}", "CreativeWork", name=source.path, identifier=source.identity,
                description=f"matrices {source.first} to {source.first + source.count}",
            )
            for number, source in enumerate(sources)
        ]  # fmt: skip

    def _config(self, workflow: Entity) -> list[Entity]:
        """The config: a parameter of the workflow, and the value of this run, for each key."""
        values = []
        for key, value in self._plan.facts.config.items():
            parameter = self._add(
                f"#parameter/{key}", "FormalParameter", name=key, additionalType="Text",
                conformsTo={"@id": _PARAMETER},
            )  # fmt: skip
            told = value if isinstance(value, str) else json.dumps(value)
            values.append(
                self._add(f"#config/{key}", "PropertyValue", name=key, value=told,
                          exampleOfWork=parameter)
            )  # fmt: skip
        self._add(_PARAMETER, "CreativeWork", name="FormalParameter", version="1.0-RELEASE")
        return values

    def _makers(self) -> list[Entity]:
        """How many shards each device and each node has computed."""
        if self._summary is None:
            return []
        made = self._summary.made_by
        devices = [(" ".join(filter(None, (one["name"], one["uuid"]))), one["shards"])
                   for one in made["devices"]]  # fmt: skip
        return [
            self._add(f"#maker/{number}", "PropertyValue", name=f"shards computed by {name}",
                      value=shards)
            for number, (name, shards) in enumerate([*devices, *made["nodes"].items()])
        ]  # fmt: skip


def _iso(moment: float | None) -> str | None:
    """A moment as text; None where it is unknown, or no calendar has it."""
    with suppress(ArithmeticError, OSError, TypeError, ValueError):
        return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")  # type: ignore[arg-type]
    return None
