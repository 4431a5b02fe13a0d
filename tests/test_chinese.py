"""Chinese, alone and with Latin words in it: characters are words, spans lead back to the text, tags align, each family gets from corpus to cells."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lineage.artifacts import create_artifact, file_digest
from lineage.config.checks import check_study
from lineage.config.data import Task
from lineage.config.params import Params, read_params
from lineage.config.records import parse_record
from lineage.config.study import ModelConfig
from lineage.data.items import TaskItems, build_items, task_fingerprint
from lineage.data.language import is_mostly_cjk, join_words, sentence_spans, split_words
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.encoding import encode_sentence
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.spans import split_tags
from lineage.evaluation.systems import EvalContext
from lineage.models.checkpoint import Checkpoint
from lineage.runtime.tracking import MlflowTracker
from lineage.synthetic import examples
from lineage.synthetic.grammar import generate_documents
from lineage.synthetic.tasks import generate_task
from lineage.synthetic.words import build_lexicon
from lineage.tasks.base import load_kind
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.tokenizers.train import train_tokenizer
from lineage.tokenizers.word_bytes import BEGIN_WORD, END_WORD, PAD_BYTE
from lineage.training.pretrain import TrainContext, pretrain
from tests import tiny

ROOT = Path(__file__).parent.parent
NAMES = (*tiny.TRAINED, *tiny.STATIC)
PROFILE = ("word2vec", "fasttext", "glove", "elmo", "ulmfit", "gpt", "bert")
MIXED = ("他", "在", "New", "York", "工作", "，", "用", "GPT", "-", "2", "写", "3.5", "字", "。")
RUNNING = "他在New York工作，用GPT-2写3.5字。"
SMALL = {
    "linear_probe": {"max_iter": 10},
    "bilstm_probe": {"hidden_size": 7, "epochs": 1},
    "finetune": {"epochs": 1},
}
TASKS: dict[str, dict[str, Any]] = {
    "sentiment": {"kind": "text_classification", "max_tokens": 60},
    "sense": {"kind": "word_sense"},
    "entities": {"kind": "token_classification", "probes": ["linear", "bilstm"]},
    "agreement": {"kind": "minimal_pairs"},
    "senses": {"kind": "word_sense", "generated": "examples"},
}


@functools.cache
def texts() -> tuple[str, ...]:
    """Documents of the synthetic language, and a few lines in both scripts."""
    return (
        *generate_documents(9, seed=3, language="zh"),
        *[RUNNING] * 3,
        *["我用GPT-2 写3.5字。"] * 3,
    )


def small(name: str) -> ModelConfig:
    """A variant's block, with room for sentences of the synthetic language, which are long in characters."""
    longer = {"pretrain": {"seq_len": 61}} if name in ("gpt", "bert") else {}
    return tiny.variant(name, tokenizer={"vocab_size": 797}, evaluate=SMALL, **longer)


@functools.cache
def reader(name: str) -> Tokenizer:
    found = small(name)
    return train_tokenizer(
        texts(), found.tokenizer, tokenizer_type=found.tokenizer_type, language="zh"
    )


