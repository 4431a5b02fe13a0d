"""The sections of the report -> one HTML page, the same as Markdown, and a table on screen."""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

from rich.console import Console

from lineage.analysis.decision import Decision
from lineage.analysis.records import Analysis
from lineage.report import html, markdown, terminal
from lineage.report.decisions import (
    describe_decision,
    describe_limits,
    describe_omitted,
    name_labels,
    order_decisions,
    summarize_decisions,
)
from lineage.report.section import Block, Figures, ReportData, Section, as_figure
from lineage.report.sections.answer import summarize_ngram_comparisons
from lineage.report.sections.outside_systems import describe_outside_systems
from lineage.report.styles import format_model_name
from lineage.report.task_notes import describe_fold_training

# The files in the folder `sections`, in the order of the page. Each has a function `build`.
SECTIONS = (
    "answer",
    "what_to_use",
    "gains",
    "labels",
    "outside_systems",
    "text",
    "layers",
    "neighbours",
    "quality_cost",
    "tasks",
    "todays_recipe",
    "claims",
    "ablations",
    "published_results",
    "what_was_run",
    "data",
    "recipes",
    "budget",
    "ngrams",
    "loss_curves",
    "adaptation",
    "failures",
    "comparisons",
    "provenance",
)


# Those that say what the models learned stand together in one folded part.
LEARNING = ("ngrams", "loss_curves", "adaptation")


def build_sections(report: ReportData) -> list[Section]:
    """Return the sections that have something to say."""
    found: list[Section] = []
    learning: list[Section] = []
    for name in SECTIONS:
        module = import_module(f"lineage.report.sections.{name}")
        build: Callable[[ReportData], Section | None] = module.build
        section = build(report)
        if section is not None and name in LEARNING:
            learning.append(section)
        elif section is not None:
            found.append(section)
        if name == LEARNING[-1] and learning:
            title = "What the models learned"
            found.append(
                Section(title, learning, anchor="learning", link="Learning", is_folded=True)
            )
    return found


def render_report(report: ReportData) -> dict[str, str]:
    """Return the report as `html` and as `md`."""
    sections = build_sections(report)
    return {
        "html": html.render_page(sections, study=list_models(report.analysis)),
        "md": markdown.render_page(sections),
    }


def list_models(analysis: Analysis) -> str:
    """Name the models of a study: `ELMo, GPT`."""
    names = [format_model_name(analysis, name) for name in analysis.grid.models]
    return ", ".join(names) or "baselines only"


def render_figures(analysis: Analysis, decisions: Sequence[Decision]) -> dict[str, str]:
    """Return the charts as SVG files, by name."""
    charts: dict[str, list[str]] = {}
    for figures in _find_figures(build_sections(ReportData(analysis, decisions))):
        if figures.file:
            charts.setdefault(figures.file, []).extend(
                as_figure(one).svg for one in figures.figures
            )
    return {
        f"{name}-{number}.svg": svg
        for name, drawn in charts.items()
        for number, svg in enumerate(drawn, start=1)
    }


def _find_figures(blocks: Sequence[Block]) -> Iterator[Figures]:
    for block in blocks:
        if isinstance(block, Figures):
            yield block
        if isinstance(block, Section):
            yield from _find_figures(block.blocks)


def print_table(analysis: Analysis, decisions: Sequence[Decision], console: Console) -> None:
    """Print the means over seeds, a line per system, with those to use marked, and the decisions."""
    terminal.print_means(analysis, decisions, console)
    lines = [summarize_decisions(analysis, decisions)]
    for one in order_decisions(decisions):
        limits = []
        if one.label_count == "all":
            limits = [*describe_limits(analysis, one), describe_omitted(one)]
        sentences = " ".join([describe_decision(one), *limits]).strip()
        lines.append(f"- {one.task}, {name_labels(one)}: {sentences}")
    lines += describe_outside_systems(analysis)
    folds = {one.task: describe_fold_training(analysis, one.task) for one in analysis.tasks}
    lines += [f"{task}: {sentence}" for task, sentence in folds.items() if sentence]
    warning = summarize_ngram_comparisons(analysis.ngram_comparisons)
    if warning:
        lines.append(warning)
    terminal.print_lines(lines, console)
