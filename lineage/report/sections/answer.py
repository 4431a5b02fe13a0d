"""The finding as a title, what it rests on, and what was not tried."""

from collections.abc import Collection, Iterator, Sequence

from lineage.analysis.decision import Decision
from lineage.analysis.records import Analysis, NgramComparison
from lineage.methods.registry import find_method_type
from lineage.report.decisions import (
    describe_finding,
    find_largest_decisions,
    name_label_choice,
)
from lineage.report.formatting import (
    format_count_range,
    format_model,
    format_si,
    join_with_and,
    plural,
)
from lineage.report.section import Paragraph, ReportData, Section
from lineage.report.sections.what_was_run import name_origin
from lineage.report.styles import find_weak_models

MIN_PASSES = 1.05  # below, the text was read once
MAX_READ_SHARE = 0.1  # of the items of a task; if models have read more of them, the page begins so


def build(report: ReportData) -> Section:
    """Return the head of the page."""
    analysis = report.analysis
    titles = find_titles(report)
    blocks = [Paragraph(describe_study(report), "runs"), *_list_untried(report, [*titles])]
    blocks.append(Paragraph(describe_runs(analysis), "muted runs"))
    if warning := summarize_ngram_comparisons(analysis.ngram_comparisons):
        if weak := find_weak_models(analysis):
            warning += f" Marked ‡ below.{_excuse_used_models(report, weak)}"
        blocks.append(Paragraph(warning, "worse runs"))
    if any(one.status == "failed" for one in analysis.failures):
        text = "Some results failed; the reasons are [below](#failed)."
        blocks.append(Paragraph(text, "worse", has_markup=True, only="html"))
    largest = [*find_largest_decisions(report.decisions).values()]
    return Section(describe_finding(largest), blocks, titles=titles, is_page=True)


def find_titles(report: ReportData) -> dict[str, str]:
    """Return the finding at each number of labels, of several, in the order of the study."""
    titles = {}
    for count in map(str, report.analysis.grid.label_counts):
        shown = [one for one in report.decisions if one.label_count in (count, "none")]
        if any(one.label_count == count for one in shown):
            finding = describe_finding(shown)
            labels = name_label_choice(report.decisions, count)
            titles[count] = f"With {labels} labels: {finding[0].lower()}{finding[1:]}"
    return titles if len(titles) > 1 else {}


def describe_study(report: ReportData) -> str:
    """Name the text, the repetitions and the day."""
    grid = report.analysis.grid
    parts = []
    if grid.models:
        parts.append(format_text_read(report))
        parts.append(f"{plural(len(grid.pretrain_seeds), 'pretraining run')} of each model")
    parts.append(plural(len(grid.finetune_seeds), "fine-tuning seed"))
    if report.provenance is not None and report.provenance.made_on:
        parts.append(report.provenance.made_on)
    return f"{', '.join(part for part in parts if part)}."


def format_text_read(report: ReportData) -> str:
    """Name the corpus and what each model read of it: `4 MB of novels.txt (en), read 3 times`."""
    analysis = report.analysis
    own = [one for one in analysis.budget if one.budget_matched and not one.members]
    known = [(one.text_bytes, one.epochs or 1.0) for one in own if one.text_bytes]
    if not known:
        return ""
    text_bytes, epochs = max(known)
    text = f"{format_si(text_bytes / max(epochs, 1.0), 'B')} of"
    passes = f", read {epochs:.1f} times".replace(".0 ", " ") if epochs >= MIN_PASSES else ""
    if report.params is None:
        return f"{text} text{passes}"
    corpus = report.params.corpora[report.params.budget.corpus]
    origins = dict.fromkeys(name_origin(source, short=True) for source in corpus.sources)
    return f"{text} {join_with_and([*origins])} ({corpus.language}){passes}"


def _list_untried(report: ReportData, label_counts: Sequence[str]) -> Iterator[Paragraph]:
    """Yield what was not tried at each number of labels; in Markdown at the most of them."""
    largest = [*find_largest_decisions(report.decisions).values()]
    for count in label_counts:
        shown = [one for one in report.decisions if one.label_count in (count, "none")]
        if text := describe_untried(report, shown):
            yield Paragraph(text, "runs", labels=count, only="html")
    if text := describe_untried(report, largest):
        yield Paragraph(text, "runs", only="markdown" if label_counts else "")


def describe_untried(report: ReportData, decisions: Sequence[Decision]) -> str:
    """Name what a reader expects of a comparison and this study left out; empty if nothing."""
    missing = [*_name_omitted(decisions)]
    if report.analysis.grid.models and not report.analysis.public_models:
        missing.insert(0, "a public model")
    return f"Not tried: {'; '.join(missing)}." if missing else ""


def _name_omitted(decisions: Sequence[Decision]) -> Iterator[str]:
    omitted: dict[tuple[str, str], list[Decision]] = {}
    for one in decisions:
        for method in one.omitted:
            found = find_method_type(method.transfer, method.head)
            assert found is not None
            omitted.setdefault((found.noun, method.label_count), []).append(one)
    for (noun, _), own in omitted.items():
        labels = format_count_range(one.train_examples for one in own)
        yield f"{noun} with {labels} labels ({join_with_and([one.task for one in own])})"


def describe_runs(analysis: Analysis) -> str:
    """Tell what the intervals of the first table do not cover."""
    text = (
        f"Intervals of scores are for other {analysis.split} items, those of differences for other "
        "seeds too; they do not cover how another pretraining would turn out."
    )
    read = [
        f"{one.in_corpus:,} of {one.items - one.too_short:,} {analysis.split} items of {one.task}"
        for one in analysis.contamination
        if one.in_corpus > MAX_READ_SHARE * (one.items - one.too_short)
    ]
    if read:
        text += (
            f" The corpus has the texts of {join_with_and(read)}, without their labels, so on new "
            "texts scores may be lower."
        )
    if analysis.public_models:
        text += " What public checkpoints have read is unknown, and may include these items."
    generated = [one.task for one in analysis.tasks if one.generated]
    if generated and len(generated) == len(analysis.tasks):
        text = f"All tasks are generated: their scores say nothing about real text. {text}"
    elif generated:
        text += f" Generated, not real: {join_with_and(generated)}."
    return text


def _excuse_used_models(report: ReportData, weak: Collection[str]) -> str:
    """Say which weak models are the ones to use all the same, by their scores on a task, if any."""
    used = (
        one.use.standing.system.model
        for one in report.decisions
        if one.advice == "pretrain on your text" and not one.knowledge
    )
    names = [format_model(model) for model in dict.fromkeys(used) if model in weak]
    if not names:
        return ""
    return f" Where the scores of a task decide for {join_with_and(names)}, use it all the same."


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
