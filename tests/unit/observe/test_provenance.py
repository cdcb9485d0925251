"""The crate beside the results, read by the package that others read crates with."""

import json
import time
from pathlib import Path

import pytest
from rocrate.rocrate import ROCrate
from shardwise.observe import metrics, provenance
from shardwise.observe.folder import Observer

from tests import factories, pretend
from tests.unit.observe.test_audit import finished


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
    """The workflow, the run, its config, its files, and an action and a product per shard."""
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
    config = {each["name"]: each for each in run["object"] if each.type == "PropertyValue"}
    assert config["keep"]["value"] == keep
    assert config["keep"]["exampleOfWork"] in workflow["input"]
    assert sum(each["value"] for each in run["additionalProperty"]) == 2 * 6  # devices, nodes
    for shard, receipt in made.receipts.items():
        action = found.get(f"#shard/{shard}")
        assert [each.id for each in action["result"]] == [
            f"products/{shard}.npy", f"products/{shard}.json"
        ]  # fmt: skip
        assert receipt["device"]["uuid"] in action["description"]
        product = found.get(f"products/{shard}.npy")
        assert product["contentSize"] == str(receipt["file"]["bytes"])
        assert receipt["file"]["checksum"] in product["identifier"]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    """Whenever it is written, and wherever the folder lies now."""
    made = pretend.run(tmp_path, shards=5)
    crate(made)
    path = made.root / "ro-crate-metadata.json"
    before = path.read_bytes()
    made.root.rename(tmp_path / "moved")
    provenance.write(Observer(tmp_path / "moved").look(made.at + 1e6))
    assert (tmp_path / "moved" / path.name).read_bytes() == before


def test_many_shards_are_counted(tmp_path: Path) -> None:
    """Beyond a limit the crate has their number, and stays as small as for one."""
    many = provenance.MOST_LISTED + 1
    made = pretend.run(tmp_path, shards=many, matrices=1, dim=4)
    found = crate(made)
    assert dangling(made.root) == set()
    assert f"{many} of {many:,} shards" in found.get("products/")["description"]
    assert not [each for each in found.contextual_entities if each.id.startswith("#shard/")]
    assert (made.root / "ro-crate-metadata.json").stat().st_size < 30_000


def test_the_files_of_an_input_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its identity; where they are many only their number, and none if it is unknown."""
    made = finished(tmp_path, factories.stack((6, 3, 3)), shards=2)
    (source,) = made.sources

    def inputs() -> list[tuple[str, str | None]]:
        seen = Observer(made.results.root).look()
        graph = json.loads(provenance.text(seen, seen.plan))["@graph"]
        return [(one["name"], one.get("identifier")) for one in graph
                if one["@id"].startswith("#input")]  # fmt: skip

    assert inputs() == [(source.path, source.identity)]
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "MOST_LISTED", 0)
        assert inputs() == [("1 file, one row each in sources.tsv", None)]
    made.results.sources.write_text("damaged")
    assert inputs() == []


@pytest.mark.parametrize(
    ("parts", "status"),
    [({"failed": 1}, "Failed"), ({"damaged": 1}, "Failed"), ({"waiting": 1}, "Active"),
     ({"unproven": 1, "old": 1}, "Completed")],
)  # fmt: skip
def test_a_run_that_is_not_whole_is_told_as_it_is(
    tmp_path: Path, parts: dict[str, int], status: str
) -> None:
    """What is there is listed, and the status says that it is not all."""
    made = pretend.run(tmp_path, shards=4, **parts)
    found = crate(made)
    assert found.get("#run")["actionStatus"] == f"http://schema.org/{status}ActionStatus"
    listed = [each for each in found.data_entities if each.id.endswith(".npy")]
    assert len([each for each in listed if "/" in each.id]) == len(made.receipts)


def test_a_folder_without_a_plan_gets_none(tmp_path: Path) -> None:
    """There is no run to speak of."""
    provenance.write(Observer(tmp_path).look(time.time()))
    assert list(tmp_path.iterdir()) == []
