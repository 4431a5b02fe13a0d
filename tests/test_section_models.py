"""What the models are, and what a byte of text costs them."""

from dataclasses import replace

from lineage.analysis.records import Analysis
from lineage.report.sections.models import format_training_cost


def test_the_cost_is_per_byte_of_text_where_flops_are_counted(
    analysis: Analysis,
) -> None:
    budget = analysis.budget[0]
    assert format_training_cost(budget) == "775 k FLOPs a byte"
    assert format_training_cost(replace(budget, train_flops=None)) == "n/a"
    assert format_training_cost(None) == "n/a", "a model without a line in the budget"
