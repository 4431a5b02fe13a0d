"""The tree of results.json -> what both pages and the terminal show, so that they cannot disagree."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lineage.analysis.cells import BASELINES, TEST_SET_SEPARATOR
from lineage.data.language import is_spaceless
from lineage.report import figures, literature, sentences
from lineage.report.figures import LineSeries, ReferenceLine
from lineage.report.tasks import describe_task_data, format_folds
from lineage.report.tree import baseline_is_near_chance

JsonDict = dict[str, Any]
WORDS_PATTERN = re.compile(r"\bwords\b,?")
INITS = ("pretrained", "adapted", "random", "none")
LOSS_NAMES = {
    "bits_per_byte": "bits per byte, left to right",
    "bits_per_byte_forward": "bits per byte, forward",
    "bits_per_byte_backward": "bits per byte, backward",
    "masked_nats": "nats per masked token",
    "next_nats": "nats per next-sentence choice",
    "next_accuracy": "share right of next-sentence choices",
    "sampled_nats": "nats per word, against sampled ones",
    "rebuilt_nats": "nats per token written again",
    "word_nats": "nats per word",
    "source_nats": "nats per piece of the source language",
    "target_nats": "nats per piece of the target language",
}


def model_color(tree: JsonDict, model: str) -> str:
    """The variant's colour, the same in every figure."""
    known = model_names(tree)
    return figures.palette_color(known.index(model)) if model in known else figures.MUTED_COLOR


def model_style(tree: JsonDict, model: str) -> JsonDict:
    """The variant's colour, and the shape of its marks."""
    known = model_names(tree)
    return {
        "tint": model_color(tree, model),
        "shape": figures.marker_shape(known.index(model)) if model in known else "circle",
    }


def model_names(tree: JsonDict) -> list[str]:
    """Variants, and what is made of two of them, in the order of the grid."""
    return [*tree["grid"]["models"], *tree["grid"]["two_budgets"]]


def build_task_tables(tree: JsonDict) -> list[JsonDict]:
    """One table a task: a line a way, a column a number of labels."""
    tied_leaders = {
        (q["task"], q["label_count"]): q["level"] for q in sentences.summarize_settings(tree)
    }
    return [
        _task_table(tree, task, tied_leaders=tied_leaders)
        for task in dict.fromkeys(c["task"] for c in tree["cells"] if c["mean"] is not None)
    ]


def _task_table(
    tree: JsonDict, task: str, *, tied_leaders: dict[tuple[str, str], list[JsonDict]]
) -> JsonDict:
    result_cells = [c for c in tree["cells"] if c["task"] == task]
    found = sorted(
        (c for c in tree["ceilings"] if c["task"] == task), key=lambda c: float(c["value"])
    )
    ceilings = [ReferenceLine(c["value"], "ceiling", c["reads"]) for c in found]
    references: dict[str, list[ReferenceLine]] = {
        c["label_count"]: [*ceilings] for c in result_cells
    }
    for c in result_cells:
        if c["family"] in BASELINES and c["mean"] is not None:
            references[c["label_count"]].append(ReferenceLine(c["mean"], c["family"], c["family"]))
    shown = [
        v
        for c in result_cells
        for v in (c["mean"], c["low"], c["high"], *(s["value"] for s in c["seeds"]))
        if v is not None
    ]
    scale = figures.fit_strip_scale([*shown, *(line.value for line in ceilings)])
    columns = [
        _table_column(labels, [c for c in result_cells if c["label_count"] == labels], scale, lines)
        for labels, lines in references.items()
    ]
    lines = []
    for key in dict.fromkeys(_system_key(c) for c in result_cells):
        own = {c["label_count"]: c for c in result_cells if _system_key(c) == key}
        drawn = [
            _table_cell(
                tree,
                own.get(labels),
                scale=scale,
                references=behind,
                tied_leaders=tied_leaders.get((task, labels), []),
            )
            for labels, behind in references.items()
        ]
        lines.append(_table_line(tree, next(iter(own.values()))) | {"cells": drawn})
    lines.sort(key=lambda line: _line_order(tree, line))
    examples, groups = (
        max(c["num_examples"] for c in result_cells),
        max(c["units"] for c in result_cells),
    )
    return {
        "name": task,
        "kind": result_cells[0]["kind"].replace("_", " "),
        "heading": sentences.metric_heading(result_cells[0]["metric"]),
        "unit": sentences.metric_unit(result_cells[0]["metric"]),
        "num_examples": examples,
        "groups": groups if 0 < groups < examples else 0,
        "folds": format_folds(tree, task),
        "columns": columns,
        "lines": lines,
        "notes": describe_task_data(tree, task),
        "ceilings": [
            {"reads": c.name, "value": sentences.format_percent(c.value)} for c in ceilings
        ],
    }


