"""Add the sums of finished results folders, and write OUT/sum.npy, mean.npy and summary.json.

Runs with labels leave sums.npy and labels.json instead. All folders must be of the same problem:
product, shapes, dtype, precision and backend. Each sum is compared with its checksum. The folders
are added in the order given; the same command leaves the same bytes. The folders may come from
other machines. Nothing is written into them.
"""

from argparse import Namespace
from pathlib import Path

from shardwise import cli
from shardwise.merge import job


def main(options: Namespace) -> None:
    """Merge."""
    matrices = job.run(options.out, options.folders)
    words = f"the total of {matrices} matrices in {len(options.folders)} folders"
    cli.log.info("%s: %s", options.out, words)


if __name__ == "__main__":
    arguments = cli.parser(__doc__)
    words = (
        "folder to write; it must not exist, or be of an earlier merge, whose files are replaced"
    )
    arguments.add_argument("out", type=Path, metavar="OUT", help=words)
    words = "results folder of a finished run"
    arguments.add_argument("folders", nargs="+", metavar="FOLDER", help=words)
    cli.run(main, arguments)
