"""The settings that the doctor looks for: from config files, where they can be read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.doctor.findings import FAULT, Finding, fault, ok
from shardwise.errors import InputError, ShardwiseError
from shardwise.plan import config

_SHIPPED = Path("config.yaml")


def choose(files: list[Path] | None, results: str | None) -> tuple[dict[str, Any], list[Finding]]:
    """The results folder and the backend, and what was found in the config.

    Parameters
    ----------
    files
        Config files; None: ``config.yaml`` of this folder, where there is one.
    results
        A results folder that comes before that of the config.
    """
    chosen = {"results": results or config.DEFAULT_RESULTS, "backend": "auto"}
    files = files if files is not None else [_SHIPPED] if _SHIPPED.exists() else []
    if not files:
        return chosen, []
    named = ", ".join(map(str, files))
    try:
        settings = config.load(config.read_files(files))
    except ShardwiseError as error:
        found = fault("config", str(error), "correct it")
    except ImportError as error:  # a package that is missing, which its section says too
        found = fault("config", f"{named} cannot be read: {error}", "make install")
    else:
        chosen = {"results": results or settings.results, "backend": settings.backend}
        found = ok("config", f"{named}: backend {settings.backend}, results {chosen['results']}",
                   files=list(map(str, files)), **chosen)  # fmt: skip
    return chosen, [replace(found, section="config")]


def results_folder(files: list[Path] | None, results: Path | str | None) -> Path:
    """The results folder for who does something to it, or judges it: never one that was guessed.

    Parameters are those of :func:`choose`.

    Raises
    ------
    InputError
        Where the config has to name the folder, and cannot be read or is wrong.
    """
    chosen, found = choose(files, str(results) if results else None)
    wrong = [finding for finding in found if finding.level == FAULT]
    if wrong and not results:
        said = "; ".join(f"{finding.text} ({finding.cure})" for finding in wrong)
        raise InputError(f"no results folder: {said}; or name the folder on the command line")
    return Path(chosen["results"])


def existing_folder(files: list[Path] | None, results: Path | str | None) -> Path:
    """The results folder for who looks at a run: as `results_folder` has it, and there already.

    Raises
    ------
    InputError
        Where there is none.
    """
    root = results_folder(files, results)
    if not root.is_dir():
        raise InputError(
            f"{root}: there is no such folder; start the run first, or name its results folder"
        )
    return root
