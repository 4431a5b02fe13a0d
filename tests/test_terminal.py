"""Tables -> the terminal."""

import re

import pytest
from rich.console import Console

from lineage.analysis.decision import decide
from lineage.analysis.records import Analysis
from lineage.report import page
from lineage.report.formatting import format_percent


def test_the_table_is_plain_where_there_is_no_terminal(
    analysis: Analysis, capsys: pytest.CaptureFixture[str]
) -> None:
    page.print_table(analysis, decide(analysis, {}), Console(width=120))
    output = capsys.readouterr().out
    assert output.isascii() and "BERT adapted, fine-tuned" in output
    assert output.count("*") >= 5, "one for each setting, and in the caption"


@pytest.mark.parametrize(("width", "num_tables"), [(200, 1), (60, 3)])
def test_a_narrow_terminal_prints_tasks_below_each_other(
    analysis: Analysis, capsys: pytest.CaptureFixture[str], width: int, num_tables: int
) -> None:
    """No cell is folded into a column of single digits, and each is in one table."""
    names = ["sentiment", "sense", "agreement"]
    page.print_table(analysis, [], Console(width=width))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    heads = [line for line in lines if any(name in line for name in names)]
    assert len(heads) == num_tables
    shown = re.findall("|".join(names), " ".join(heads))
    assert shown == ["sentiment", "sentiment", "sense", "sense", "agreement"]
    (line,) = [line for line in lines if line.startswith("|GPT, zero-shot")]
    means = [
        format_percent(one.mean)
        for one in analysis.scores
        if (one.system.model, one.system.init, one.system.transfer)
        == ("gpt", "pretrained", "zero_shot")
    ]
    assert re.findall(r"\d+\.\d", line) == means
