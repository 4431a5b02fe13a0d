"""The verdict in plain words, from the tree of results.json."""

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

from lineage.report.cells import APART, GUESSES, SAME, SAME_ANSWERS, TRAINED
from lineage.report.tree import cell_of, over_guessing
from lineage.rows import ENSEMBLE, JOINED, PUBLIC
from lineage.scoring.metrics import LOWEST

Tree = dict[str, Any]
UNMATCHED = "not budget-matched"
UNITS = {"bleu": ("BLEU", "BLEU"), "span_f1": ("F1", "F1 of spans"), "token_accuracy": ("%", "% of words right"),
         "macro_f1": ("F1", "F1, the mean over labels"), "matthews": ("r x 100", "Matthews' r x 100"),
         "f1": ("F1", "F1 of words"), "exact_match": ("%", "% matched exactly"),
         "pearson": ("r x 100", "Pearson's r x 100"), "spearman": ("rho x 100", "Spearman's rho x 100")}  # fmt: skip

FEW_ITEMS = 10  # with less, it is they that limits have to be wide for
PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def way_words(way: Tree) -> str:
    """`bert, tuned`; `gpt adapted, frozen`; `tfidf`; `both (two budgets), tuned`; `roberta (not budget-matched), tuned`."""
    budgets = {ENSEMBLE: " (two budgets)", JOINED: " (two budgets)", PUBLIC: f" ({UNMATCHED})"}.get(way["family"], "")
    init = "" if way["init"] in ("pretrained", "none") else f" {way['init']}"
    transfer = "" if way["transfer"] == "none" else f", {way['transfer'].replace('_', '-')}"
    return f"{way['variant']}{budgets}{init}{transfer}{head_words(way)}"


def head_words(way: Tree) -> str:
    """What stands over frozen features, where that is more than a linear reader: ` + BiLSTM-CRF`."""
    return {"bilstm": " + BiLSTM", "bilstm_crf": " + BiLSTM-CRF"}.get(way["head"], "")


def labels_words(labels: str, *, train_examples: int = 0) -> str:
    """`100 labels`; `all 600 labels`; `no labels`."""
    if labels == "none":
        return "no labels"
    if labels == "all" and train_examples:
        return f"all {train_examples} labels"
    short = labels != "all" and 0 < train_examples < int(labels)
    return f"{labels} labels (there are {train_examples})" if short else f"{labels} labels"


def unit(metric: str) -> str:
    """What stands behind a value of a metric, as in 71.3 % or 25.1 BLEU."""
    return UNITS.get(metric, ("%", "% right"))[0]


def heading(metric: str) -> str:
    """What stands over values of a metric."""
    return UNITS.get(metric, ("%", "% right"))[1]


def over(tree: Tree) -> str:
    """What intervals are over, and what they leave out: the words behind `Intervals are 95 %, `."""
    if max((one["repetitions"] for one in tree["comparisons"]), default=0) > 1:
        known = {key: [{seeds[key] for seeds in cell["seeds"]} - {None} for cell in tree["cells"]] for key in ("pretrain_seed", "seed")}
        several = [name for name, key in (("pretrainings", "pretrain_seed"), ("seeds", "seed")) if max(map(len, known[key])) > 1]
        alone = "" if max(map(len, known["seed"])) != 1 else " There was one fine-tuning seed, and what another one changes is not in them."
        return f"over {_listed(['examples', *(several or ['seeds'])])} at once (above guessing: over examples, of these models).{alone}"
    return "over examples alone. Nothing was repeated with another seed, which may change any verdict."


def no_rivals(tree: Tree) -> str:
    """Which variants are compared with one other alone, and so are in none of the verdicts; nothing where there are none."""
    if not (names := [*tree["grid"]["against"]]):
        return ""
    return f"{_listed(names)} {'is' if len(names) == 1 else 'are'} no rival here: a single change is compared with what it changes, below."


def trials(tree: Tree) -> str:
    """How often the arms were tried on validation; a warning where not all alike."""
    least, most = tree["trials"]["least"], tree["trials"]["most"]
    if least == most:
        tried = f"Each arm, untrained twins and tfidf too, had {most} trials on validation."
        return "Each arm had one setting: none was chosen on validation." if most == 1 else tried
    return f"Arms had between {least} and {most} trials on validation: they are not matched in tuning."


