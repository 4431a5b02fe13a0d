"""A report with something in every section, also what no committed report has.

Some of its records are invented, so that they need no training: do not look for sense in them.
"""

from dataclasses import replace
from pathlib import Path

from lineage import artifacts
from lineage.analysis.build import build_results
from lineage.analysis.convergence import ConvergenceControl, FinetuneCurve
from lineage.analysis.decision import Costs, SystemCost, decide
from lineage.analysis.disagreements import DisagreementItem, Disagreements, ItemPrediction
from lineage.analysis.records import (
    AdaptationEffect,
    Analysis,
    AnswerDetails,
    BenchmarkScore,
    Calibration,
    CalibrationBin,
    Ceiling,
    ClassScore,
    CleanScore,
    CleanScores,
    Comparison,
    ContaminationCounts,
    DuplicateLabelCount,
    Failure,
    GroupScore,
    GroupScores,
    LabelGain,
    NgramComparison,
    OurBenchmarkScore,
    OutsidePrice,
    SeedProblem,
    SeedScore,
    SwapConsistency,
    System,
    SystemScore,
    TaskSummary,
    TextCurve,
    TextGain,
    TruncationNote,
    UnknownTokenShare,
)
from lineage.config.params import ReportParams
from lineage.data.dataset_stats import FoldStats, SplitStats
from lineage.evaluation.ngram_bits import NgramBits
from lineage.report.provenance import Provenance, StageProvenance
from lineage.report.section import ReportData
from lineage.results import Note, joined_system_name
from tests.helpers.study_rows import GRID, Study

FULL_GRID = replace(GRID, target_only_models=("gpt",), join_models=("elmo",), join_tasks=("sense",))
ELMO = System("elmo", "elmo", "pretrained", "none", "frozen", "scalar_mix", "linear", "none")
GPT = replace(ELMO, model="gpt", family="gpt")
JOINED = replace(ELMO, model=joined_system_name("elmo", "word2vec"), family="joined")
OUTSIDE = System("llm", "outside", *["none"] * 6)
FAILED = SeedProblem(0, 2, "failed", (Note("error", "loss is | not finite"),))
PROVENANCE = Provenance(
    pipeline="0123",
    package="lineage 1.0",
    study="git commit abc",
    parameters="sha256 123",
    hosts="a machine",
    devices="cpu",
    compute_time="1.0 minutes over 2 stages",
    python="3.11",
    versions="torch 2",
    stages=(
        StageProvenance("sources", "f" * 64, "a machine", "cpu", None, None, None, None, 2.0, 5e8),
        StageProvenance("report", "", "", "", None, None, None, None, None, None),
    ),
)


def build_study_analysis(folder: Path) -> Analysis:
    """Return the analysis of a study in which BERT is a public checkpoint."""
    Study(folder, grid=FULL_GRID, items=60).write()
    for kind in ("rows", "predictions"):
        for path in folder.glob(f"{kind}/evaluate*-bert-*"):
            artifacts.write_table(path, artifacts.read_table(path).assign(family="public"))
    grid = replace(FULL_GRID, ablation_of={"gpt": "elmo"}, join_models=(), join_tasks=())
    return build_results(folder, grid, ReportParams())[1]


def build_full_analysis(folder: Path) -> Analysis:
    """Return an analysis with a record of every kind."""
    analysis = build_study_analysis(folder)
    analysis = replace(
        analysis,
        grid=replace(FULL_GRID, ablation_of={"gpt": "elmo"}),
        scores=(*_spoil_scores(analysis), *_invent_scores()),
        comparisons=(
            *analysis.comparisons,
            *_invent_continuation(analysis),
            *_invent_outside_tests(analysis),
        ),
        outside_prices=(OutsidePrice("sentiment", "llm", 2.4),),
        tasks=(*map(_spoil_data, analysis.tasks), _invent_task()),
        adaptation=_invent_adaptation(analysis),
        budget=tuple(replace(one, seconds=90.0, peak_memory_bytes=7e8) for one in analysis.budget),
        label_gains=(LabelGain("sentiment", ELMO, 300, 600, 0.8, 0.05, 0.01, 0.09),),
        swap_consistency=(
            SwapConsistency(
                "sense", "all", "gpt", "gpt", "pretrained", "finetuned", "linear", 0.85
            ),
            SwapConsistency("sense", "all", "elmo", "elmo", "random", "finetuned", "linear", 1.0),
        ),
        duplicate_label_counts=(DuplicateLabelCount("sense", "1000", 600, "all"),),
        convergence_controls=(
            ConvergenceControl("sense", "all", "fasttext", "accuracy", 0.6, 0.7),
        ),
        failures=(
            _invent_failure(),
            replace(_invent_failure(), group="rare", status="not_applicable"),
        ),
        contamination=(
            ContaminationCounts("sentiment", 60, 10, 3, 1),
            ContaminationCounts("sense", 60, 60, 0, None),
        ),
        clean_scores=(
            CleanScores("sentiment", "all", 600, "accuracy", (CleanScore(ELMO, 0.8, None, 0),)),
        ),
        unknown_token_shares=(
            UnknownTokenShare("sentiment", "elmo", "pretrained", 0.02),
            UnknownTokenShare("sentiment", "elmo", "adapted", 0.01),
            UnknownTokenShare("sentiment", "gpt", "pretrained", 0.0),
        ),
    )
    return replace(analysis, **_invent_details())


