"""The question, the answer in a sentence, and what it rests on."""

from collections.abc import Sequence

from lineage.analysis.records import Analysis, NgramComparison
from lineage.report.decisions import summarize_decisions
from lineage.report.formatting import format_model, join_with_and, plural
from lineage.report.section import Paragraph, ReportData, Section

TITLE = "Which model should you use, and is it worth pretraining on your text?"


def build(report: ReportData) -> Section:
    """Return the head of the page."""
    analysis = report.analysis
    blocks = [
        Paragraph(summarize_decisions(analysis, report.decisions), "lead"),
        Paragraph(describe_runs(analysis), "muted runs"),
    ]
    if warning := summarize_ngram_comparisons(analysis.ngram_comparisons):
        blocks.append(Paragraph(warning, "worse"))
    if any(one.status == "failed" for one in analysis.failures):
        text = "Some results failed; the reasons are [below](#failed)."
        blocks.append(Paragraph(text, "worse", has_markup=True, only="html"))
    return Section(TITLE, blocks, is_page=True)


def describe_runs(analysis: Analysis) -> str:
    """Tell what the statements rest on, and what their intervals do not cover."""
    grid = analysis.grid
    pretrainings = plural(len(grid.pretrain_seeds), "pretraining run")
    finetunings = plural(len(grid.finetune_seeds), "fine-tuning seed")
    text = (
        f"{pretrainings} of each model and {finetunings}. Intervals are for other {analysis.split} "
        "items; they do not cover how another pretraining would turn out."
    )
    if analysis.public_models:
        text += " What public checkpoints have read is unknown, and may include these items."
    generated = [one.task for one in analysis.tasks if one.generated]
    if generated and len(generated) == len(analysis.tasks):
        text = f"All tasks are generated: their scores say nothing about real text. {text}"
    elif generated:
        text += f" Generated, not real: {join_with_and(generated)}."
    return text


def summarize_ngram_comparisons(comparisons: Sequence[NgramComparison]) -> str:
    """Name the models that may have learned no more than a 5-gram model, if any.

    Held-out text shows some to be worse, and others not to be better.
    """
    names_by_finding: dict[tuple[str, str], list[str]] = {}
    for one in comparisons:
        if one.learned_less:
            names_by_finding.setdefault(_describe_learning(one), []).append(format_model(one.model))
    sentences = []
    for (singular, plural_form), names in names_by_finding.items():
        finding = singular if len(names) == 1 else plural_form
        sentences.append(f"Do not judge {join_with_and(names)} by this run: {finding}.")
    return " ".join(sentences)


def _describe_learning(comparison: NgramComparison) -> tuple[str, str]:
    """Tell of one model, and of several, what is shown beside counting.

    Of minimal pairs, and of reports without intervals, less is said.
    """
    if not comparison.has_interval:
        finding = (
            "not shown to have learned more than a 5-gram model of the same text, which only counts"
        )
    elif comparison.verdict == "worse":
        finding = "text worse than counting 5-grams of the same text"
        return f"it predicts {finding}", f"they predict {finding}"
    else:
        finding = "not shown to predict text better than counting 5-grams of the same text"
    return f"it is {finding}", f"they are {finding}"