def percent(value: float | None) -> str:
    """A share as a percentage with one digit, and no sign before a zero."""
    return "–" if value is None else f"{100 * value:z.1f}".replace("-", "−")


def signed(value: float) -> str:
    """A difference in points, with its sign."""
    text = f"{100 * value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def spread(one: Tree) -> str:
    """`+1.2 points, −0.4 to +2.9`: a comparison with its interval, which same answers have not; where that is all that a difference can be, why."""
    if one["verdict"] == SAME_ANSWERS:
        return f"{signed(one['difference'])} points"
    widest = 1.0 - LOWEST.get(one["metric"], 0.0)
    if one["low"] <= -widest and one["high"] >= widest:
        few = "items" if one["examples"] < FEW_ITEMS else "repetitions"
        return f"{signed(one['difference'])} points, too few {few} for limits"
    return f"{signed(one['difference'])} points, {signed(one['low'])} to {signed(one['high'])}"


def si(value: float | None, unit: str = "") -> str:
    """1.23 M: three digits and a prefix; n/a for what a family does not have."""
    if value is None:
        return "n/a"
    rounded = abs(float(f"{value:.3g}"))  # 999.7 k are 1 M
    size, prefix = next(((s, p) for s, p in PREFIXES if rounded >= s), (1.0, ""))
    return f"{value / size:.3g} {prefix}{unit}".strip()


def cost(line: Tree) -> str:
    """`775 k FLOPs a byte`: what a variant's training took for each byte of text, from its line of the budget; n/a where FLOPs are not counted."""
    known = line.get("train_flops") is not None and line.get("text_bytes")
    return f"{si(line['train_flops'] / line['text_bytes'])} FLOPs a byte" if known else "n/a"


def questions(tree: Tree) -> list[Tree]:
    """One verdict a task and number of labels: the best way, those level with it, and the rivals by what the comparison with each showed."""
    found: dict[tuple[str, str], Tree] = {}
    for cell in tree["cells"]:
        found.setdefault(
            (cell["task"], cell["labels"]),
            {"task": cell["task"], "labels": cell["labels"], "train_examples": 0, "rivals": [], "beside": [], "not_compared": []},
        )
        here = found[cell["task"], cell["labels"]]
        here["train_examples"] = max(here["train_examples"], cell["train_examples"])
    for one in tree["comparisons"]:
        here = found[one["task"], one["labels"]]
        if one["question"] in ("best", "guess"):
            here["way"] = one["first"]
        if one["question"] == "best":
            here["rivals"].append(one | {"planned": _planned(tree, one)})
        if one["question"] == "beside":
            here.setdefault("way", one["second"])
            here["beside"].append(one)
        if one["question"] == "guess":
            here["guess"] = min(one, here.get("guess", one), key=lambda guess: float(guess["low"]))  # the one that is hardest to beat
    for one in tree["not_compared"]:
        here = found[one["task"], one["labels"]]
        here["way"] = one["first"]
        here["not_compared"].append(one["second"])
    for here in found.values():
        if "way" not in here:
            continue
        asked = {"task": here["task"], "labels": here["labels"]}
        here["cell"] = cell_of(tree, here["way"], **asked)
        here["beside"] = [one | {"mean": cell_of(tree, one["first"], **asked)["mean"]} for one in here["beside"]]
        here["above"] = _above(tree, here)
        means = [(way, cell_of(tree, way, **asked)["mean"]) for way in (*(one["second"] for one in here["rivals"]), *here["not_compared"])]
        here["level"] = [here["way"], *(way for way, mean in means if abs(mean - here["cell"]["mean"]) <= SAME)]  # no lead, if there are others
        here["guessed"] = here["way"]["variant"] in GUESSES or ("guess" in here and here["guess"]["verdict"] != "better")
        here["alone"] = not (here["rivals"] or here["guessed"])
        shown = {one["verdict"] for one in here["rivals"]}  # each on the repetitions of both
        here |= {"clear": shown == {"better"} and not (here["not_compared"] or here["guessed"]), "behind": "worse" in shown}
        here["twin"] = _twin(tree, here)
    return [here for here in found.values() if "way" in here]