def places(tokens: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Where each token stands in a text, found by looking for one after another."""
    found, end = [], 0
    for token in tokens:
        start = text.index(token, end)
        end = start + len(token)
        found.append((start, end))
    return found


@pytest.mark.parametrize(
    ("tokens", "language", "text"),
    [
        (MIXED, "zh", RUNNING),
        (
            ("1", "9", "9", "7", "年", "C", "N", "N"),
            "zh",
            "1997年CNN",
        ),  # a text that was cut into characters
        (("维生素", "Vitamin", "C", "和", "B", "12"), "zh-TW", "维生素Vitamin C和B 12"),
        (("don", "'", "t"), "ja", "don't"),
        (("GPT", "writes", "字"), "en", "GPT writes 字"),
        ((), "zh", ""),
    ],
)
def test_joined_words_of_both_scripts_stay_apart(
    tokens: tuple[str, ...], language: str, text: str
) -> None:
    assert join_words(tokens, language) == text
    if max(map(len, tokens), default=0) > 1 and language == "zh":
        assert split_words(text, "zh") == [
            word for token in tokens for word in split_words(token, "zh")
        ]


@pytest.mark.parametrize("name", NAMES)
def test_every_familys_pieces_of_mixed_words_stand_with_their_words(name: str) -> None:
    item = encode_sentence(list(MIXED), reader(name), max_length=None, language="zh")
    (pieces,), spans = item.word_pieces, item.encoded.offsets
    assert item.num_answers == len(MIXED) and not item.truncated
    for number, (token, (start, end)) in enumerate(zip(MIXED, places(MIXED, RUNNING), strict=True)):
        own = pieces[pieces[:, 1] == number][:, 0]
        assert own.tolist() == [
            place for place, (a, b) in enumerate(spans) if a < end and b > start
        ]
        assert {*range(start, end)} <= {place for a, b in spans[own] for place in range(a, b)}, (
            "no character is lost"
        )
        if (
            reader(name).tokenizer_type == "byte_bpe"
        ):  # whose pieces may hold what stands beside a word
            assert token in reader(name).backend_tokenizer.decode(item.encoded.ids[own].tolist())
        else:
            assert "".join(RUNNING[a:b] for a, b in spans[own]) == token


@pytest.mark.parametrize("name", NAMES)
def test_no_mixed_word_is_lost_where_the_sentence_is_read_in_parts(name: str) -> None:
    item = encode_sentence(list(MIXED), reader(name), max_length=11, language="zh")
    assert (
        len(item.encodings) > 1
        and item.truncated
        and all(len(reading.ids) <= 11 for reading in item.encodings)
    )
    assert {number for part in item.word_pieces for number in part[:, 1].tolist()} == {
        *range(len(MIXED))
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_family_reads_chinese_in_characters_but_gpts_pieces_which_are_lossless(
    name: str,
) -> None:
    text = "我用GPT-2 写3.5字"
    encoded = reader(name).encode(text)
    spans = encoded.offsets[encoded.offsets[:, 1] > encoded.offsets[:, 0]]
    read = [text[a:b] for a, b in spans]
    unit = reader(name).tokenizer_type
    if unit == "word":
        assert read == ["我", "用", "GPT", "-", "2", "写", "3.5", "字"]
        assert [*encoded.words[1:-1]] == [
            word.lower() if reader(name).lowercase else word for word in read
        ]
    elif unit == "wordpiece":
        assert "".join(read) == text.replace(" ", "") and {
            "我",
            "用",
            "写",
            "字",
            "3",
            ".",
            "5",
        } <= {*read}
    else:
        assert (
            unit == "byte_bpe"
            and reader(name).backend_tokenizer.decode(encoded.ids[1:-1].tolist()).strip() == text
        )
    assert {place for a, b in spans for place in range(a, b)} >= {
        place for place, character in enumerate(text) if character != " "
    }


def test_the_character_encoder_sees_all_bytes_of_a_character_and_of_any_but_the_longest_runs() -> (
    None
):
    own = reader("elmo")
    run = "MKMRFFSSPCGKAAVDPADRCKEVQQIRDQHPSKIPVIIERYKGEKQLPVLDKTKFLVP"
    batch = own.collate([own.encode(f"我{run[:40]}，{run}")])
    assert batch.byte_ids_UC is not None and batch.word_rows_BT is not None
    rows = [
        [int(b) for b in batch.byte_ids_UC[u] if b not in (0, PAD_BYTE)]
        for u in batch.word_rows_BT[0, 1:-1]
    ]
    written = [
        [BEGIN_WORD, *(b + 1 for b in word.encode()), END_WORD]
        for word in ("我", run[:40], "，", run[: own.max_word_bytes - 2])
    ]
    assert rows == written


def test_chinese_documents_are_characters_without_spaces_and_the_same_each_time() -> None:
    made = [*generate_documents(3, seed=7, language="zh")]
    assert made == [*generate_documents(5, seed=7, language="zh")][:3] and made != [
        *generate_documents(3, seed=8, language="zh")
    ]
    for text in made:
        assert set(map(len, split_words(text, "zh"))) == {1} and len(
            split_words(text, "zh")
        ) == len(text)
        assert len(sentence_spans(text, "zh")) == text.count("。") and text.endswith("。")


def test_the_chinese_ambiguous_words_share_no_character_with_others() -> None:
    own = build_lexicon(2018, "zh")
    assert [word.noun for word in own.ambiguous_nouns[:3]] == ["苹果", "打", "银行"] and len(
        {word.noun for word in own.ambiguous_nouns}
    ) == 40
    forms = [
        *own.names,
        *own.domain_nouns,
        *own.generic.nouns,
        *own.polar_words[0],
        *own.polar_words[1],
        *(word.noun for word in own.ambiguous_nouns[3:]),
    ]
    forms += [
        form
        for topic in own.topics
        for some in (topic.nouns, topic.verbs, topic.adjectives, topic.adverbs)
        for form in some
    ]
    assert not {*"苹果打银行", own.script.plural_suffix} & {*"".join(forms)} and {1, 2, 3} >= {
        len(form) for form in forms
    }
    seen = "".join(generate_documents(20, seed=7, language="zh"))
    assert min(seen.count(word) for word in ("苹果", "打", "银行")) > 3
    assert (
        build_lexicon(2018).script != own.script
        and build_lexicon(2018).ambiguous_nouns[0].topics == own.ambiguous_nouns[0].topics
    ), "one grammar for both"


@pytest.mark.parametrize("name", ["sense", "entities"])
def test_spans_of_chinese_items_lead_back_to_their_words_and_say_nothing_of_their_sense(
    name: str,
) -> None:
    nouns = {word.noun for word in build_lexicon(2018, "zh").ambiguous_nouns}
    for part in generate_task(name, seed=7, language="zh").splits.values():
        counts = Counter[tuple[str, Any]]()
        for item in part.itertuples():
            text = join_words(item.tokens, "zh")
            assert " " not in text and "".join(item.tokens) == text
            asked = (
                [item.target]
                if name == "sense"
                else [place for place, tag in enumerate(item.label) if tag.startswith("B-field")]
            )
            assert name == "sense" or len(item.label) == len(item.tokens)
            (place,) = asked
            form = item.tokens[place].removesuffix("们")
            start, _ = places(item.tokens, text)[place]
            assert form in nouns and text[start : start + len(form)] == form
            counts[form, item.label if name == "sense" else item.label[place]] += 1
        assert (
            {"苹果", "打", "银行"} <= {form for form, _ in counts}
            and len(set(counts.values())) == 1
            and len(counts) == 2 * len(nouns)
        )


def test_the_examples_are_balanced_so_that_a_word_alone_says_nothing() -> None:
    found = examples.load_word_sense_task("any", language="zh")
    counts = Counter(
        (split, label) for split, part in found.splits.items() for label in part["label"]
    )
    assert counts == {
        (split, label): count
        for split, count in (("train", 7), ("validation", 3), ("test", 6))
        for label in range(7)
    }
    whole = [
        join_words(tokens, "zh") for part in found.splits.values() for tokens in part["tokens"]
    ]
    assert len(set(whole)) == 7 * 16 and not any("[" in text for text in whole)
    for part in found.splits.values():
        assert all(
            item.tokens[item.target] == item.group == found.labels[item.label].split(",")[0]
            for item in part.itertuples()
        )
    assert found.ceilings["static"] == pytest.approx(3 / 7) and found.group_ceilings["打"][
        "static"
    ] == pytest.approx(1 / 3)


def test_the_examples_are_a_task_by_configuration(tmp_path: Path) -> None:
    def made(**about: Any) -> TaskItems:
        record = parse_record(
            Task, {"kind": "word_sense", "generated": "examples", **about}, "task"
        )
        assert task_fingerprint(record, tmp_path, "task")["sha256"] == file_digest(
            examples.EXAMPLES_PATH
        ), "an edit of the sentences is seen"
        return build_items(
            "any", record, load_kind(record.kind), seed=7, root=tmp_path, where="tasks.any"
        )

    found = made(language="zh")
    assert found.info["counts"] == {"train": 49, "validation": 21, "test": 42} and found.info[
        "ceilings"
    ] == {"static": pytest.approx(3 / 7)}
    assert {*found.splits["test"]["group"]} == {
        "苹果",
        "打",
        "银行",
    } and "苹果, 公司" in found.info["labels"]
    with pytest.raises(
        InputError,
        match=r"^tasks\.any: generated: examples: no sentences in 'en'; set language to one of zh$",
    ):
        made()


def with_corpus(language: str, other: str) -> Params:
    """The study as shipped, with a second source in another language."""
    shipped = read_params(ROOT / "params.yaml")
    general = shipped.corpora["general"]
    mixed = dataclasses.replace(
        general,
        language=language,
        sources=(*general.sources, dataclasses.replace(general.sources[0], language=other)),
    )
    return dataclasses.replace(shipped, corpora={"general": mixed})


def test_a_chinese_corpus_may_hold_english_and_an_english_one_no_chinese() -> None:
    check_study(with_corpus("zh", "en"))
    with pytest.raises(
        InputError,
        match=r"its language is en, but that of a source is zh.*set the language of the corpus to zh",
    ):
        check_study(with_corpus("en", "zh"))


def test_a_task_is_in_the_corpus_s_language_unless_it_says_otherwise(tmp_path: Path) -> None:
    tree = tiny.shipped()
    tree["corpora"]["general"]["language"] = "zh"
    tree["tasks"]["sense"]["language"] = "en"
    for block in (tree, {"tasks": tree["tasks"]}):
        with (tmp_path / "params.yaml").open("w") as stream:
            YAML(typ="safe").dump(block, stream)
        if block is tree:
            found = read_params(tmp_path / "params.yaml").tasks
            assert found["sense"].language == "en" and {
                task.language for name, task in found.items() if name != "sense"
            } == {"zh"}
        else:
            with pytest.raises(InputError, match="the key 'corpora' is missing"):
                read_params(tmp_path / "params.yaml")


@pytest.mark.parametrize(("texts", "language", "expected"), [
    (["这家酒店很大。", "The Room 房间很大很大很大"], "en", True),
    (["这家酒店很大。"], "zh-TW", False),
    (["東京は大きい。"], "en", True),
    (["北 京 很 大 。"], "en", True),  # as tokens of a tagged sentence stand
    (["The hotel 酒店 is large."], "en", False),
    (["서울은 큰 도시이다."], "en", False),
    ([], "en", False),
])  # fmt: skip
def test_texts_in_a_script_without_spaces_are_told(
    texts: list[str], language: str, expected: bool
) -> None:
    assert is_mostly_cjk(texts, language) is expected


def pretrained(name: str, folder: Path) -> Checkpoint:
    """A tiny model that read a few steps of Chinese."""
    found, tokens = small(name), encode_corpus(texts(), reader(name))
    assert tokens.text_bytes == sum(len(text.encode()) for text in texts())
    config = tiny.fitted(
        found.family,
        found.architecture,
        vocab_size=reader(name).vocab_size,
        body_parameters=tiny.PARAMETERS,
    )
    checkpoint = Checkpoint(name, found.family, config, found.pretrain, reader(name), seed=11)
    with create_artifact(folder / "tokens", "tokens") as draft:
        tokens.save(draft, "train")
        tokens.save(draft, "valid")
    params = read_params(ROOT / "params.yaml")
    params = dataclasses.replace(
        params, budget=dataclasses.replace(params.budget, text_bytes=2_000)
    )
    conditions = TrainContext(tiny.CPU, MlflowTracker(None), folder / "resume", 99, lambda *_: None)
    outcome = pretrain(checkpoint, folder / "tokens", params, conditions)
    assert outcome.status == "ok"
    with create_artifact(folder / "model", "model") as draft:
        checkpoint.save(draft, outcome.model)
    return Checkpoint.load(folder / "model")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILE)
def test_every_family_gets_from_a_chinese_corpus_to_cells(name: str, tmp_path: Path) -> None:
    checkpoint = pretrained(name, tmp_path)
    for number, (key, about) in enumerate(TASKS.items()):
        record = parse_record(
            Task,
            {
                "generated": "synthetic",
                "language": "zh",
                "limit": {"train": 24, "validation": 6, "test": 12},
            }
            | about,
            "task",
        )
        items = build_items(
            key, record, load_kind(record.kind), seed=7, root=tmp_path, where="task"
        )
        splits = {
            split: items.splits[split]
            for split in ("train", "validation", "test")
            if split in items.splits
        }
        setting = EvalContext(
            checkpoint,
            TaskData(items.info, splits),
            small(name).evaluate,
            0,
            1000,
            "fp32",
            tiny.CPU,
        )
        some = [*list_runs(items.info, ("pretrained",), ("all",), (0,))]
        rows, predictions = evaluate_runs(
            setting, some, cache_dir=tmp_path / str(number), report_progress=lambda *_: None
        )
        if key == "agreement" and name in tiny.STATIC:
            assert {row.status for row in rows} == {"not_applicable"}
            continue
        assert {row.status for row in rows} == {"ok"}, [row.reason for row in rows]
        told = predictions[predictions["split"] == "test"]
        assert len(told) == len(some) * len(items.splits["test"])
        if key == "entities":
            lengths = dict(
                zip(
                    items.splits["test"]["id"], items.splits["test"]["tokens"].map(len), strict=True
                )
            )
            assert all(
                len(split_tags(row.prediction)) == lengths[row.id] for row in told.itertuples()
            )
