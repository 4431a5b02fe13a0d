"""What the sources stage looks at before anything runs: all data, read the way the later stages read it.

Reading is dear, so a check that ended well is not repeated until the data, the parameters or the code change.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lineage.artifacts import file_digest, read_json, text_digest, write_json
from lineage.config.data import Corpus, Task
from lineage.config.params import Params
from lineage.data.corpus import (
    collect_documents,
    count_text_bytes,
    source_fingerprint,
    split_corpus,
)
from lineage.data.items import TaskItems, build_items, check_task_files, task_fingerprint
from lineage.data.language import (
    byte_count,
    is_mojibake,
    is_mostly_cjk,
    is_spaceless,
    lacks_word_boundaries,
    split_words,
)
from lineage.data.sources import open_source_table, resolve_origin
from lineage.data.task_data import EXTRA_TEST_PREFIX
from lineage.errors import InputError
from lineage.runtime.code import code_digest
from lineage.runtime.settings import STATE_DIR
from lineage.tasks.base import load_kind

PACKAGE_FOLDER = Path(__file__).parent.parent
CHECKS_FOLDER = STATE_DIR / "checks"
SCRIPT_SAMPLE_SIZE = 1000  # documents or items whose script tells that of all
MIN_BYTES_PER_TOKEN = 20  # of a vocabulary: with less text than that, most of its entries would be seen a few times or never
HAN_CHARACTER = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
TOKENS_PER_WORD = (
    4  # a vocabulary of pieces holds the whole words, and on the way to each some pieces
)
# What the controls count of tags that may be spans and are read as none -> what they are.
UNREAD_SPAN_TAGS = {
    "numbered_tags": "numbers without names, which are scored by the share that is right, and not by spans; give their names, such as "
    "names: [O, B-PER, I-PER]",
    "plain_tags": "plain ones, one of them such as O: no spans are read, and tokens that are right are counted; if they are of spans, write "
    "B-PER and I-PER, or name each: names: {PER: I-PER}",
}


@dataclass(frozen=True)
class TextLengthLimit:
    """How long a text may be that is read at once."""

    max_length: int  # words between spaces
    in_characters: bool = False  # not words, but these
    label_counts: tuple[int | Literal["all"], ...] = (
        "all",
    )  # numbers of them that are learned from: fewer than there are may leave a long one out


def check_corpus(
    name: str,
    params: Params,
    vocab_sizes: Mapping[str, int],
    languages: Mapping[str, Iterable[str | None]],
    root: Path,
) -> dict[str, Any]:
    """What the record of a corpus says: its sources' facts and how many documents they hold. Raises InputError.

    `vocabularies`: a variant -> how many entries its tokenizer is to have; `languages`: a variant -> those whose documents it reads apart.
    """
    corpus, where = params.corpora[name], f"params.yaml: corpora.{name}"
    facts = [
        source_fingerprint(source, root, f"{where}.sources[{i}]")
        for i, source in enumerate(corpus.sources)
    ]
    largest = max(vocab_sizes.values(), default=0)
    key = [facts, dataclasses.asdict(corpus), params.seed, largest]
    measured = _run_once(key, lambda: _measure_corpus(corpus, params.seed, largest, root, where))
    for variant, size in vocab_sizes.items():
        few = (
            not is_spaceless(corpus.language)
            and measured["distinct_words"] < size / TOKENS_PER_WORD
        )
        if few or measured["train_bytes"] < MIN_BYTES_PER_TOKEN * size:
            raise InputError(
                f"{where}: {measured['train_bytes']:,} bytes with {measured['distinct_words']:,} distinct words are too small for the "
                f"vocabulary of {size:,} in models.{variant}.tokenizer; add text, or ask for a smaller vocabulary"
            )
    for variant, language in (
        (variant, one) for variant, some in languages.items() for one in some if one is not None
    ):
        if lacking := [
            split for split in ("train", "valid") if not measured.get(f"{split} in {language}")
        ]:
            raise InputError(
                f"{where}: {lacking[0]} holds no document in '{language}', which models.{variant}.pretrain reads apart; add text with "
                f"language: {language}{', or raise validation_share' if lacking == ['valid'] else ''}"
            )
    if params.budget.text_bytes > params.budget.max_epochs * measured["train_bytes"]:
        raise InputError(
            f"params.yaml: budget.text_bytes: {params.budget.text_bytes:,} are more than {params.budget.max_epochs} passes over the "
            f"{measured['train_bytes']:,} training bytes of '{name}'; add text, lower text_bytes or raise max_passes"
        )
    return {"corpus": name, "sources": facts, "documents": measured["documents"]}


def check_task_data(
    name: str,
    params: Params,
    root: Path,
    length_limits: Mapping[str, TextLengthLimit] | None = None,
) -> dict[str, Any]:
    """What the record of a task says: its data's facts and the digest of its kind. Raises InputError.

    `longest`: how long its texts may be, by the key of params.yaml that says so.
    """
    task, where = params.tasks[name], f"params.yaml: tasks.{name}"
    kind = load_kind(task.kind, f"{where}.kind")
    if name in params.grid.join_tasks and kind.answer_type is None:
        raise InputError(
            f"params.yaml: grid.join_tasks: {name}: a task of kind {kind.name} has no reader of frozen features; take it out"
        )
    if task.folds and params.report.split != "test":
        raise InputError(
            f"{where}.folds: with folds every item of train is test once, and report.split is {params.report.split}; set it to test, as "
            "--final does, or take folds out"
        )
    code = code_digest(PACKAGE_FOLDER / "tasks" / f"{kind.name}.py")
    check_task_files(task, kind, root=root, where=where, read_files=False)
    facts = task_fingerprint(task, root, where)
    measured = _run_once(
        [name, facts, dataclasses.asdict(task), params.seed],
        lambda: _measure_task(name, task, params.seed, root, where),
    )
    for key, limit in (length_limits or {}).items():
        _check_text_length(name, key, limit, measured)
    for statistic, explanation in UNREAD_SPAN_TAGS.items():
        if count := measured[statistic]:
            print(
                f"{where}.label: its {count} tags are {explanation}, or say metric: [token_accuracy]",
                file=sys.stderr,
            )
    if (
        few := min(
            (count for count in params.grid.label_counts if count != "all"),
            default=measured["classes"],
        )
    ) < measured["classes"]:
        print(
            f"params.yaml: grid.label_counts: with {few} of them at least {measured['classes'] - few} of the {measured['classes']} classes of '{name}' "
            "have no example to learn from, and are never right; give as many labels as classes, or more",
            file=sys.stderr,
        )
    if name in params.grid.adapt_tasks:
        if task.folds and "unlabelled" not in {**(task.files or task.splits or {})}:
            raise InputError(
                f"{where}: in folds every item is scored, so none can be adapted to; give an unlabelled split, or take the task out of "
                "grid.adapt_tasks"
            )
        if measured["texts"] < 2:
            raise InputError(
                f"{where}: {measured['texts']} distinct texts are too few to adapt to; add unlabelled text, or take the task out of "
                "grid.adapt_tasks"
            )
        usable = round(measured["text_bytes"] * (1 - params.adapt.heldout_share))
        if params.adapt.text_bytes > params.adapt.max_epochs * usable:
            raise InputError(
                f"params.yaml: adapt.text_bytes: {params.adapt.text_bytes:,} are more than {params.adapt.max_epochs} passes over the "
                f"{usable:,} bytes of '{name}' to adapt to; add unlabelled text, lower text_bytes or raise max_passes"
            )
    return {
        "task": name,
        "kind": kind.name,
        "kind_sha256": code,
        "language": task.language,
        "data": facts,
    }


def _check_text_length(
    task: str, key: str, limit: TextLengthLimit, measured: Mapping[str, int]
) -> None:
    counted = "characters" if limit.in_characters else "words"
    whole = any(count == "all" or count >= measured["train"] for count in limit.label_counts)
    if whole and (found := measured[f"longest_{counted}"]) > limit.max_length:
        too = " (and model.positions)" if key.endswith("pretrain.seq_len") else ""
        raise InputError(
            f"params.yaml: {key}: a text of '{task}' has {found} {counted}, and with its marks at most {limit.max_length} are read at once; "
            f"raise it{too}, or take such texts out of the data"
        )


def _measure_corpus(
    corpus: Corpus, seed: int, max_vocab_size: int, root: Path, where: str
) -> dict[str, int]:
    for number, source in enumerate(corpus.sources):
        place = f"{where}.sources[{number}]"
        record, how = resolve_origin(source, root, place)
        if how != "generated":
            open_source_table(record, root, place).check([record.text or "text"])  # type: ignore[arg-type, list-item]
    documents = collect_documents(corpus, seed=seed, root=root, where=where)
    for language, own in documents.table.groupby("language"):
        _check_script(own["text"].head(SCRIPT_SAMPLE_SIZE).tolist(), str(language), where)
    splits = split_corpus(documents, corpus, seed=seed, where=where)
    train = splits["train"]
    held = {
        f"{name} in {language}": int(count)
        for name, table in splits.items()
        for language, count in table["language"].value_counts().items()
    }
    distinct: set[str] = set()
    for text, language in zip(train["text"], train["language"], strict=True):
        distinct.update(split_words(text, language))
        if len(distinct) > max_vocab_size:
            break
    return {
        "documents": documents.num_read,
        "train_bytes": count_text_bytes(train),
        "distinct_words": len(distinct),
    } | held


def _measure_task(name: str, task: Task, seed: int, root: Path, where: str) -> dict[str, int]:
    kind = load_kind(task.kind)
    check_task_files(task, kind, root=root, where=where, read_files=True)
    items = build_items(name, task, kind, seed=seed, root=root, where=where)
    for part, table in items.splits.items():
        first = table.head(SCRIPT_SAMPLE_SIZE)
        some = (
            [list(first["text"])]
            if part == "unlabelled"
            else kind.extract_texts(first, task.language)
        )
        _check_script(
            [text for texts in some for text in texts],
            task.language,
            f"{where}: {part.removeprefix(EXTRA_TEST_PREFIX)}",
        )
    if "unlabelled" in items.splits:
        own = list(items.splits["unlabelled"]["text"])
    else:
        own = (
            [
                text
                for texts in kind.extract_texts(items.splits["train"], task.language)
                for text in texts
            ]
            if "train" in items.splits
            else []
        )
    distinct = set(own)  # as adaptation reads them
    unread = {told: items.info[told].get("train", 0) for told in UNREAD_SPAN_TAGS}
    classes = len(items.info["labels"]) if kind.answer_type == "label" else 0
    train = items.info["counts"].get("train", 0)
    return (
        {
            "text_bytes": sum(map(byte_count, distinct)),
            "texts": len(distinct),
            "classes": classes,
            "train": train,
        }
        | _measure_longest_texts(items, task)
        | unread
    )


def _measure_longest_texts(items: TaskItems, task: Task) -> dict[str, int]:
    """Words, between spaces, of the longest text that is read as a whole: of sentences that are scored, and of translations that are learned from.
    And its Chinese characters, each of which is a piece: signs beside them may be one together."""
    kind = load_kind(task.kind)
    columns = kind.whole_text_columns
    parts = [
        table for part, table in items.splits.items() if (part == "train") == kind.has_train_split
    ]
    texts = [
        text for table in parts for column in columns if column in table for text in table[column]
    ]
    characters = [len(HAN_CHARACTER.findall(text)) for text in texts]
    return {
        "longest_words": max((len(text.split()) for text in texts), default=0),
        "longest_characters": max(characters, default=0),
    }


def _check_script(texts: Sequence[str], language: str, where: str) -> None:
    if lacks_word_boundaries(texts):
        raise InputError(
            f"{where}: its texts are Thai, Lao, Burmese or Khmer for the most part, without spaces between words, and a clause of them "
            "would be one word; part the words with spaces first, by a tool for that language"
        )
    if is_mojibake(texts, language):
        raise InputError(
            f"{where}: its texts are signs such as ÄãºÃ for the most part, and its language is {language}: their bytes are of another "
            "code than they were read in; convert the file anew, for example with iconv -f GB18030 -t UTF-8"
        )
    if is_mostly_cjk(texts, language):
        raise InputError(
            f"{where}: its texts are Chinese or Japanese for the most part, and in its language, {language}, a clause of them would be "
            "one word; set language: zh or ja (of the corpus too, from which tokenizers are trained)"
        )


def _run_once(key: Any, measure: Callable[[], dict[str, int]]) -> dict[str, int]:
    """What was measured before for this key and this code, or what is measured now; a check that fails raises every time."""
    code = [file_digest(path) for path in sorted(PACKAGE_FOLDER.rglob("*.py"))]
    path = (
        CHECKS_FOLDER
        / f"{text_digest(json.dumps([key, code], sort_keys=True, default=str))[:24]}.json"
    )
    if not path.is_file():
        write_json(path, measure())
    return dict(read_json(path))