def _table_line(tree: JsonDict, result: JsonDict) -> JsonDict:
    """What the head of a line says of a way; a dagger where adaptation did not lower the loss that it trains on."""
    own = [
        a
        for a in tree["adaptation"]
        if (a["model"], a["task"]) == (result["model"], result["task"].split(TEST_SET_SEPARATOR)[0])
    ]
    init = (
        ""
        if result["init"] in ("pretrained", "none")
        else result["init"]
        + (" †" if result["init"] == "adapted" and any(map(_loss_did_not_fall, own)) else "")
    )
    transfer = (
        ""
        if result["transfer"] == "none"
        else result["transfer"].replace("_", "-") + sentences.format_head(result)
    )
    apart = format_unmatched_reason(tree, result["model"])
    return {
        "model": result["model"],
        "init": result["init"],
        "control": result["init"] == "none",
        "budgets": apart,
        "head": ", ".join(part for part in (init, transfer) if part),
        **model_style(tree, result["model"]),
        "recipe": "" if result["recipe"] == "none" else result["recipe"].replace("+", " + "),
        "words": sentences.format_system(result),
    }


def format_unmatched_reason(tree: JsonDict, model: str) -> str:
    """Why a variant is not among those of one budget: `two budgets: there and back`, `not budget-matched`; nothing where it is."""
    if model in tree["public"]:
        return sentences.NOT_BUDGET_MATCHED
    if model in tree["grid"]["ensembles"]:
        return f"two budgets: {' and '.join(tree['grid']['ensembles'][model])}"
    return (
        "two budgets" if model in tree["grid"]["two_budgets"] else ""
    )  # whose they are its name says


def format_model_name(tree: JsonDict, model: str) -> str:
    """A variant, and why it is not among those of one budget: `roberta (not budget-matched)`."""
    apart = format_unmatched_reason(tree, model)
    return f"{model} ({apart})" if apart else model


def _system_key(result: JsonDict) -> tuple[str, ...]:
    return tuple(result[k] for k in ("model", "init", "transfer", "features", "head", "recipe"))


def _line_order(tree: JsonDict, line: JsonDict) -> tuple[int, ...]:
    known, inits = [*model_names(tree), *BASELINES], INITS
    return known.index(line["model"]) if line["model"] in known else len(known), inits.index(
        line["init"]
    )


def _table_column(
    label_count: str,
    result_cells: list[JsonDict],
    scale: figures.LinearScale,
    references: list[ReferenceLine],
) -> JsonDict:
    examples = max(c["train_examples"] for c in result_cells)
    return {
        "label_count": label_count,
        "words": sentences.format_label_count(label_count, train_examples=examples),
        "axis": figures.draw_strip_axis(
            scale, references=references, unit=sentences.metric_heading(result_cells[0]["metric"])
        ),
    }


