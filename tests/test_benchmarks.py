"""The speed benchmark runs, checks that its sides agree, and gives correct verdicts."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import contest, heads, learning, speed
from benchmarks.contest import Contest, SpeedTarget
from tests.helpers.checkout import ROOT


def read_results() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in speed.RESULTS.rglob("*.*")}


@pytest.fixture
def without_saving() -> Iterator[None]:
    """Check that toy results are not saved."""
    before = read_results()
    yield
    assert read_results() == before


@pytest.mark.usefixtures("without_saving")
@pytest.mark.parametrize("name", speed.CONTESTS)
def test_every_contest_runs_at_toy_size_and_its_sides_agree(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    speed.main([name, "--quick"])
    output = capsys.readouterr().out
    assert "Machine: bf16" in output and ", cpu " in output and "| work | ours |" in output
    if name != "awd":  # Its peer may not be installed.
        assert "nothing was compared" not in output


@pytest.mark.usefixtures("without_saving")
def test_each_side_learns_something_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    speed.main(["learning", "--quick", "--minutes", "0.02"])
    printed = capsys.readouterr().out
    assert "| | 0.02 min |" in printed
    bits = {
        side: float(value)
        for side, value in re.findall(r"^\| ([^|]+) \| ([0-9.]+) \|", printed, re.M)
    }
    assert {"gpt_modern", "gpt", "nanoGPT's recipe"} <= bits.keys()
    uniform = math.log2(learning.TOY.vocab_size)  # of a token, which has more than two bytes
    assert all(0 < value < uniform / 2 for value in bits.values())


def test_sides_that_differ_are_rejected() -> None:
    with pytest.raises(AssertionError, match="loss is"):
        Contest("x", "", 1, "tokens", {}, []).check_equal("loss", 1.0, 1.1)


def test_a_bar_is_scored_by_the_median_ratio_and_does_not_count_without_amx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contest_of_bars = Contest(
        "x",
        "w",
        10,
        "tokens",
        {},
        [
            SpeedTarget("a", "b", 1.5, 2.5),
            SpeedTarget("a", "b", 2.5, 3.0, needs_amx=True),
            SpeedTarget("a", "absent", 1.0, 1.0),
        ],
    )
    compared = {}
    neither = "neither amx_bf16 nor avx512_bf16"
    for flags in ("amx_bf16 avx512_bf16", "avx512_bf16", neither):
        monkeypatch.setattr(contest, "describe_machine", lambda flags=flags: {"bf16": flags})
        compared[flags] = contest.summarize(
            contest_of_bars, {"a": [1.0, 1.0, 1.0], "b": [2.0, 1.0, 9.0]}
        )["compared"]
    first, second = compared["avx512_bf16"]
    assert (first["ratio"], first["lowest"], first["highest"], first["verdict"]) == (
        2.0,
        1.0,
        9.0,
        "must",
    )
    assert second["verdict"] == compared[neither][1]["verdict"] == "missed (no AMX: does not count)"
    assert compared["amx_bf16 avx512_bf16"][1]["verdict"] == "missed"


@pytest.mark.parametrize("subfolder", ["", "bf16"])
def test_committed_tables_match_the_committed_results(subfolder: str) -> None:
    rows = speed.load_results(speed.RESULTS / subfolder)
    assert len(rows) >= 12
    assert (speed.RESULTS / subfolder / "speed.md").read_text() == contest.format_markdown(rows)


def test_rows_of_two_machines_are_shown_in_two_tables() -> None:
    def row(name: str, cpu: str) -> dict:
        outcome = contest.summarize(
            Contest(name, "w", 10, "tokens", {}, [SpeedTarget("a", "b")]), {"a": [1.0], "b": [2.0]}
        )
        return outcome | {"machine": {"cpu": cpu}}

    markdown = contest.format_markdown([row("x", "one"), row("y", "two"), row("z", "one")])
    first, second = markdown.split("Machine: cpu one.")
    assert "| x |" in first
    assert "| z |" in first
    assert "| y |" not in first
    assert "| y |" in second
    assert "Machine: cpu two." in second


@pytest.mark.usefixtures("without_saving")
def test_the_benchmark_of_heads_runs_and_its_sides_agree(
    capsys: pytest.CaptureFixture[str],
) -> None:
    heads.main(["--quick"])
    output = capsys.readouterr().out
    assert "| tags, BERT |" in output
    assert "| texts, ELMo |" in output


def test_the_committed_table_of_heads_matches_its_results() -> None:
    results = json.loads((heads.RESULTS / "heads.json").read_text(encoding="utf-8"))
    table = (heads.RESULTS / "heads.md").read_text(encoding="utf-8")
    assert table == heads.format_markdown(results)


@pytest.mark.slow
@pytest.mark.usefixtures("without_saving")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="servers and clients need a core each")
def test_servers_give_equal_answers_and_are_measured_beside_each_other() -> None:
    command = [sys.executable, "-m", "benchmarks.serve", "--quick"]  # it chooses its core
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert "| 32 | serve |" in output and "Machine: bf16" in output
