"""The crate beside the results, read by the package that others read crates with."""

import json
import time
from pathlib import Path

import pytest
from rocrate.rocrate import ROCrate
from shardwise.observe import metrics, provenance
from shardwise.observe.folder import Observer

from tests import pretend


def crate(made: pretend.Pretended) -> ROCrate:
    """What a run leaves, as the package reads it; each file that it lists is there."""
    seen = Observer(made.root).look(made.at)
    seen.results.report.touch()
    metrics.write(seen)
    provenance.write(seen)
    found = ROCrate(made.root)
    for entity in found.data_entities:
        assert entity.id.startswith("pkg:") or (made.root / entity.id).exists(), entity.id
    return found


def dangling(root: Path) -> set[str]:
    """References to entities that the crate does not describe, and that are no specification."""
    graph = json.loads((root / "ro-crate-metadata.json").read_text())["@graph"]
    described, referred = [entity["@id"] for entity in graph], set()
    assert len(set(described)) == len(described)
    for entity in graph:
        for value in entity.values():
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, dict):
                    referred.add(one["@id"])
    return referred - {*described, "https://w3id.org/ro/crate/1.1"}


@pytest.mark.parametrize("keep", ["products", "sum"])
def test_a_finished_run_is_a_workflow_run_crate(tmp_path: Path, keep: str) -> None:
    """The workflow, the run, what it was made from, and its files."""
    made = pretend.run(tmp_path, shards=6, keep=keep)
    found = crate(made)
    assert dangling(made.root) == set()
    profiles = {each.id.split("/")[-2] for each in found.root_dataset["conformsTo"]}
    assert profiles == {"process", "workflow", "workflow-ro-crate"}
    workflow = found.mainEntity
    assert workflow.type == ["File", "SoftwareSourceCode", "ComputationalWorkflow"]
    assert workflow["programmingLanguage"]["name"] == "Snakemake"
    run = found.get("#run")
    assert run["instrument"] == workflow
    assert run["actionStatus"] == "http://schema.org/CompletedActionStatus"
    assert run["startTime"] < run["endTime"]
    results = {each.id for each in run["result"]}
    assert {"sum.npy", "summary.json", "ledger.tsv", "report.html", "products/"} <= results
    assert {each.id for each in run["object"]} == {"plan.json", "plan.tsv", "sources.tsv"}
    (total,) = (each for each in run["result"] if each.id == "sum.npy")
    summary = json.loads((made.root / "summary.json").read_text())["files"]["sum"]
    assert total["contentSize"] == str(summary["bytes"])
    assert summary["checksum"] in total["identifier"]
    assert found.get("products/")["description"].startswith("6 of 6 shards")


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    """Whenever it is written, and wherever the folder lies now."""
    made = pretend.run(tmp_path, shards=5)
    crate(made)
    path = made.root / "ro-crate-metadata.json"
    before = path.read_bytes()
    made.root.rename(tmp_path / "moved")
    provenance.write(Observer(tmp_path / "moved").look(made.at + 1e6))
    assert (tmp_path / "moved" / path.name).read_bytes() == before


@pytest.mark.parametrize(
    ("parts", "status"),
    [({"failed": 1}, "Failed"), ({"damaged": 1}, "Failed"), ({"waiting": 1}, "Active"),
     ({"unproven": 1, "old": 1}, "Completed")],
)  # fmt: skip
def test_a_run_that_is_not_whole_is_told_as_it_is(
    tmp_path: Path, parts: dict[str, int], status: str
) -> None:
    """The status says so, and the description how many shards are there."""
    made = pretend.run(tmp_path, shards=4, **parts)
    found = crate(made)
    assert found.get("#run")["actionStatus"] == f"http://schema.org/{status}ActionStatus"
    done = 4 - sum(parts.get(state, 0) for state in ("failed", "damaged", "waiting"))
    assert found.get("products/")["description"].startswith(f"{done} of 4 shards")


def test_a_folder_without_a_plan_gets_none(tmp_path: Path) -> None:
    """There is no run to speak of."""
    provenance.write(Observer(tmp_path).look(time.time()))
    assert list(tmp_path.iterdir()) == []
