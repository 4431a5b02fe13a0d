"""The verdict in plain words, from the tree of results.json."""

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

from lineage.analysis.cells import (
    CHANCE_BASELINES,
    IDENTICAL_PREDICTIONS,
    MEAN_TOLERANCE,
    TRAINED_INITS,
    UNMATCHED_FAMILIES,
)
from lineage.evaluation.metrics import MIN_SCORES
from lineage.report.tree import baseline_is_near_chance, find_result
from lineage.results import ENSEMBLE_FAMILY, JOINED_FAMILY, PUBLIC_FAMILY

JsonDict = dict[str, Any]
NOT_BUDGET_MATCHED = "not budget-matched"
METRIC_UNITS = {
    "bleu": ("BLEU", "BLEU"),
    "span_f1": ("F1", "F1 of spans"),
    "token_accuracy": ("%", "% of words right"),
    "macro_f1": ("F1", "F1, the mean over labels"),
    "matthews": ("r x 100", "Matthews' r x 100"),
    "f1": ("F1", "F1 of words"),
    "exact_match": ("%", "% matched exactly"),
    "pearson": ("r x 100", "Pearson's r x 100"),
    "spearman": ("rho x 100", "Spearman's rho x 100"),
}

MIN_ITEMS_FOR_INTERVAL = 10  # with less, it is they that limits have to be wide for
SI_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def format_system(system: JsonDict) -> str:
    """`bert, tuned`; `gpt adapted, frozen`; `tfidf`; `both (two budgets), tuned`; `roberta (not budget-matched), tuned`."""
    budgets = {
        ENSEMBLE_FAMILY: " (two budgets)",
        JOINED_FAMILY: " (two budgets)",
        PUBLIC_FAMILY: f" ({NOT_BUDGET_MATCHED})",
    }.get(system["family"], "")
    init = "" if system["init"] in ("pretrained", "none") else f" {system['init']}"
    transfer = "" if system["transfer"] == "none" else f", {system['transfer'].replace('_', '-')}"
    return f"{system['model']}{budgets}{init}{transfer}{format_head(system)}"


def format_head(system: JsonDict) -> str:
    """What stands over frozen features, where that is more than a linear reader: ` + BiLSTM-CRF`."""
    return {"bilstm": " + BiLSTM", "bilstm_crf": " + BiLSTM-CRF"}.get(system["head"], "")


def format_label_count(label_count: str, *, train_examples: int = 0) -> str:
    """`100 labels`; `all 600 labels`; `no labels`."""
    if label_count == "none":
        return "no labels"
    if label_count == "all" and train_examples:
        return f"all {train_examples} labels"
    short = label_count != "all" and 0 < train_examples < int(label_count)
    return (
        f"{label_count} labels (there are {train_examples})" if short else f"{label_count} labels"
    )


def metric_unit(metric: str) -> str:
    """What stands behind a value of a metric, as in 71.3 % or 25.1 BLEU."""
    return METRIC_UNITS.get(metric, ("%", "% right"))[0]


def metric_heading(metric: str) -> str:
    """What stands over values of a metric."""
    return METRIC_UNITS.get(metric, ("%", "% right"))[1]


def describe_intervals(tree: JsonDict) -> str:
    """What intervals are over, and what they leave out: the words behind `Intervals are 95 %, `."""
    if max((one["repetitions"] for one in tree["comparisons"]), default=0) > 1:
        known = {
            key: [{seeds[key] for seeds in cell["seeds"]} - {None} for cell in tree["cells"]]
            for key in ("pretrain_seed", "finetune_seed")
        }
        several = [
            name
            for name, key in (("pretrainings", "pretrain_seed"), ("seeds", "seed"))
            if max(map(len, known[key])) > 1
        ]
        alone = (
            ""
            if max(map(len, known["finetune_seed"])) != 1
            else " There was one fine-tuning seed, and what another one changes is not in them."
        )
        return f"over {_join_with_and(['num_examples', *(several or ['seeds'])])} at once (above guessing: over examples, of these models).{alone}"
    return (
        "over examples alone. Nothing was repeated with another seed, which may change any verdict."
    )


def describe_ablation_models(tree: JsonDict) -> str:
    """Which variants are compared with one other alone, and so are in none of the verdicts; nothing where there are none."""
    if not (names := [*tree["grid"]["ablation_of"]]):
        return ""
    return f"{_join_with_and(names)} {'is' if len(names) == 1 else 'are'} no rival here: a single change is compared with what it changes, below."


def describe_trials(tree: JsonDict) -> str:
    """How often the arms were tried on validation; a warning where not all alike."""
    least, most = tree["trials"]["least"], tree["trials"]["most"]
    if least == most:
        tried = f"Each arm, untrained twins and tfidf too, had {most} trials on validation."
        return "Each arm had one setting: none was chosen on validation." if most == 1 else tried
    return (
        f"Arms had between {least} and {most} trials on validation: they are not matched in tuning."
    )