def _table_cell(
    tree: JsonDict,
    result: JsonDict | None,
    *,
    scale: figures.LinearScale,
    references: list[ReferenceLine],
    tied_leaders: list[JsonDict],
) -> JsonDict | None:
    if result is None:
        return None
    found: JsonDict = {
        name: sentences.format_percent(result[name]) for name in ("mean", "low", "high")
    }
    found |= {
        "finetune_seeds": [sentences.format_percent(s["value"]) for s in result["seeds"]],
        "problems": result["problems"],
        "lost": _format_lost_seeds(result),
        "value": result["mean"],
        "strip": "",
    }
    if result["mean"] is not None:
        interval = None if result["low"] is None else (result["low"], result["high"])
        title = f"{sentences.format_system(result)}: {found['mean']} {sentences.metric_unit(result['metric'])} ({found['low']} to {found['high']}); "
        title += f"seeds {', '.join(found['seeds'])}"
        dots = [s["value"] for s in result["seeds"]]
        found["strip"] = figures.draw_strip_plot(
            scale,
            dots=dots,
            mean=result["mean"],
            interval=interval,
            references=references,
            **model_style(tree, result["model"]),
            hollow=result["init"] == "random",
            title=title,
        )
    return found | {
        "twin": _compare_with_baseline(tree, result),
        "best": any(way.items() <= result.items() for way in tied_leaders),
    }


def _format_lost_seeds(result: JsonDict) -> str:
    """`1 seed failed`, `2 seeds not applicable`: repetitions of a cell that have no value, where others have."""
    lost = Counter(
        status
        for *_, status in dict.fromkeys(
            (one["pretrain_seed"], one["finetune_seed"], one["status"])
            for one in result["problems"]
        )
    )
    return ", ".join(
        f"{count} seed{'s' if count > 1 else ''} {status.replace('_', ' ')}"
        for status, count in sorted(lost.items())
    )


def _compare_with_baseline(tree: JsonDict, result: JsonDict) -> JsonDict | None:
    """A pretrained cell against its untrained twin; an adapted one against what it was before."""
    comparison_type = {"pretrained": "pretraining", "adapted": "adaptation"}.get(result["init"])
    for one in tree["comparisons"]:
        same = (one["question"], one["task"], one["label_count"]) == (
            comparison_type,
            result["task"],
            result["label_count"],
        )
        if same and one["first"].items() <= result.items():
            against = "random" if comparison_type == "pretraining" else "not adapted"
            return {
                "difference": sentences.format_difference(one["difference"]),
                "verdict": one["verdict"],
                "ablation_of": against,
                "spread": sentences.format_comparison(one),
                "guesses": baseline_is_near_chance(tree, one),
            }
    return None


def draw_label_curves(tree: JsonDict) -> list[str]:
    """The compared score over the number of labels, a panel a task and way of reading, where there is more than one number."""
    found = []
    for task in dict.fromkeys(c["task"] for c in tree["cells"]):
        result_cells = [
            c
            for c in tree["cells"]
            if c["task"] == task and c["mean"] is not None and c["label_count"] != "none"
        ]
        if len({c["train_examples"] for c in result_cells}) < 2:
            continue
        controls = [
            _label_curve(
                tree, [c for c in result_cells if c["family"] == "tfidf"], name="tfidf", hollow=True
            )
        ]
        for reading in sorted(
            {(c["transfer"], c["head"]) for c in result_cells if c["init"] == "pretrained"}
        ):
            own = [
                c
                for c in result_cells
                if c["init"] == "pretrained" and (c["transfer"], c["head"]) == reading
            ]
            series = [
                _label_curve(tree, [c for c in own if c["model"] == v], name=v)
                for v in tree["grid"]["models"]
            ]
            shown = [s for s in [*series, *controls] if s.x]
            title = f"{task}, {reading[0]}{sentences.format_head(own[0])}"
            found.append(
                figures.draw_line_chart(
                    shown,
                    title=title,
                    x_label="training labels (log)",
                    y_label=sentences.metric_heading(result_cells[0]["metric"]),
                    log_x=True,
                    percent=True,
                )
            )
    return found


