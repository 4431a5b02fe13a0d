"""The findings in plain sentences."""

from collections import Counter
from collections.abc import Callable, Sequence

from lineage.analysis.records import (
    CHANCE_BASELINES,
    Analysis,
    Comparison,
    SystemScore,
    TrialCounts,
)
from lineage.analysis.settings import Rival, SettingSummary, count_wins, summarize_settings
from lineage.report.formatting import (
    format_comparison,
    format_difference,
    format_percent,
    format_system,
    join_with_and,
    metric_unit,
    plural,
)

PRETRAINING_EFFECTS = {
    "better": "helped",
    "worse": "hurt",
    "equivalent": "made no difference",
    "identical predictions": "changed no prediction",
    "no significant difference": "made no significant difference",
}
METHOD_NAMES = {
    "linear_probe": "a linear probe",
    "bilstm_probe": "a BiLSTM probe",
    "finetune": "fine-tuning",
    "setfit": "SetFit",
    "tfidf": "TF-IDF",
}


def summarize(analysis: Analysis) -> str:
    """Return the whole result in two sentences.

    A third one follows if public checkpoints are better than what leads.
    """
    settings = summarize_settings(analysis)
    if not settings:
        return (
            "No two systems could be compared. See what failed, and whether there are at least "
            "two items."
        )
    sentences = [_count_leads(settings), _count_significant_leads(settings)]
    above = [
        setting
        for setting in settings
        if any(rival.comparison.verdict == "better" for rival in setting.public)
    ]
    if above:
        below = (
            "the leader"
            if all(one.has_winner for one in above)
            else "the best budget-matched system"
        )
        sentences.append(
            f"A public checkpoint, not budget-matched, is better than {below} in {len(above)}."
        )
    return " ".join(sentences)


def _count_leads(settings: Sequence[SettingSummary]) -> str:
    above_chance = [one for one in settings if not one.leader_at_chance]
    num_tied = sum(one.is_tied for one in above_chance)
    num_beaten = sum(one.is_beaten and not one.is_tied for one in above_chance)
    num_at_chance = len(settings) - len(above_chance)
    parts = [f"{model} leads in {count}" for model, count in count_wins(settings).most_common()]
    if num_tied:
        parts.append(f"{num_tied} end in a tie" if num_tied > 1 else "1 ends in a tie")
    if num_beaten:
        parts.append(
            f"in {num_beaten} the highest mean is worse than a rival's on the seeds of both"
        )
    if num_at_chance:
        parts.append(f"in {num_at_chance} no lead is significantly above chance")
    without_rival = Counter(one.leader.model for one in settings if one.has_no_rival)
    for model, count in without_rival.most_common():
        parts.append(f"in {count} {model} has no rival to compare with")
    verb = "is" if len(settings) == 1 else "are"
    number = plural(len(settings), "setting")
    return f"There {verb} {number} (a task at a number of labels): {join_with_and(parts)}."


def _count_significant_leads(settings: Sequence[SettingSummary]) -> str:
    significant = Counter(one.leader.model for one in settings if one.leads_significantly)
    num_significant = significant.total()
    num_without_rival = sum(one.has_no_rival for one in settings)
    if num_without_rival == len(settings):
        return "So no system is shown to be the best."
    if num_significant == len(settings) - num_without_rival:
        return "Every lead is significant over every rival."
    if not num_significant:
        return "No lead is significant over every rival."
    parts = ", ".join(f"{model} in {count}" for model, count in significant.most_common())
    return f"The lead is significant over every rival in {num_significant} ({parts})."


def describe_setting(setting: SettingSummary, *, margin: float) -> list[str]:
    """Return the findings in one setting, open questions first.

    `margin` is that of equivalence, as a share.
    """
    sentences = []
    if setting.leader.model in CHANCE_BASELINES:
        sentences.append("No system is significantly above chance.")
    elif setting.leader_at_chance and setting.vs_chance:
        interval = format_comparison(setting.vs_chance)
        sentences.append(f"Not significantly above chance ({interval}).")
    sentences += _describe_rivals(setting, margin=margin)
    sentences += _describe_pretraining_gain(setting)
    if setting.is_tied and sentences:
        sentences[0] = f"The first: {sentences[0][0].lower()}{sentences[0][1:]}"
    return sentences + _describe_unranked_systems(setting)


def _describe_rivals(setting: SettingSummary, *, margin: float) -> list[str]:
    by_verdict: dict[str, list[Rival]] = {}
    for rival in setting.rivals:
        by_verdict.setdefault(rival.comparison.verdict, []).append(rival)
    sentences = []
    if unclear := by_verdict.get("no significant difference"):
        rivals = _list_rivals(unclear, format_comparison)
        sentences.append(f"No significant difference from {rivals}.")
    if better := by_verdict.get("worse"):
        # The mean of the leader is over other seeds, or it is a mean of shares of a metric.
        sentences.append(f"Worse than {_list_rivals(better, format_comparison)}.")
    if setting.not_compared:
        names = join_with_and([format_system(system) for system in setting.not_compared])
        sentences.append(f"Not compared with {names}: they have no seed in common.")
    if equivalent := by_verdict.get("equivalent"):
        names = join_with_and([format_system(rival.system) for rival in equivalent])
        sentences.append(f"Equivalent (within ±{100 * margin:g} points) to {names}.")
    if identical := by_verdict.get("identical predictions"):
        names = join_with_and([format_system(rival.system) for rival in identical])
        sentences.append(f"Identical predictions to {names}.")
    if worse := by_verdict.get("better"):
        rivals = _list_rivals(worse, lambda one: format_difference(one.difference))
        sentences.append(f"Better than {rivals}.")
    return sentences


