"""The page on a run: what it says, and that no name in it breaks out of the markup."""

import ast
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import Markup
from shardwise.observe import page
from shardwise.observe.status import Device
from shardwise.records.failures import Failure

from tests import factories, pretend


def section(text: str, name: str) -> str:
    """The text of a section of a page, or of what stands above all of them, on one line."""
    begin = "<body>" if name == "top" else f'<section id="{name}">'
    return Markup(re.split("<section|</section>", text.partition(begin)[2])[0]).striptags()


def test_the_number_is_answered_for_first(tmp_path: Path) -> None:
    """The verdict is the first line; then the failures with the command, or the results."""
    made = pretend.run(tmp_path / 'my "run"', shards=24, devices=3)
    text = page.render(made.look())
    (path,) = re.findall(r"np\.load\((.*?)\)", section(text, "run"))
    assert ast.literal_eval(path) == str(made.plan.results.statistic("sum"))
    assert section(text, "top").startswith("The sum is right: all products of 24 shards are proven")
    assert 'id="failures"' not in text
    assert "The shards took 80 s" in section(text, "time")
    made = pretend.run(tmp_path / "b", shards=12, failed=2, damaged=1, suspect=1, running=1)
    made.plan.results.command.write_text("cd /a && snakemake --profile 'profiles/<b>'\n")
    text = page.render(made.look())
    assert re.findall(r'<section id="(\w+)"', text)[0] == "failures"
    said = section(text, "failures")
    assert "snakemake --profile 'profiles/<b>'" in said
    assert all(shard in said for shard in made.roles["failed"])
    assert re.search("GPU-[0-9a-f-]+ of node0[12] failed: a product failed its proof", said)
    assert f"rm -f {made.receipt(made.roles['damaged'][0])}" in section(text, "top")
    links = re.findall(r'<a href="(\./.*?)"', text)
    assert [(made.root / link).is_file() for link in links] == [True] * 3
    assert "snakemake" not in section(text, "run")


@pytest.mark.parametrize("harm", [
    lambda results: shutil.rmtree(results.root),
    lambda results: os.truncate(results.plan, 40),
    lambda results: os.truncate(results.statistic("sum"), 5000),
])  # fmt: skip
def test_any_folder_gives_a_page(tmp_path: Path, harm: Any) -> None:
    """The page of an empty or damaged folder does not call the sum right."""
    made = pretend.run(tmp_path, shards=4)
    harm(made.plan.results)
    text = page.render(made.look())
    assert "The sum is right" not in section(text, "top")
    assert "data:image" not in text


def test_nothing_is_fetched_and_nothing_escapes(tmp_path: Path) -> None:
    """Names that are markup stay text, and no address leads out of the file or the folder."""
    wild = "<script>alert(1)</script>\"'&\x1b[31m\u202e</title>$\\frac$ 计算"
    made = pretend.run(tmp_path, shards=6, failed=1)
    seen = made.look()
    trouble = Failure(wild, 3, wild, wild, made.at, wild, log="javascript:alert(1)")
    shards = {
        name: replace(one, device=Device(wild, f"GPU-{wild}", wild),
                      failure=one.failure and trouble)
        for name, one in seen.shards.items()
    }  # fmt: skip
    seen = replace(seen, shards=shards, damage=(wild,), failures={wild: trouble})
    text, parser, found = page.render(seen), HTMLParser(), list[tuple[str, str]]()
    parser.handle_starttag = lambda tag, attributes: found.extend(attributes)
    parser.feed(text)
    parser.close()
    places = [value for name, value in found if name in ("src", "href", "action", "data", "srcset")]
    assert [place for place in places if not place.startswith(("#", "./", "data:"))] == []
    assert "./javascript%3Aalert%281%29" in places
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "default-src 'none'" in text
    assert "script-src" not in text
    own = text.split("<body>")[0]
    assert not re.search(r"url\(|@import|https?:|fetch\(|XMLHttp|import\(|WebSocket", own)


def test_the_page_is_written_by_the_command_line(tmp_path: Path) -> None:
    """With the metrics, whatever the run left; a folder that no run made stays as it is."""
    made = pretend.run(tmp_path, shards=3, failed=1)
    done = factories.run("report", made.root, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 failed" in section(made.plan.results.report.read_text(), "top")
    assert made.plan.results.metrics.is_file()
    (tmp_path / "thesis").mkdir()
    refused = factories.run("report", tmp_path / "thesis")
    assert (refused.returncode, "no run made this folder" in refused.stderr) == (2, True)
    assert list((tmp_path / "thesis").iterdir()) == []


@pytest.mark.parametrize(("dtype", "shape"), [("float64", (1, 1)), ("complex128", (300, 700))])
def test_cells_are_elements_of_the_file(tmp_path, dtype, shape):
    """All of a small matrix, else evenly spaced rows and columns; moduli if complex."""
    array = factories.stack(shape, dtype, seed=3)
    found = page.read(factories.save(tmp_path / "sum.npy", array))
    rows, columns = (np.arange(min(n, 256)) * n // min(n, 256) for n in shape)
    np.testing.assert_array_equal(
        found, abs(array[np.ix_(rows, columns)]) if shape[0] > 1 else array
    )
    words, image = page.draw(found)
    assert f"{found.min():.8g} and {found.max():.8g}" in words
    assert "data:image/png;base64," in image


def test_what_is_not_finite_is_counted_and_marked() -> None:
    """NaN and Inf are left out of the colours; nothing overflows."""
    cells = np.full((4, 4), 1e300)
    cells[1, 2], cells[3, 0], cells[0, 0] = np.nan, np.inf, 1e-300
    words, _ = page.draw(cells)
    assert "between 1e-300 and 1e+300. " in words
    assert words.endswith("yellow is 1e+300. 2 elements NaN or infinite, in magenta.")
    assert page.draw(cells * np.nan) == ("No element is finite.", "")
