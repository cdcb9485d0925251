"""A wheel also carries what a clone has beside the library, as the folder shardwise/project."""

from pathlib import Path
from shutil import copytree, ignore_patterns, rmtree

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithWorkflow(build_py):
    """Copies the workflow, its profiles and the entry scripts; an editable install needs none."""

    def run(self) -> None:
        """Build the library, then copy."""
        super().run()
        if self.editable_mode:
            return
        project = Path(self.build_lib, "shardwise", "project")
        rmtree(project, ignore_errors=True)  # an earlier build may have left what is gone
        (project / "scripts").mkdir(parents=True)
        for folder in ("workflow", "profiles"):
            copytree(folder, project / folder, ignore=ignore_patterns("__pycache__"))
        for file in ("Snakefile", "config.yaml", "pyproject.toml", *Path("scripts").glob("*.py")):
            self.copy_file(str(file), str(project / file))


setup(cmdclass={"build_py": BuildWithWorkflow})
