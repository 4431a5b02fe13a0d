"""The loss of pretraining over the text read."""

from lineage.analysis.records import Analysis, LossCurve
from lineage.report.sections.loss_curves import draw_loss_curves
from tests.helpers.study_rows import build_analysis


def test_losses_of_different_units_are_in_different_charts(analysis: Analysis) -> None:
    charts = draw_loss_curves(analysis)
    assert len(charts) == 5
    assert not any("masked" in chart and "per byte" in chart for chart in charts)


def test_each_model_has_its_name_once_at_the_end_of_a_curve() -> None:
    losses = [
        LossCurve(name, seed, "bits_per_byte", (1, 2), (3.0, 2.0))
        for name in ("gpt", "mine")
        for seed in (0, 1)
    ]
    (chart,) = draw_loss_curves(build_analysis(curves=tuple(losses)))
    assert chart.count(">GPT</text>") == 1 and chart.count(">mine</text>") == 1