def format_percent(value: float | None) -> str:
    """A share as a percentage with one digit, and no sign before a zero."""
    return "–" if value is None else f"{100 * value:z.1f}".replace("-", "−")


def format_difference(value: float) -> str:
    """A difference in points, with its sign."""
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def format_comparison(comparison: JsonDict) -> str:
    """`+1.2 points, −0.4 to +2.9`: a comparison with its interval, which same answers have not; where that is all that a difference can be, why."""
    if comparison["verdict"] == IDENTICAL_PREDICTIONS:
        return f"{format_difference(comparison['difference'])} points"
    widest = 1.0 - MIN_SCORES.get(comparison["metric"], 0.0)
    if comparison["low"] <= -widest and comparison["high"] >= widest:
        few = "items" if comparison["num_examples"] < MIN_ITEMS_FOR_INTERVAL else "repetitions"
        return f"{format_difference(comparison['difference'])} points, too few {few} for limits"
    return f"{format_difference(comparison['difference'])} points, {format_difference(comparison['low'])} to {format_difference(comparison['high'])}"


def format_si(value: float | None, unit: str = "") -> str:
    """1.23 M: three digits and a prefix; n/a for what a family does not have."""
    if value is None:
        return "n/a"
    rounded = abs(float(f"{value:.3g}"))  # 999.7 k are 1 M
    size, prefix = next(((s, p) for s, p in SI_PREFIXES if rounded >= s), (1.0, ""))
    return f"{value / size:.3g} {prefix}{unit}".strip()


def format_cost(budget_line: JsonDict) -> str:
    """`775 k FLOPs a byte`: what a variant's training took for each byte of text, from its line of the budget; n/a where FLOPs are not counted."""
    known = budget_line.get("train_flops") is not None and budget_line.get("text_bytes")
    return (
        f"{format_si(budget_line['train_flops'] / budget_line['text_bytes'])} FLOPs a byte"
        if known
        else "n/a"
    )


def summarize_settings(tree: JsonDict) -> list[JsonDict]:
    """One verdict a task and number of labels: the best way, those level with it, and the rivals by what the comparison with each showed."""
    found: dict[tuple[str, str], JsonDict] = {}
    for result in tree["cells"]:
        found.setdefault(
            (result["task"], result["label_count"]),
            {
                "task": result["task"],
                "label_count": result["label_count"],
                "train_examples": 0,
                "rivals": [],
                "beside": [],
                "not_compared": [],
            },
        )
        setting = found[result["task"], result["label_count"]]
        setting["train_examples"] = max(setting["train_examples"], result["train_examples"])
    for one in tree["comparisons"]:
        setting = found[one["task"], one["label_count"]]
        if one["question"] in ("best", "guess"):
            setting["way"] = one["first"]
        if one["question"] == "best":
            setting["rivals"].append(one | {"planned": _planned_repetitions(tree, one)})
        if one["question"] == "beside":
            setting.setdefault("way", one["second"])
            setting["beside"].append(one)
        if one["question"] == "guess":
            setting["guess"] = min(
                one, setting.get("guess", one), key=lambda guess: float(guess["low"])
            )  # the one that is hardest to beat
    for one in tree["not_compared"]:
        setting = found[one["task"], one["label_count"]]
        setting["way"] = one["first"]
        setting["not_compared"].append(one["second"])
    for setting in found.values():
        if "way" not in setting:
            continue
        asked = {"task": setting["task"], "label_count": setting["label_count"]}
        setting["cell"] = find_result(tree, setting["way"], **asked)
        setting["beside"] = [
            one | {"mean": find_result(tree, one["first"], **asked)["mean"]}
            for one in setting["beside"]
        ]
        setting["above"] = _higher_scores(tree, setting)
        means = [
            (way, find_result(tree, way, **asked)["mean"])
            for way in (*(one["second"] for one in setting["rivals"]), *setting["not_compared"])
        ]
        setting["level"] = [
            setting["way"],
            *(way for way, mean in means if abs(mean - setting["cell"]["mean"]) <= MEAN_TOLERANCE),
        ]  # no lead, if there are others
        setting["guessed"] = setting["way"]["model"] in CHANCE_BASELINES or (
            "guess" in setting and setting["guess"]["verdict"] != "better"
        )
        setting["alone"] = not (setting["rivals"] or setting["guessed"])
        verdicts = {one["verdict"] for one in setting["rivals"]}  # each on the repetitions of both
        setting |= {
            "clear": verdicts == {"better"} and not (setting["not_compared"] or setting["guessed"]),
            "behind": "worse" in verdicts,
        }
        setting["twin"] = _random_init_comparison(tree, setting)
    return [setting for setting in found.values() if "way" in setting]


