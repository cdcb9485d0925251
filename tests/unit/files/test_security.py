"""Names are never run as code, and nothing is written outside of the results folder."""

import os
import shutil
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from shardwise import errors
from shardwise.errors import InputError, IntegrityError
from shardwise.files import small as small_files
from shardwise.files.paths import Results, for_bash
from shardwise.host import SCRIPTS
from shardwise.plan import plan as plan_file
from shardwise.plan import planner
from shardwise.work import array

from tests import factories

# Nothing is written outside of the results folder.


def small(folder: Path, **over):
    """A plan of two shards whose products are not computed yet."""
    return factories.plan(folder, factories.stack((4, 4, 4)), shards=2, **over)


@pytest.fixture
def victim(tmp_path):
    """A file of the user's, elsewhere, which keeps its bytes."""
    path = tmp_path / "victim"
    path.write_text("mine")
    yield path
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["shards", "products", "logs", "runs.tsv", "done", "logs/plan"])
def test_results_that_lead_elsewhere_are_refused(tmp_path, name):
    """A link in place of a folder of results, or of a file that is appended to, ends with 2."""
    made, aside = small(tmp_path), tmp_path / "aside"
    aside.mkdir()
    link = made.results.root / name
    if link.is_dir():
        shutil.rmtree(link)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(aside)
    with pytest.raises(InputError, match=f"{name} is a link.*Remove the link"):
        planner.check_folder(made)
    with pytest.raises(InputError, match=f"{name} is a link"):
        small_files.refuse_links(made.results)
    if name == "products":  # a stage that is started by hand checks too
        done = factories.run("multiply", "--plan", made.results.plan, "--shard", "00000")
        assert (done.returncode, "products is a link" in done.stderr) == (2, True)
    assert not list(aside.iterdir())


@pytest.mark.parametrize("kind", ["product", "receipt", "shard"])
def test_a_link_in_place_of_a_file_is_replaced(tmp_path, victim, kind):
    """Its target keeps its bytes; the results folder itself may be a link to another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    made = small(tmp_path)
    link = factories.file(made, kind)
    link.parent.mkdir()
    link.symlink_to(victim)
    factories.computed(made)
    assert not link.is_symlink()


HOSTILE = "-rf a'b\"$(touch pwned);`touch pwned`&|>x *\n"


@pytest.mark.parametrize("shard", ["../00000", "-1", "٣", "00000\n", "", "$(id)"])
def test_the_id_of_a_shard_is_digits(tmp_path, shard):
    """Other ids are refused if asked for, and in a plan even if its checksums match."""
    made = small(tmp_path)
    with pytest.raises(InputError, match="is not in"):
        plan_file.load(made.results.plan).shard(shard)
    row = replace(made.shards["00000"], shard=shard)
    planner.write(replace(made, shards={shard: row}))
    with pytest.raises(IntegrityError, match=r"is not the name of a shard"):
        plan_file.load(made.results.plan)


def test_a_name_that_we_print_is_one_word(tmp_path):
    """No program takes it for an option, and bash runs no part of it."""
    line = ["bash", "-c", f'printf "%s" {for_bash(Path(HOSTILE))}']
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == f"./{HOSTILE}"
    assert not list(tmp_path.iterdir())


def test_the_script_of_an_array_quotes_its_names(tmp_path):
    """An array task gets the path of the plan as one word, and its shell runs no part of it."""
    made = replace(small(tmp_path), results=Results(tmp_path / "w" / HOSTILE))
    options = Namespace(memory=None, run_time=None, setup="")
    folder = made.results.array_folder("r")
    text = array.script(made, options, "r/1", folder / "sw-r-1")
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[2:])\n")
    program.chmod(0o700)
    text = text.replace(sys.executable, str(program))
    folder.mkdir(parents=True)
    env = os.environ | {"SLURM_ARRAY_TASK_ID": "3"}
    subprocess.run(["bash", "-c", text], cwd=tmp_path, check=True, env=env)
    words = [f"--plan={made.results.plan}", "--round=r/1", "--mem-mb=0"]
    assert (folder / "sw-r-1.3.log").read_text().strip() == str(words)
    assert not list(tmp_path.rglob("pwned"))


def test_no_text_steers_the_terminal():
    """Messages and tracebacks are shown as text, and one function alone writes them."""
    text = "in/\x1b]0;x\x07\x9b2J\r\u202ea\tb\nc é"
    assert errors.shown(text) == r"in/\x1b]0;x\x07\x9b2J\r\u202ea" + "\tb\nc é"
    line = [sys.executable, str(SCRIPTS / "ledger.py"), f"--plan={text}/plan.tsv"]
    said = subprocess.run(line, capture_output=True, text=True, check=False).stderr
    assert (r"in/\x1b]0;x\x07" in said, "\x1b" in said) == (True, False)
