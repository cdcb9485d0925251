"""Each repair that verify prints: after a damage, it and one run of snakemake make all whole."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import factories
from tests.workspace import Workspace

RESULTS = "out"
CONFIG = {"results": RESULTS, "shards": 2, "synthetic": {"matrices": 4, "dim": 4},
          "materialize": True}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace that has run to its end."""
    workspace = Workspace.create(tmp_path_factory.mktemp("model") / "w")
    workspace.configure(**CONFIG)
    workspace.succeed()
    return workspace


gone = Path.unlink


def flipped(path: Path) -> None:
    """Flip a bit near the end of a file."""
    factories.flip(path, at=-6)


EACH: dict[Callable[[Path], None], tuple[str, ...]] = {
    flipped: (
        "plan.tsv", "sources.tsv", "ledger.tsv", "summary.json", "sum.npy", "input.npy",
        "products/00001-*.npy", "products/00001-*.json", "shards/00001-*.npy",
        "shards/00001-*.json",
    ),
    gone: ("sum.npy",),
    factories.astray: ("products/00001-*.json",),
}  # fmt: skip
HARMS = {f"{name} {harm.__name__}": [(name, harm)] for harm, names in EACH.items()
         for name in names} | {
    "unfit ledger, no summary": [("ledger.tsv", flipped), ("summary.json", gone)],
    "product, ledger": [("products/00000-*.npy", flipped), ("ledger.tsv", flipped)],
    "many": [
        ("products/00000-*.json", gone), ("products/00001-*.npy", flipped), ("sum.npy", flipped),
        ("shards/00001-*.npy", flipped), ("input.npy", flipped), ("ledger.tsv", gone),
    ],
}  # fmt: skip

CASES = [("jobs", name) if name == "many" else factories.nightly("jobs", name) for name in HARMS]
CASES += [factories.nightly("pool", name) for name in HARMS]


def verify(workspace: Workspace) -> tuple[int, str]:
    """The exit code and the last line of verify."""
    done = factories.run("verify", RESULTS, cwd=workspace.root)
    assert done.stdout, done.stderr
    return done.returncode, done.stdout.splitlines()[-1]


@pytest.mark.fault("damage to a file")
@pytest.mark.parametrize(("dispatch", "damage"), CASES)
def test_a_repair_makes_the_results_whole(model, tmp_path, dispatch, damage):
    """The printed commands and one run of snakemake make all whole, and the sum is the same."""
    workspace, harms = model.clone(tmp_path / "w"), HARMS[damage]
    workspace.configure(**CONFIG, dispatch=dispatch)
    root = workspace.root / RESULTS
    for name, harm in harms:
        harm(next(root.glob(name), root / name))
    code, said = verify(workspace)
    if code == 3:
        (commands,) = re.findall(r"; repair: (.*), then start the run again$", said)
        subprocess.run(["bash", "-ec", commands], cwd=workspace.root, check=True)
    else:
        assert (code, said) == (75, f"{RESULTS}: unfinished: nothing is summed yet")
    done = workspace.succeed()
    code, now = verify(workspace)
    assert code == 0, f"{said}\n{done.output}\n{now}"
    assert re.fullmatch(rf"{RESULTS}: whole: 2 shards, \S+ \w+, sum.npy proven", now)
    assert (root / "sum.npy").read_bytes() == (model.root / RESULTS / "sum.npy").read_bytes()
