"""The dry run of many shards, beside empty Snakemake workflows with as many jobs.

Prints the tables of docs/performance.md: `dispatch: jobs`, then array, whose graph does not grow,
with nothing, half and all of the products there. All are timed in turn, as whole processes; each
figure is the median over the rounds, of the seconds and of the ratio within a round.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).parents[1]
SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))

# As many jobs in the same shape, a chain of two for each shard: one file per job, and nothing else.
BARE = """
IDS = [f"{{i:05}}" for i in range({shards})]
rule all:
    input: "page"
rule plan:
    output: "plan"
    shell: "touch {{output}}"
rule synthesize:
    input: "plan"
    output: "input"
    shell: "touch {{output}}"
rule shard:
    input: "input"
    output: "shards/{{i}}"
    shell: "touch {{output}}"
rule multiply:
    input: "shards/{{i}}"
    output: "products/{{i}}"
    shell: "touch {{output}}"
rule ledger:
    input: expand("products/{{i}}", i=IDS)
    output: "ledger"
    shell: "touch {{output}}"
rule reduce:
    input: "ledger"
    output: "sum"
    shell: "touch {{output}}"
rule report:
    input: "sum"
    output: "page"
    shell: "touch {{output}}"
"""

# The same, with the files, logs and resources that our jobs have: what Snakemake takes for those.
SAME_FILES = """
IDS = [f"{{i:05}}" for i in range({shards})]
rule all:
    input:
        expand("products/{{i}}.{{kind}}", i=IDS, kind=["npy", "json"]), "sum", "page"
rule plan:
    output: "plan"
    log: "logs/plan"
    shell: "touch {{output}}"
rule synthesize:
    input: "plan"
    output: "input"
    log: "logs/synthesize"
    shell: "touch {{output}}"
rule shard:
    input: plan="plan", matrices="input"
    output: matrices="shards/{{i}}.npy"
    log: "logs/shard/{{i}}"
    resources: mem_mb=1000, runtime=10
    params: digest="x"
    shell: "touch {{output}}"
rule multiply:
    input: plan="plan", factors="shards/{{i}}.npy"
    output: product="products/{{i}}.npy", receipt="products/{{i}}.json"
    log: "logs/multiply/{{i}}"
    resources: mem_mb=1000, runtime=10
    params: digest="x"
    shell: "touch {{output}}"
rule ledger:
    input: expand("products/{{i}}.json", i=IDS)
    output: "ledger"
    log: "logs/ledger"
    shell: "touch {{output}}"
rule reduce:
    input: "ledger"
    output: "sum"
    log: "logs/reduce"
    shell: "touch {{output}}"
rule report:
    input: plan="plan", ledger="ledger", summary="sum"
    output: page="page", metrics="metrics"
    log: "logs/report"
    shell: "touch {{output}}"
"""

ONE_JOB = """
rule all:
    output: "sum"
    shell: "touch {output}"
"""

OURS = """
synthetic: {{matrices: {shards}, dim: 4}}
shards: {shards}
materialize: true
backend: numpy
dispatch: {dispatch}
"""

DRY = [SNAKEMAKE, "--cores", "1", "--dry-run", "--quiet", "all"]
OWN = [*DRY, "--configfile", "mine.yaml"]
Workflows = dict[str, tuple[Path, list[str]]]
"""Folders and commands, by what the tables call them."""


def ours(folder: Path, shards: int, dispatch: str) -> Path:
    """A copy of the project with a config of its own."""
    folder.mkdir(parents=True)
    for part in ("Snakefile", "config.yaml", "workflow", "scripts", "profiles"):
        source = REPO / part
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / part)
    (folder / "mine.yaml").write_text(OURS.format(shards=shards, dispatch=dispatch))
    return folder


def bare(folder: Path, text: str) -> Path:
    """A workflow that is nothing but its rules."""
    folder.mkdir()
    (folder / "Snakefile").write_text(text)
    return folder


def under_jobs(folder: Path, shards: int) -> Workflows:
    """One job per shard, and the same of Snakemake alone."""
    return {
        f"shardwise, {shards} shards": (ours(folder / "jobs", shards, "jobs"), OWN),
        "empty jobs with the same files, logs and resources": (
            bare(folder / "same", SAME_FILES.format(shards=shards)),
            DRY,
        ),
        "empty jobs with one file each": (bare(folder / "bare", BARE.format(shards=shards)), DRY),
    }


def under_array(folder: Path, shards: int) -> Workflows:
    """One job for all shards, and one empty job."""
    rows = {"one empty job": (bare(folder / "one", ONE_JOB), DRY)}
    for name, done in (("no", 0), ("half of the", shards // 2), ("all", shards)):
        root = ours(folder / f"array{done}", shards, "array")
        if done:
            pretend(root, done)
        rows[f"shardwise, {name} products there"] = (root, OWN)
    return rows


def pretend(root: Path, done: int) -> None:
    """Give the first shards products: one that was computed, under the names of all."""
    from shardwise.files import small
    from shardwise.files.paths import Results

    def script(name: str, *words: str) -> None:
        command = [sys.executable, f"scripts/{name}.py", *words]
        subprocess.run(command, cwd=root, check=True, capture_output=True)

    results = Results(root / "results" / "default")
    script("plan", "--configfile", "config.yaml", "mine.yaml")
    with open(results.plan, newline="") as file:
        first, *rows = list(csv.DictReader(file, delimiter="\t"))[:done]
    script("synthesize", "--plan", "results/default/plan.tsv")
    script("multiply", "--plan", "results/default/plan.tsv", "--shard", first["shard"])
    receipt = json.loads(results.receipt(first["shard"]).read_bytes())
    del receipt["digest"]
    for row in rows:
        path = results.product(row["shard"])
        path.parent.mkdir(exist_ok=True)
        receipt |= {"start": int(row["start"]), "stop": int(row["stop"])}
        receipt |= {"shard": row["shard"], "fingerprint": row["fingerprint"]}
        body = json.dumps(receipt, indent=1).removesuffix("\n}").encode()
        results.receipt(row["shard"]).write_bytes(small.with_digest(body))
        path.touch()
        os.truncate(path, receipt["file"]["bytes"])


def seconds(folder: Path, command: list[str]) -> float:
    """Wall time of a command that must succeed."""
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def timed(workflows: Workflows, rounds: int) -> list[list[float]]:
    """Seconds of each workflow, for every round."""
    return [[seconds(*workflow) for workflow in workflows.values()] for _ in range(rounds)]


def main() -> None:
    """Time all in turn and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=10_000, help="under jobs")
    parser.add_argument("--array-shards", type=int, default=100_000, help="under array")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        workflows = under_jobs(Path(name), options.shards)
        rounds = timed(workflows, options.rounds)
        arrays = under_array(Path(name), options.array_shards)
        array_rounds = timed(arrays, options.rounds)
    sys.stdout.write("| dry run | jobs | seconds | shardwise takes |\n|---|---|---|---|\n")
    for column, label in enumerate(workflows):
        median = statistics.median(row[column] for row in rounds)
        ratio = statistics.median(row[0] / row[column] for row in rounds)
        sys.stdout.write(
            f"| {label} | {2 * options.shards + 6} | {median:.1f} | {ratio:.2f} times as long |\n"
        )
    sys.stdout.write(
        f"\n| dry run of {options.array_shards} shards under array | seconds |\n|---|---|\n"
    )
    for column, label in enumerate(arrays):
        median = statistics.median(row[column] for row in array_rounds)
        sys.stdout.write(f"| {label} | {median:.1f} |\n")


if __name__ == "__main__":
    main()