def _invent_details() -> dict[str, object]:
    """Return records that stand for themselves."""
    bins = (CalibrationBin(0.6, 0.5, 0.5), CalibrationBin(0.9, 0.7, 0.5))
    curve = FinetuneCurve(
        "sense", "gpt", "random", "finetuned", "linear", "accuracy", 2.0,
        (1.0, 2.0), (0.7, 0.5), (0.6, 0.6), (0.5, None),
    )  # fmt: skip
    confusion = ((0.9, 0.1), (0.25, 0.75))
    return {
        "ceilings": (Ceiling("sense", "left", 0.87), Ceiling("sense", "static", 0.54)),
        "finetune_curves": (curve, replace(curve, init="pretrained")),
        "group_scores": (
            GroupScores(
                "agreement", "none", 0, "accuracy", (ELMO, GPT),
                (GroupScore("near | far", 30, (0.7, 0.6)), GroupScore("<far>", 30, (0.5, None))),
            ),
        ),
        "answer_details": (
            AnswerDetails(
                "sentiment", "all", "items", (ELMO, GPT),
                (ClassScore("yes", 30, (0.9, 0.8)), ClassScore("<no>", 30, (0.6, 0.7))),
                ("yes", "<no>"), (confusion, confusion), (Calibration(bins, 0.15), None),
            ),
        ),
        "published_benchmarks": (
            BenchmarkScore(
                "sentiment", "sst2", "test",
                OurBenchmarkScore(ELMO, "all", 600, 60, "accuracy", {"accuracy": 0.8}),
            ),
            BenchmarkScore("sense", "sst2", "test", None),
            BenchmarkScore("agreement", "blimp", False, None),
        ),
        "ngram_bits": (NgramBits("kneser_ney", "bits_per_byte", 1.95, 9000, 5_000_000),),
        "ngram_comparisons": (
            NgramComparison("elmo", 1.45, 1.49, (), ("agreement",), "next tokens", 9000, low=-0.06, high=-0.02),
            NgramComparison("gpt", 2.1, 2.0, (), ("agreement",), "next tokens", 9000, low=0.05, high=0.15),
            NgramComparison("bert", 3.2, 3.25, ("agreement",), (), "masked tokens", 350, 8.7, low=-0.09, high=-0.01),
        ),
        "text_curves": (
            TextCurve("sense", "all", "accuracy", ELMO, (0.5, 1.0), (2e6, 4e6), (0.6, 0.65), 0.7, TextGain(0.5, 0.05, 0.03, 0.07)),
            TextCurve("sense", "all", "accuracy", GPT, (0.25, 1.0), (1e6, 4e6), (0.6, 0.62), 0.6, TextGain(0.25, 0.02, None, None)),
        ),
    }  # fmt: skip


def _spoil_scores(analysis: Analysis) -> list[SystemScore]:
    """Let a run of one system fail."""
    found = []
    for one in analysis.scores:
        is_gpt = (one.system.model, one.system.usage) == ("gpt", GPT.usage)
        if is_gpt and (one.task, one.label_count) == ("sentiment", "100"):
            found.append(replace(one, problems=(FAILED,)))
        else:
            found.append(one)
    return found


def _invent_scores() -> list[SystemScore]:
    """Return scores of two models at once, of a collapsed run, of a translation, and failed ones."""
    seeds = (SeedScore(0, 0, 0.9), SeedScore(0, 1, 0.91), SeedScore(0, 2, 0.5))
    joined = SystemScore(
        JOINED, "sense", "all", "word_sense", "accuracy", 600, seeds, (), 0.77, 0.7, 0.84, 60, 20, True
    )  # fmt: skip
    collapsed = replace(
        joined, system=replace(GPT, transfer="setfit", features="last", head="linear")
    )  # fmt: skip
    copied = System("copy", "copy", "none", "none", "none", "none", "none", "none")
    translation = SystemScore(
        copied, "deen", "all", "translation", "bleu", 50, seeds[:1], (), 0.12, 0.1, 0.14, 40, 40
    )  # fmt: skip
    failed = SeedProblem(None, 0, "not_applicable", (Note("unsupported", "translator"),))
    other = replace(
        translation, system=replace(GPT, transfer="finetuned"), seeds=(), problems=(failed,), mean=None, ci_low=None, ci_high=None
    )  # fmt: skip
    lost = replace(
        joined, system=replace(GPT, head="bilstm"), task="sentiment", kind="text_classification", seeds=(),
        problems=(FAILED,), mean=None, ci_low=None, ci_high=None
    )  # fmt: skip
    outside = replace(
        joined, system=OUTSIDE, task="sentiment", kind="text_classification", mean=0.7
    )
    outside_scores = [outside, replace(outside, label_count="100", train_examples=100)]
    lost_scores = [lost, replace(lost, label_count="100")]
    return [joined, collapsed, translation, other, *outside_scores, *lost_scores]


