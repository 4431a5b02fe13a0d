"""The loss of pretraining over the text read."""

from pathlib import Path

from lineage.analysis.records import Analysis, LossCurve
from lineage.report.sections.loss_curves import draw_loss_curves
from tests.helpers.study_rows import build_analysis


def test_losses_of_different_units_are_in_different_charts(analysis: Analysis) -> None:
    charts = draw_loss_curves(analysis)
    assert len(charts) == 5
    assert not any("masked" in chart and "per byte" in chart for chart in charts)


def test_a_chart_of_many_models_counts_them(tmp_path: Path) -> None:
    def title(names: str) -> str:
        losses = [LossCurve(name, 0, "bits_per_byte", (1, 2), (3.0, 2.0)) for name in names]
        return draw_loss_curves(build_analysis(curves=tuple(losses)))[0]

    assert "a, b, c, d" in title("abcd")
    assert "5 models" in title("abcde") and "a, b" not in title("abcde")