def _planned(tree: Tree, one: Tree) -> int:
    """On how many repetitions two ways would have been compared, had nothing failed: each of both, or of the one that has any, in pretraining and in
    what follows."""
    seeds = [s for way in (one["first"], one["second"]) for s in cell_of(tree, way, task=one["task"], labels=one["labels"])["seeds"]]
    keys = (("pretrain_seed", "pretrain_seeds"), ("seed", "seeds"))
    return prod(len(tree["grid"][all_of]) for key, all_of in keys if any(s[key] is not None for s in seeds))


def _above(tree: Tree, here: Tree) -> list[Tree]:
    """What has a higher mean than the leader and is no rival of it: single changes of a variant, and untrained twins; of each kind the best."""
    rest = [cell for cell in tree["cells"] if (cell["task"], cell["labels"]) == (here["task"], here["labels"]) and cell["family"] not in APART]
    higher = sorted((cell for cell in rest if cell["mean"] is not None and cell["mean"] > here["cell"]["mean"] + SAME), key=lambda c: -c["mean"])
    changed = [cell for cell in higher if cell["variant"] in tree["grid"]["against"] and cell["init"] in TRAINED]
    return [*changed[:1], *[cell for cell in higher if cell["init"] == "untrained"][:1]]


def _twin(tree: Tree, here: Tree) -> Tree | None:
    """The comparison of the leader, as it was before an adaptation, with its untrained twin."""
    for one in tree["comparisons"]:
        same = all(one["first"][key] == here["way"][key] for key in ("variant", "transfer", "features", "head"))
        if same and (one["question"], one["task"], one["labels"]) == ("pretraining", here["task"], here["labels"]):
            return one | {"over_guessing": over_guessing(tree, one)}
    return None


def sentences(question: Tree, *, margin: float) -> list[str]:
    """What one question's comparisons say, a sentence a kind of answer, the open ones first."""
    said = []
    if question["guessed"]:  # and then it matters little whom it leads
        by = f" ({spread(question['guess'])})" if "guess" in question else ""
        said.append(
            "Nothing is shown to be better than guessing." if question["way"]["variant"] in GUESSES else f"Not shown to be better than guessing{by}."
        )
    said += [*_of_rivals(question, margin=margin), *_of_twin(question)]
    if len(question["level"]) > 1 and said:
        said[0] = f"The first: {said[0][0].lower()}{said[0][1:]}"
    return said + _of_others(question)


def _of_rivals(question: Tree, *, margin: float) -> list[str]:
    by_word: dict[str, list[Tree]] = {}
    for one in question["rivals"]:
        by_word.setdefault(one["verdict"], []).append(one)

    def named(word: str, shown: Callable[[Tree], str]) -> str:
        return _listed([f"{way_words(one['second'])} ({shown(one)}{_fewer(one)})" for one in by_word[word]])

    said = [f"Not separated from {named('not separated', spread)}."] if "not separated" in by_word else []
    if "worse" in by_word:  # its mean is over other seeds than the rival's, or a mean of shares that are not the whole's
        said.append(f"Worse than {named('worse', spread)}.")
    if question["not_compared"]:
        said.append(f"Not compared with {_listed([way_words(way) for way in question['not_compared']])}: they have no seed in common.")
    if "not worse" in by_word:
        said.append(f"Equal within {100 * margin:g} points to " + _listed([way_words(o["second"]) for o in by_word["not worse"]]) + ".")
    if SAME_ANSWERS in by_word:
        said.append("The same answers as " + _listed([way_words(o["second"]) for o in by_word[SAME_ANSWERS]]) + ".")
    if "better" in by_word:
        said.append(f"Better than {named('better', lambda one: signed(one['difference']))}.")
    return said