def _invent_outside_tests(analysis: Analysis) -> list[Comparison]:
    """Compare a system that is not trained here with one that is worse with 100 labels alone."""
    return [
        replace(
            one,
            comparison_type="outside",
            second=OUTSIDE,
            difference=-0.05 if one.label_count == "100" else 0.04,
            verdict="worse" if one.label_count == "100" else "better",
        )
        for one in analysis.comparisons
        if one.comparison_type == "tfidf" and one.task == "sentiment" and one.first == ELMO
    ]


def _invent_continuation(analysis: Analysis) -> list[Comparison]:
    """Compare a public checkpoint that continued on the corpus with the same one as it is."""
    return [
        replace(one, comparison_type="continuation", verdict="worse", difference=-0.03)
        for one in analysis.comparisons
        if one.comparison_type == "pretraining" and one.first.model == "bert"
    ]


def _invent_adaptation(analysis: Analysis) -> tuple[AdaptationEffect, ...]:
    first, *others = analysis.adaptation
    half = replace(first, num_improved=1, num_pretrainings=2, text_bytes=1e6, seconds=75.0)
    accuracy = replace(first, metric="next_sentence_accuracy", num_improved=0)
    return (half, accuracy, *others)


def _spoil_data(task: TaskSummary) -> TaskSummary:
    """Give a task all that can be wrong with its data."""
    if task.task == "sense":
        train = SplitStats(600, duplicates_in_folds=36)
        folds = FoldStats(5, 40, 2, 15)
        return replace(task, splits={"train": train}, cross_validation=folds)
    if task.task != "sentiment":
        return replace(task, averages_groups=True)
    train = SplitStats(
        600, truncated=9, invalid_tags=2, numeric_tags=9, tags_without_scheme=8,
        dropped={"unusable": 4, "limit": 5000, "blank": 1},
    )  # fmt: skip
    test = SplitStats(
        60, truncated=30, duplicates_of_train=3, groups_in_train=30, blank_words=5, tags_not_in_train=6
    )  # fmt: skip
    truncated = Note("truncated", {"share": 0.12, "max_positions": 128, "effect": "cut"})
    return replace(
        task,
        splits={"train": train, "validation": SplitStats(90, held_out_from_train=True), "test": test, "unlabelled": SplitStats(700)},
        may_truncate=True,
        max_words=50,
        truncation_notes=(TruncationNote(("gpt", "elmo"), truncated),),
    )  # fmt: skip


def _invent_task() -> TaskSummary:
    splits = {"train": SplitStats(50), "test": SplitStats(40)}
    return TaskSummary("deen", "translation", True, 40, "characters", True, False, splits, None, ())


def _invent_failure() -> Failure:
    return Failure(
        model="bert",
        family="public",
        init="pretrained",
        transfer="frozen",
        head="bilstm",
        task="sentiment",
        label_count="100",
        group="all",
        metric="accuracy",
        status="failed",
        reason=FAILED.reason,
        finetune_seeds=(0, 2),
        pretrain_seeds=(0,),
    )


def build_disagreements() -> list[Disagreements]:
    """Return items with their texts, as `report.show_text` has them."""
    right, wrong = ItemPrediction("yes", 1.0), ItemPrediction("<no>", 1 / 3)
    items = (DisagreementItem("test-1", "yes", (right, wrong), "A text | with <b>marks</b>."),)
    return [Disagreements("sentiment", (ELMO, GPT), items)]


def build_costs(analysis: Analysis) -> Costs:
    """Return times for all candidates: public models were built on a GPU."""
    found = {}
    for ranking in analysis.rankings:
        for place, standing in enumerate(ranking.standings):
            is_public = standing.system.family == "public"
            cost = SystemCost(30.0 * (place + 1), 5e8, 2.18e6, 1234.0, on_gpu=is_public)
            found[standing.system, ranking.setting] = cost
    return found


def build_full_report(folder: Path) -> ReportData:
    """Return a report with something in every section."""
    analysis = build_full_analysis(folder)
    costs = build_costs(analysis)
    decisions = decide(analysis, costs)
    return ReportData(analysis, decisions, costs, PROVENANCE, build_disagreements())