def _planned_repetitions(tree: JsonDict, comparison: JsonDict) -> int:
    """On how many repetitions two ways would have been compared, had nothing failed: each of both, or of the one that has any, in pretraining and in
    what follows."""
    seeds = [
        s
        for way in (comparison["first"], comparison["second"])
        for s in find_result(
            tree, way, task=comparison["task"], label_count=comparison["label_count"]
        )["seeds"]
    ]
    keys = (("pretrain_seed", "pretrain_seeds"), ("seed", "seeds"))
    return prod(
        len(tree["grid"][all_of]) for key, all_of in keys if any(s[key] is not None for s in seeds)
    )


def _higher_scores(tree: JsonDict, setting: JsonDict) -> list[JsonDict]:
    """What has a higher mean than the leader and is no rival of it: single changes of a variant, and untrained twins; of each kind the best."""
    rest = [
        cell
        for cell in tree["cells"]
        if (cell["task"], cell["label_count"]) == (setting["task"], setting["label_count"])
        and cell["family"] not in UNMATCHED_FAMILIES
    ]
    higher = sorted(
        (
            cell
            for cell in rest
            if cell["mean"] is not None and cell["mean"] > setting["cell"]["mean"] + MEAN_TOLERANCE
        ),
        key=lambda c: -c["mean"],
    )
    changed = [
        cell
        for cell in higher
        if cell["model"] in tree["grid"]["ablation_of"] and cell["init"] in TRAINED_INITS
    ]
    return [*changed[:1], *[cell for cell in higher if cell["init"] == "random"][:1]]


def _random_init_comparison(tree: JsonDict, setting: JsonDict) -> JsonDict | None:
    """The comparison of the leader, as it was before an adaptation, with its untrained twin."""
    for one in tree["comparisons"]:
        same = all(
            one["first"][key] == setting["way"][key]
            for key in ("model", "transfer", "features", "head")
        )
        if same and (one["question"], one["task"], one["label_count"]) == (
            "pretraining",
            setting["task"],
            setting["label_count"],
        ):
            return one | {"over_guessing": baseline_is_near_chance(tree, one)}
    return None


def describe_setting(setting: JsonDict, *, margin: float) -> list[str]:
    """What one question's comparisons say, a sentence a kind of answer, the open ones first."""
    said = []
    if setting["guessed"]:  # and then it matters little whom it leads
        by = f" ({format_comparison(setting['guess'])})" if "guess" in setting else ""
        said.append(
            "Nothing is shown to be better than guessing."
            if setting["way"]["model"] in CHANCE_BASELINES
            else f"Not shown to be better than guessing{by}."
        )
    said += [*_describe_rivals(setting, margin=margin), *_describe_pretraining_gain(setting)]
    if len(setting["level"]) > 1 and said:
        said[0] = f"The first: {said[0][0].lower()}{said[0][1:]}"
    return said + _describe_unranked_systems(setting)


def _describe_rivals(setting: JsonDict, *, margin: float) -> list[str]:
    by_word: dict[str, list[JsonDict]] = {}
    for one in setting["rivals"]:
        by_word.setdefault(one["verdict"], []).append(one)

    def list_rivals(word: str, shown: Callable[[JsonDict], str]) -> str:
        return _join_with_and(
            [
                f"{format_system(one['second'])} ({shown(one)}{_format_missing_repetitions(one)})"
                for one in by_word[word]
            ]
        )

    said = (
        [f"Not separated from {list_rivals('not separated', format_comparison)}."]
        if "not separated" in by_word
        else []
    )
    if (
        "worse" in by_word
    ):  # its mean is over other seeds than the rival's, or a mean of shares that are not the whole's
        said.append(f"Worse than {list_rivals('worse', format_comparison)}.")
    if setting["not_compared"]:
        said.append(
            f"Not compared with {_join_with_and([format_system(way) for way in setting['not_compared']])}: they have no seed in common."
        )
    if "not worse" in by_word:
        said.append(
            f"Equal within {100 * margin:g} points to "
            + _join_with_and([format_system(o["second"]) for o in by_word["not worse"]])
            + "."
        )
    if IDENTICAL_PREDICTIONS in by_word:
        said.append(
            "The same answers as "
            + _join_with_and([format_system(o["second"]) for o in by_word[IDENTICAL_PREDICTIONS]])
            + "."
        )
    if "better" in by_word:
        said.append(
            f"Better than {list_rivals('better', lambda one: format_difference(one['difference']))}."
        )
    return said


