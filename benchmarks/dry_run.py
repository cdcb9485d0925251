"""The dry run of many shards, beside empty Snakemake workflows with as many jobs.

Prints the table of docs/performance.md. All are timed in turn, as whole processes; each figure is
the median over the rounds, of the seconds and of the ratio within a round.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).parents[1]
SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))

# As many jobs in the same shape, a chain of two for each shard: one file a job, and nothing else.
BARE = """
IDS = [f"{{i:05}}" for i in range({shards})]
rule all:
    input: "sum"
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
"""

# The same, with the files, logs and resources that our jobs have: what Snakemake takes for those.
SAME_FILES = """
IDS = [f"{{i:05}}" for i in range({shards})]
rule all:
    input:
        expand("products/{{i}}.{{kind}}", i=IDS, kind=["npy", "json"]), "sum"
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
"""

OURS = """
synthetic: {{matrices: {shards}, dim: 4}}
shards: {shards}
materialize: true
"""


def prepare(folder: Path, shards: int) -> dict[str, tuple[Path, list[str]]]:
    """Write all workflows; their folders and commands, by what the table calls them."""
    ours, bare, same = (folder / name for name in ("ours", "bare", "same"))
    ours.mkdir()
    for part in ("Snakefile", "config.yaml", "workflow", "scripts", "profiles"):
        source = REPO / part
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, ours / part)
    (ours / "mine.yaml").write_text(OURS.format(shards=shards))
    for path, text in ((bare, BARE), (same, SAME_FILES)):
        path.mkdir()
        (path / "Snakefile").write_text(text.format(shards=shards))
    dry = [SNAKEMAKE, "--cores", "1", "--dry-run", "--quiet", "all"]
    return {
        f"shardwise, {shards} shards": (ours, [*dry, "--configfile", "mine.yaml"]),
        "empty jobs with the same files, logs and resources": (same, dry),
        "empty jobs with one file each": (bare, dry),
    }


def seconds(folder: Path, command: list[str]) -> float:
    """Wall time of a command that must succeed."""
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Time all in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        workflows = prepare(Path(name), options.shards)
        rounds = [[seconds(*w) for w in workflows.values()] for _ in range(options.rounds)]
    sys.stdout.write("| dry run | jobs | seconds | shardwise takes |\n|---|---|---|---|\n")
    for column, label in enumerate(workflows):
        median = statistics.median(row[column] for row in rounds)
        ratio = statistics.median(row[0] / row[column] for row in rounds)
        sys.stdout.write(
            f"| {label} | {2 * options.shards + 5} | {median:.1f} | {ratio:.2f} times as long |\n"
        )


if __name__ == "__main__":
    main()