def _label_curve(
    tree: JsonDict, result_cells: list[JsonDict], *, name: str, hollow: bool = False
) -> LineSeries:
    result_cells = sorted(result_cells, key=lambda c: c["train_examples"])
    banded = not hollow and all(c["low"] is not None for c in result_cells)
    return LineSeries(
        name,
        model_color(tree, name),
        [c["train_examples"] for c in result_cells],
        [c["mean"] for c in result_cells],
        [c["low"] for c in result_cells] if banded else (),
        [c["high"] for c in result_cells] if banded else (),
        hollow=hollow,
        marker=model_style(tree, name)["shape"],
    )


def draw_loss_curves(tree: JsonDict) -> list[str]:
    """Validation over text read, a panel a measure: what counts other things (masked tokens, another direction) never shares an axis."""
    found = []
    for measure in sorted({curve["measure"] for curve in tree["curves"]}):
        curves = [curve for curve in tree["curves"] if curve["measure"] == measure]
        series = [
            LineSeries(
                c["model"],
                model_color(tree, c["model"]),
                [b / 1e6 for b in c["text_bytes"]],
                c["value"],
                marker=model_style(tree, c["model"])["shape"],
            )
            for c in curves
        ]
        names = dict.fromkeys(c["model"] for c in curves)
        title = (
            ", ".join(names) if len(names) <= 4 else f"{len(names)} variants"
        )  # a panel has no room for more, and colours tell them
        found.append(
            figures.draw_line_chart(
                series, title=title, x_label="text read, MB", y_label=_format_loss_name(measure)
            )
        )
    return found


def build_legend(tree: JsonDict) -> list[JsonDict]:
    """Variants and their colours."""
    return [
        {
            "name": format_model_name(tree, v),
            **model_style(tree, v),
            "matched": v not in tree["public"],
        }
        for v in tree["grid"]["models"]
    ]


def build_verdict_cards(tree: JsonDict) -> list[JsonDict]:
    """One card a question: who leads, or who are level, and what stays open."""
    found = []
    for setting in sentences.summarize_settings(tree):
        result = setting["cell"]
        interval = (
            ""
            if result["low"] is None
            else f"{sentences.format_percent(result['low'])} to {sentences.format_percent(result['high'])}"
        )
        led = len(setting["level"]) == 1
        found.append(
            {
                "task": setting["task"],
                "label_count": sentences.format_label_count(
                    setting["label_count"], train_examples=setting["train_examples"]
                ),
                "way": sentences.format_leaders(setting),
                "ways": [sentences.format_system(way) for way in setting["level"]],
                "mean": sentences.format_percent(result["mean"]),
                "unit": sentences.metric_unit(result["metric"]),
                "interval": interval,
                "clear": setting["clear"],
                "tint": model_color(tree, setting["way"]["model"] if led else ""),
                "sentences": sentences.describe_setting(setting, margin=tree["margin"]),
            }
        )
    return found


def build_budget_table(tree: JsonDict, lines: Sequence[JsonDict]) -> list[JsonDict]:
    """What each variant was given; a line of two budgets says whose it adds up, and a public one's that it is not matched."""
    return [
        line
        | {
            **model_style(tree, line["model"]),
            "budgets": format_unmatched_reason(tree, line["model"]),
        }
        for line in lines
    ]


def build_failure_table(tree: JsonDict) -> list[JsonDict]:
    """What has no value; of several pretrainings of which one."""
    families = {cell["model"]: cell["family"] for cell in tree["cells"]}
    several = len(tree["grid"]["pretrain_seeds"]) > 1
    return [
        line
        | {
            "words": sentences.format_system(line | {"family": families.get(line["model"], "")}),
            "repetitions": _format_seeds(line, several=several),
            "task": line["task"] + ("" if line["group"] == "all" else f", group {line['group']}"),
        }
        for line in tree["failed"]
    ]


def _format_seeds(line: JsonDict, *, several: bool) -> str:
    """`0, 1, 2`, or `0, 1, 2 of pretraining 1`."""
    own, of = (", ".join(map(str, line[name])) for name in ("seeds", "pretrain_seeds"))
    return f"{own or 'all'} of pretraining {of}" if several and of else own