def _list_rivals(rivals: Sequence[Rival], show: Callable[[Comparison], str]) -> str:
    """List rivals with the shown part of their comparison, and repetitions that are missing."""
    parts = []
    for rival in rivals:
        text = show(rival.comparison)
        repetitions = rival.comparison.repetitions
        if repetitions < rival.planned_repetitions:
            text += f", on {repetitions} of {rival.planned_repetitions} repetitions"
        parts.append(f"{format_system(rival.system)} ({text})")
    return join_with_and(parts)


def _describe_pretraining_gain(setting: SettingSummary) -> list[str]:
    if setting.vs_random_init is None:
        return []
    comparison = setting.vs_random_init.comparison
    before = "" if setting.leader.init == "pretrained" else " (before adaptation)"
    effect = PRETRAINING_EFFECTS[comparison.verdict]
    difference = f"{format_comparison(comparison)} over random init"
    if setting.vs_random_init.baseline_near_chance:
        difference += ", which is near chance"
    return [f"Pretraining{before} {effect} ({difference})."]


def _describe_unranked_systems(setting: SettingSummary) -> list[str]:
    """Describe the systems that are shown with the leader, but are no rivals of it."""
    unit = metric_unit(setting.score.metric)
    sentences = [_describe_higher_score(score, unit) for score in setting.higher_scores]
    if setting.has_no_rival and not setting.not_compared:
        sentences.append("It has no budget-matched rival.")
    if setting.public:
        others = []
        for rival in setting.public:
            name = format_system(rival.comparison.first)
            interval = format_comparison(rival.comparison)
            others.append(f"{name}: {format_percent(rival.mean)} {unit} ({interval})")
        sentences.append(f"For reference, {join_with_and(others)}.")
    return sentences


def _describe_higher_score(score: SystemScore, unit: str) -> str:
    name = f"{format_system(score.system)} scores higher ({format_percent(score.mean)} {unit})"
    if score.system.init == "random":
        return f"{name}, without any pretraining."
    return f"{name}, but is an ablation and compared only with its original."


def format_leaders(setting: SettingSummary) -> str:
    """Name the leader, or all that tie: `tie: elmo, frozen; bert, fine-tuned`."""
    systems = [format_system(system) for system in setting.tied_leaders]
    if setting.is_tied:
        return f"tie: {'; '.join(systems)}"
    return systems[0]


def describe_intervals(analysis: Analysis) -> str:
    """Return the sources of variation in intervals: the words behind `Intervals are 95 %, `."""
    if max((one.repetitions for one in analysis.comparisons), default=0) <= 1:
        return "over items only. Nothing was repeated with another seed, which may change verdicts."
    num_pretrain_seeds = 0
    num_finetune_seeds = 0
    for score in analysis.scores:
        pretrain_seeds = {seed.pretrain_seed for seed in score.seeds} - {None}
        finetune_seeds = {seed.finetune_seed for seed in score.seeds} - {None}
        num_pretrain_seeds = max(num_pretrain_seeds, len(pretrain_seeds))
        num_finetune_seeds = max(num_finetune_seeds, len(finetune_seeds))
    sources = ["items"]
    if num_pretrain_seeds > 1:
        sources.append("pretraining seeds")
    if num_finetune_seeds > 1:
        sources.append("fine-tuning seeds")
    if sources == ["items"]:
        sources.append("seeds")
    text = f"over {join_with_and(sources)} (those of chance: over items, for these models)."
    if num_finetune_seeds == 1:
        text += " There was one fine-tuning seed, so they do not cover what another would change."
    return text


def describe_ablation_models(analysis: Analysis) -> str:
    """Name the models that are compared with one other model only; empty without any."""
    names = list(analysis.grid.ablation_of)
    if not names:
        return ""
    if len(names) == 1:
        return f"{names[0]} is an ablation, so it is compared only with its original."
    return f"{join_with_and(names)} are ablations, so each is compared only with its original."


def describe_trials(trials: Sequence[TrialCounts]) -> str:
    """Tell how many configurations were tried, and warn if tuning is not matched."""
    unmatched = [one for one in trials if one.min != one.max]
    if unmatched:
        parts = [
            f"{one.min} to {one.max} configurations of {METHOD_NAMES[one.method]}"
            for one in unmatched
        ]
        return (
            f"Validation chose among {join_with_and(parts)}, depending on the system: tuning is "
            "not matched."
        )
    tuned = [one for one in trials if one.max > 1]
    if not tuned:
        return "Each system had one configuration: nothing was tuned on validation."
    parts = [f"{one.max} configurations of {METHOD_NAMES[one.method]}" for one in tuned]
    return (
        "For every system, random-init baselines too, validation chose among "
        f"{join_with_and(parts)}."
    )