def _describe_pretraining_gain(setting: JsonDict) -> list[str]:
    if not (twin := setting["twin"]):
        return []
    what = (
        "Pretraining"
        if setting["way"]["init"] == "pretrained"
        else "Its pretraining, before adaptation,"
    )
    helped = {
        "better": "helped",
        "worse": "hurt",
        "not worse": "made no difference",
        IDENTICAL_PREDICTIONS: "changed no answer",
        "not separated": "is not shown to help",
    }[twin["verdict"]]
    itself = ", itself not shown to be better than guessing" if twin["over_guessing"] else ""
    return [f"{what} {helped} ({format_comparison(twin)} over the untrained twin{itself})."]


def _describe_unranked_systems(setting: JsonDict) -> list[str]:
    """What stands beside the leader, and is no rival of it."""
    measure, said = metric_unit(setting["cell"]["metric"]), list[str]()
    for result in setting["above"]:
        why = (
            "which no pretraining has seen"
            if result["init"] == "random"
            else "a single change, which is compared with what it changes alone"
        )
        said.append(
            f"Above it is {format_system(result)}, with {format_percent(result['mean'])} {measure}, {why}."
        )
    if setting["alone"] and not setting["not_compared"]:
        said.append("It has no rival of one budget.")
    if setting["beside"]:
        others = [
            f"{format_system(o['first'])}, with {format_percent(o['mean'])} {measure} ({format_comparison(o)})"
            for o in setting["beside"]
        ]
        said.append(
            f"Beside {'them' if setting['rivals'] else 'it'} stands {_join_with_and(others)}."
        )
    return said


def _format_missing_repetitions(comparison: JsonDict) -> str:
    """`, on 2 of 3 repetitions`, where some of either have no counterpart, as of a seed that failed."""
    return (
        f", on {comparison['repetitions']} of {comparison['planned']} repetitions"
        if comparison["repetitions"] < comparison["planned"]
        else ""
    )


def format_leaders(setting: JsonDict) -> str:
    """The way that leads, or all that are level: `equal at the top: elmo, frozen; bert, tuned`."""
    systems = [format_system(way) for way in setting["level"]]
    return f"equal at the top: {'; '.join(systems)}" if len(systems) > 1 else systems[0]


def count_wins(settings: list[JsonDict]) -> Counter[str]:
    """On how many questions each variant leads: where it is better than guessing, has rivals, and none is level with it or shown to be better."""
    return Counter(
        q["way"]["model"]
        for q in settings
        if not q["guessed"] and not q["alone"] and not q["behind"] and len(q["level"]) == 1
    )


def summarize(tree: JsonDict) -> str:
    """The whole in two sentences, and a third one where public checkpoints are better than what leads."""
    asked = summarize_settings(tree)
    if not asked:
        return "No two ways could be compared: see what has no value, and whether there are two items at least."
    guessed, level = (
        sum(q["guessed"] for q in asked),
        sum(len(q["level"]) > 1 for q in asked if not q["guessed"]),
    )
    behind = sum(q["behind"] and len(q["level"]) == 1 for q in asked if not q["guessed"])
    clear, alone = (
        sum(q["clear"] for q in asked),
        Counter(q["way"]["model"] for q in asked if q["alone"]),
    )
    first = f"Of {len(asked)} question{'s' if len(asked) > 1 else ''} (a task with a number of labels), "
    nobody = [f"on {level} several are equal at the top"] if level else []
    nobody += (
        [f"on {behind} what has the highest mean is worse than another on the repetitions of both"]
        if behind
        else []
    )
    nobody += (
        [f"on {guessed} what leads is not shown to be better than guessing"] if guessed else []
    )
    nobody += [
        f"on {count} {variant} has no rival that it could be compared with"
        for variant, count in alone.most_common()
    ]
    first += (
        _join_with_and(
            [
                *(
                    f"{variant} leads on {count}"
                    for variant, count in count_wins(asked).most_common()
                ),
                *nobody,
            ]
        )
        + "."
    )
    if alone.total() == len(asked):
        second = "So none is shown to serve best."
    elif clear == len(asked) - alone.total():
        second = "Each lead is separated from every rival."
    elif not clear:
        second = "No lead is separated from every rival: what stays open is said below."
    else:
        of = ", ".join(
            f"{count} of {variant}"
            for variant, count in Counter(
                q["way"]["model"] for q in asked if q["clear"]
            ).most_common()
        )
        second = f"{clear} of these leads ({of}) {'is' if clear == 1 else 'are'} separated from every rival; what stays open is said below."
    above = [q for q in asked if any(one["verdict"] == "better" for one in q["beside"])]
    best = count_wins(above).total() == len(above)
    below = (
        "what leads"
        if best
        else _join_with_and([*alone])
        if alone.total() == len(asked)
        else "the first of one budget"
    )
    third = (
        [f"A public checkpoint, not budget-matched, is better than {below} on {len(above)}."]
        if above
        else []
    )
    return " ".join([first, second, *third])


def _join_with_and(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