def _of_twin(question: Tree) -> list[str]:
    if not (twin := question["twin"]):
        return []
    what = "Pretraining" if question["way"]["init"] == "pretrained" else "Its pretraining, before adaptation,"
    helped = {
        "better": "helped",
        "worse": "hurt",
        "not worse": "made no difference",
        SAME_ANSWERS: "changed no answer",
        "not separated": "is not shown to help",
    }[twin["verdict"]]
    itself = ", itself not shown to be better than guessing" if twin["over_guessing"] else ""
    return [f"{what} {helped} ({spread(twin)} over the untrained twin{itself})."]


def _of_others(question: Tree) -> list[str]:
    """What stands beside the leader, and is no rival of it."""
    measure, said = unit(question["cell"]["metric"]), list[str]()
    for cell in question["above"]:
        why = "which no pretraining has seen" if cell["init"] == "untrained" else "a single change, which is compared with what it changes alone"
        said.append(f"Above it is {way_words(cell)}, with {percent(cell['mean'])} {measure}, {why}.")
    if question["alone"] and not question["not_compared"]:
        said.append("It has no rival of one budget.")
    if question["beside"]:
        others = [f"{way_words(o['first'])}, with {percent(o['mean'])} {measure} ({spread(o)})" for o in question["beside"]]
        said.append(f"Beside {'them' if question['rivals'] else 'it'} stands {_listed(others)}.")
    return said


def _fewer(one: Tree) -> str:
    """`, on 2 of 3 repetitions`, where some of either have no counterpart, as of a seed that failed."""
    return f", on {one['repetitions']} of {one['planned']} repetitions" if one["repetitions"] < one["planned"] else ""


def top_words(question: Tree) -> str:
    """The way that leads, or all that are level: `equal at the top: elmo, frozen; bert, tuned`."""
    ways = [way_words(way) for way in question["level"]]
    return f"equal at the top: {'; '.join(ways)}" if len(ways) > 1 else ways[0]


def served(asked: list[Tree]) -> Counter[str]:
    """On how many questions each variant leads: where it is better than guessing, has rivals, and none is level with it or shown to be better."""
    return Counter(q["way"]["variant"] for q in asked if not q["guessed"] and not q["alone"] and not q["behind"] and len(q["level"]) == 1)


def summary(tree: Tree) -> str:
    """The whole in two sentences, and a third one where public checkpoints are better than what leads."""
    asked = questions(tree)
    if not asked:
        return "No two ways could be compared: see what has no value, and whether there are two items at least."
    guessed, level = sum(q["guessed"] for q in asked), sum(len(q["level"]) > 1 for q in asked if not q["guessed"])
    behind = sum(q["behind"] and len(q["level"]) == 1 for q in asked if not q["guessed"])
    clear, alone = sum(q["clear"] for q in asked), Counter(q["way"]["variant"] for q in asked if q["alone"])
    first = f"Of {len(asked)} question{'s' if len(asked) > 1 else ''} (a task with a number of labels), "
    nobody = [f"on {level} several are equal at the top"] if level else []
    nobody += [f"on {behind} what has the highest mean is worse than another on the repetitions of both"] if behind else []
    nobody += [f"on {guessed} what leads is not shown to be better than guessing"] if guessed else []
    nobody += [f"on {count} {variant} has no rival that it could be compared with" for variant, count in alone.most_common()]
    first += _listed([*(f"{variant} leads on {count}" for variant, count in served(asked).most_common()), *nobody]) + "."
    if alone.total() == len(asked):
        second = "So none is shown to serve best."
    elif clear == len(asked) - alone.total():
        second = "Each lead is separated from every rival."
    elif not clear:
        second = "No lead is separated from every rival: what stays open is said below."
    else:
        of = ", ".join(f"{count} of {variant}" for variant, count in Counter(q["way"]["variant"] for q in asked if q["clear"]).most_common())
        second = f"{clear} of these leads ({of}) {'is' if clear == 1 else 'are'} separated from every rival; what stays open is said below."
    above = [q for q in asked if any(one["verdict"] == "better" for one in q["beside"])]
    best = served(above).total() == len(above)
    below = "what leads" if best else _listed([*alone]) if alone.total() == len(asked) else "the first of one budget"
    third = [f"A public checkpoint, not budget-matched, is better than {below} on {len(above)}."] if above else []
    return " ".join([first, second, *third])


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