def build_model_descriptions(
    lines: Sequence[JsonDict], budget: Sequence[JsonDict]
) -> list[JsonDict]:
    """What each variant is made of, and last what a byte of text cost it."""
    spent = {line["model"]: line for line in budget}
    return [line | {"cost": sentences.format_cost(spent.get(line["model"], {}))} for line in lines]


def adjust_unit_for_language(description: JsonDict, language: str) -> JsonDict:
    """A family's line in the table of mechanisms, as it is of a corpus in this language: without spaces each word is a character."""
    return description | (
        {
            "unit": WORDS_PATTERN.sub("characters, each a word,", description["unit"]).removesuffix(
                ","
            )
        }
        if is_spaceless(language)
        else {}
    )


def build_published_tables(tree: JsonDict) -> list[JsonDict]:
    """A table a task that names a benchmark; without lines where it is scored on another split than the papers' numbers are of."""
    return [
        one
        | {
            "lines": literature.build_benchmark_table(one, split=tree["split"])
            if one["official_split"]
            else []
        }
        for one in tree["published"]
    ]


def build_comparison_table(tree: JsonDict) -> list[JsonDict]:
    """Every comparison, for the long table."""
    return [
        {
            "question": one["question"],
            "task": one["task"],
            "label_count": one["label_count"],
            "first": sentences.format_system(one["first"]),
            "second": sentences.format_system(one["second"]),
            "spread": sentences.format_comparison(one),
            "verdict": one["verdict"],
            "num_examples": one["num_examples"],
            "repetitions": one["repetitions"],
        }
        for one in tree["comparisons"]
    ]


def build_ablation_tables(tree: JsonDict) -> list[JsonDict]:
    """A table a task and number of labels: each variant of `grid.ablation_of` beside the one that it differs from in a switch."""
    examples = {(c["task"], c["label_count"]): c["train_examples"] for c in tree["cells"]}
    found: dict[tuple[str, str], JsonDict] = {}
    for one in build_comparison_table(tree):
        if one["question"] == "ablation":
            labels = sentences.format_label_count(
                one["label_count"], train_examples=examples[one["task"], one["label_count"]]
            )
            found.setdefault(
                (one["task"], one["label_count"]),
                {"task": one["task"], "label_count": labels, "lines": []},
            )["lines"].append(one)
    return [*found.values()]


def build_adaptation_table(tree: JsonDict) -> list[JsonDict]:
    """Held text of the target before and after adaptation, in the order of the grid."""
    families = list(tree["grid"]["models"])
    lines = sorted(
        tree["adaptation"],
        key=lambda line: (line["task"], families.index(line["model"]), line["metric"]),
    )
    return [
        {"seconds": None}
        | line
        | {
            "words": _format_loss_name(line["metric"]),
            **model_style(tree, line["model"]),
            "model": format_model_name(tree, line["model"]),
            "outcome": _format_adaptation_outcome(line),
            "marked": _loss_did_not_fall(line),
        }
        for line in lines
    ]


def _loss_did_not_fall(line: JsonDict) -> bool:
    """Whether an adaptation's measure casts doubt on it: the loss of its language model did not fall. What follows a sentence is another matter."""
    return line["better"] < line["pretrainings"] and not line["metric"].startswith("next_")


def _format_adaptation_outcome(line: JsonDict) -> str:
    rises = line["metric"].endswith("_accuracy")
    if line["better"] == line["pretrainings"]:
        return "rose" if rises else "fell"
    some = (
        f"{'rose' if rises else 'fell'} in {line['better']} of {line['pretrainings']} pretrainings"
    )
    return f"{'† ' if _loss_did_not_fall(line) else ''}{some if line['better'] else 'did not rise' if rises else 'did not fall'}"


def _format_loss_name(name: str) -> str:
    return LOSS_NAMES.get(name, name.replace("_", " "))
