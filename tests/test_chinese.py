"""Chinese text works, alone and mixed with Latin words.

Characters are words, spans lead back to the text, tags align, and each family can be evaluated.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lineage.answers.spans import split_tags
from lineage.artifacts import create_artifact, file_digest
from lineage.config.data import Task
from lineage.config.params import Params, read_params
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, task_fingerprint
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.evaluate import evaluate_runs
from lineage.language import is_mostly_cjk, join_words, sentence_spans, split_words
from lineage.methods.encoder import EvalContext
from lineage.methods.encoding import encode_sentence
from lineage.networks.checkpoint import Checkpoint
from lineage.runtime.recorder import Tracker
from lineage.study.checks import check_study
from lineage.synthetic import examples
from lineage.synthetic.grammar import generate_documents
from lineage.synthetic.tasks import generate_task
from lineage.synthetic.words import build_lexicon
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.word_bytes import BEGIN_WORD, END_WORD, PAD_BYTE
from lineage.training.pretrain import pretrain
from lineage.training.train_run import TrainContext
from tests.helpers import tiny
from tests.helpers.tasks import build_task_items
from tests.helpers.tokenizers import (
    MIXED_SCRIPT_TEXT,
    MIXED_SCRIPT_WORDS,
    chinese_config,
    chinese_texts,
    chinese_tokenizer,
)

ROOT = Path(__file__).parent.parent
FAMILY_NAMES = (*tiny.TRAINED, *tiny.STATIC)
PROFILE_FAMILIES = ("word2vec", "fasttext", "glove", "elmo", "ulmfit", "gpt", "bert")
TASKS: dict[str, dict[str, Any]] = {
    "sentiment": {"kind": "text_classification", "max_words": 60},
    "sense": {"kind": "word_sense"},
    "entities": {"kind": "token_classification", "probes": ["linear", "bilstm"]},
    "agreement": {"kind": "minimal_pairs"},
    "senses": {"kind": "word_sense", "generated": "examples"},
}


def token_spans(tokens: Sequence[str], text: str) -> list[tuple[int, int]]:
    """Return where each token is in a text, found from left to right."""
    spans, end = [], 0
    for token in tokens:
        start = text.index(token, end)
        end = start + len(token)
        spans.append((start, end))
    return spans


@pytest.mark.parametrize(
    ("tokens", "language", "text"),
    [
        (MIXED_SCRIPT_WORDS, "zh", MIXED_SCRIPT_TEXT),
        # A dataset may have split its text into characters.
        (("1", "9", "9", "7", "年", "C", "N", "N"), "zh", "1997年CNN"),
        (("维生素", "Vitamin", "C", "和", "B", "12"), "zh-TW", "维生素Vitamin C和B 12"),
        (("don", "'", "t"), "ja", "don't"),
        (("GPT", "writes", "字"), "en", "GPT writes 字"),
        ((), "zh", ""),
    ],
)
def test_words_of_both_scripts_are_joined_without_merging(
    tokens: tuple[str, ...], language: str, text: str
) -> None:
    assert join_words(tokens, language) == text
    if max(map(len, tokens), default=0) > 1 and language == "zh":
        words = [word for token in tokens for word in split_words(token, "zh")]
        assert split_words(text, "zh") == words


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_pieces_of_mixed_words_are_assigned_to_their_words(name: str) -> None:
    item = encode_sentence(
        list(MIXED_SCRIPT_WORDS), chinese_tokenizer(name), max_length=None, language="zh"
    )
    (pieces,) = item.word_pieces
    spans = item.encoded.offsets
    assert item.num_answers == len(MIXED_SCRIPT_WORDS) and not item.truncated
    for number, (token, (start, end)) in enumerate(
        zip(MIXED_SCRIPT_WORDS, token_spans(MIXED_SCRIPT_WORDS, MIXED_SCRIPT_TEXT), strict=True)
    ):
        word_pieces = pieces[pieces[:, 1] == number][:, 0]
        assert word_pieces.tolist() == [
            position for position, (a, b) in enumerate(spans) if a < end and b > start
        ]
        assert {*range(start, end)} <= {
            position for a, b in spans[word_pieces] for position in range(a, b)
        }, "a character of the word is lost"
        if chinese_tokenizer(name).tokenizer_type == "byte_bpe":
            # A piece of byte-level BPE may also hold neighbours of the word.
            assert token in chinese_tokenizer(name).backend_tokenizer.decode(
                item.encoded.ids[word_pieces].tolist()
            )
        else:
            assert "".join(MIXED_SCRIPT_TEXT[a:b] for a, b in spans[word_pieces]) == token


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_families_read_chinese_by_character_except_gpt_whose_pieces_are_lossless(name: str) -> None:
    text = "我用GPT-2 写3.5字"
    encoded = chinese_tokenizer(name).encode(text)
    spans = encoded.offsets[encoded.offsets[:, 1] > encoded.offsets[:, 0]]
    tokens = [text[a:b] for a, b in spans]
    tokenizer_type = chinese_tokenizer(name).tokenizer_type
    if tokenizer_type == "word":
        assert tokens == ["我", "用", "GPT", "-", "2", "写", "3.5", "字"]
        assert [*encoded.words[1:-1]] == [
            word.lower() if chinese_tokenizer(name).lowercase else word for word in tokens
        ]
    elif tokenizer_type == "wordpiece":
        assert "".join(tokens) == text.replace(" ", "")
        assert {*"我用写字3.5"} <= {*tokens}
    else:
        assert tokenizer_type == "byte_bpe"
        assert (
            chinese_tokenizer(name).backend_tokenizer.decode(encoded.ids[1:-1].tolist()).strip()
            == text
        )
    assert {position for a, b in spans for position in range(a, b)} >= {
        position for position, character in enumerate(text) if character != " "
    }


def test_the_character_encoder_reads_all_bytes_of_words_up_to_its_limit() -> None:
    tokenizer = chinese_tokenizer("elmo")
    long_word = "MKMRFFSSPCGKAAVDPADRCKEVQQIRDQHPSKIPVIIERYKGEKQLPVLDKTKFLVP"
    batch = tokenizer.collate([tokenizer.encode(f"我{long_word[:40]}，{long_word}")])
    assert batch.byte_ids_UC is not None and batch.word_rows_BT is not None
    rows = [
        [int(b) for b in batch.byte_ids_UC[u] if b not in (0, PAD_BYTE)]
        for u in batch.word_rows_BT[0, 1:-1]
    ]
    expected = [
        [BEGIN_WORD, *(b + 1 for b in word.encode()), END_WORD]
        for word in ("我", long_word[:40], "，", long_word[: tokenizer.max_word_bytes - 2])
    ]
    assert rows == expected


def test_chinese_documents_have_no_spaces_and_are_reproducible() -> None:
    documents = [*generate_documents(3, seed=7, language="zh")]
    assert documents == [*generate_documents(5, seed=7, language="zh")][:3]
    assert documents != [*generate_documents(3, seed=8, language="zh")]
    for text in documents:
        words = split_words(text, "zh")
        assert {len(word) for word in words} == {1}
        assert len(words) == len(text)
        assert len(sentence_spans(text, "zh")) == text.count("。")
        assert text.endswith("。")


def test_chinese_ambiguous_words_share_no_character_with_other_words() -> None:
    lexicon = build_lexicon(2018, "zh")
    assert [word.noun for word in lexicon.ambiguous_nouns[:3]] == ["苹果", "打", "银行"]
    assert len({word.noun for word in lexicon.ambiguous_nouns}) == 40
    forms = [
        *lexicon.names,
        *lexicon.domain_nouns,
        *lexicon.generic.nouns,
        *lexicon.polar_words[0],
        *lexicon.polar_words[1],
        *(word.noun for word in lexicon.ambiguous_nouns[3:]),
    ]
    forms += [
        form
        for topic in lexicon.topics
        for topic_words in (topic.nouns, topic.verbs, topic.adjectives, topic.adverbs)
        for form in topic_words
    ]
    assert not {*"苹果打银行", lexicon.script.plural_suffix} & {*"".join(forms)}
    assert {1, 2, 3} >= {len(form) for form in forms}
    text = "".join(generate_documents(20, seed=7, language="zh"))
    assert min(text.count(word) for word in ("苹果", "打", "银行")) > 3
    assert (
        build_lexicon(2018).script != lexicon.script
        and build_lexicon(2018).ambiguous_nouns[0].topics == lexicon.ambiguous_nouns[0].topics
    ), "both languages must have one grammar"


@pytest.mark.parametrize("name", ["sense", "entities"])
def test_spans_of_chinese_items_are_their_words_and_do_not_reveal_the_sense(name: str) -> None:
    nouns = {word.noun for word in build_lexicon(2018, "zh").ambiguous_nouns}
    for split_name, split in generate_task(name, seed=7, language="zh").splits.items():
        counts = Counter[tuple[str, Any]]()
        for item in split.itertuples():
            text = join_words(item.tokens, "zh")
            assert " " not in text and "".join(item.tokens) == text
            if name == "sense":
                position = item.target
            else:
                assert len(item.label) == len(item.tokens)
                (position,) = [i for i, tag in enumerate(item.label) if tag.startswith("B-field")]
            form = item.tokens[position].removesuffix("们")
            start, _ = token_spans(item.tokens, text)[position]
            assert form in nouns and text[start : start + len(form)] == form
            counts[form, item.label if name == "sense" else item.label[position]] += 1
        assert {"苹果", "打", "银行"} <= {form for form, _ in counts}
        assert len(set(counts.values())) == 1
        num_nouns = 8 if (name, split_name) == ("sense", "test") else len(nouns)
        assert len(counts) == 2 * num_nouns


def test_examples_are_balanced_so_that_a_word_does_not_reveal_its_sense() -> None:
    task = examples.load_word_sense_task("zh")
    counts = Counter(
        (split, label) for split, part in task.splits.items() for label in part["label"]
    )
    assert counts == {
        (split, label): count
        for split, count in (("train", 7), ("validation", 3), ("test", 6))
        for label in range(7)
    }
    sentences = [
        join_words(tokens, "zh") for part in task.splits.values() for tokens in part["tokens"]
    ]
    assert len(set(sentences)) == 7 * 16 and not any("[" in text for text in sentences)
    for part in task.splits.values():
        assert all(
            item.tokens[item.target] == item.group == task.labels[item.label].split(",")[0]
            for item in part.itertuples()
        )
    assert task.ceilings["static"] == pytest.approx(3 / 7)
    assert task.group_ceilings["打"]["static"] == pytest.approx(1 / 3)


def test_the_examples_can_be_used_as_a_task_by_configuration(tmp_path: Path) -> None:
    def build_task(**task_keys: Any) -> TaskItems:
        record = parse_record(
            Task, {"kind": "word_sense", "generated": "examples", **task_keys}, "task"
        )
        assert task_fingerprint(record, tmp_path, "task")["sha256"] == file_digest(
            examples.EXAMPLES_PATH
        ), "the fingerprint must change if the sentences are edited"
        return build_task_items(tmp_path, record, name="any", seed=7, where="tasks.any")

    task = build_task(language="zh")
    assert task.info.counts == {"train": 49, "validation": 21, "test": 42}
    assert task.info.ceilings == {"static": pytest.approx(3 / 7)}
    assert {*task.splits["test"]["group"]} == {"苹果", "打", "银行"}
    assert "苹果, 公司" in task.info.labels
    with pytest.raises(
        InputError,
        match=r"^tasks\.any: generated: examples: no sentences in 'en'; set language to one of zh$",
    ):
        build_task()


def study_with_mixed_corpus(language: str, other_language: str) -> Params:
    """Return the shipped study with a second source in another language."""
    params = read_params(ROOT / "params.yaml")
    general = params.corpora["general"]
    mixed = dataclasses.replace(
        general,
        language=language,
        sources=(
            *general.sources,
            dataclasses.replace(general.sources[0], language=other_language),
        ),
    )
    return dataclasses.replace(params, corpora={"general": mixed})


def test_a_chinese_corpus_may_contain_english_but_not_the_reverse() -> None:
    check_study(study_with_mixed_corpus("zh", "en"))
    with pytest.raises(
        InputError,
        match=r"its language is en, but that of a source is zh.*set the language of the corpus to zh",
    ):
        check_study(study_with_mixed_corpus("en", "zh"))


def test_a_task_has_the_language_of_the_corpus_by_default(tmp_path: Path) -> None:
    tree = json.loads(json.dumps(tiny.demo_params()))  # blocks that are shared would be aliases
    tree["corpora"]["general"]["language"] = "zh"
    tree["tasks"]["sense"]["language"] = "en"
    for block in (tree, {"tasks": tree["tasks"]}):
        with (tmp_path / "params.yaml").open("w") as stream:
            YAML(typ="safe").dump(block, stream)
        if block is tree:
            tasks = read_params(tmp_path / "params.yaml").tasks
            assert tasks["sense"].language == "en"
            assert {task.language for name, task in tasks.items() if name != "sense"} == {"zh"}
        else:
            with pytest.raises(InputError, match="the key 'corpora' is missing"):
                read_params(tmp_path / "params.yaml")


@pytest.mark.parametrize(("texts", "language", "expected"), [
    (["这家酒店很大。", "The Room 房间很大很大很大"], "en", True),
    (["这家酒店很大。"], "zh-TW", False),
    (["東京は大きい。"], "en", True),
    (["北 京 很 大 。"], "en", True),  # tokens of a tagged sentence
    (["The hotel 酒店 is large."], "en", False),
    (["서울은 큰 도시이다."], "en", False),
    ([], "en", False),
])  # fmt: skip
def test_texts_in_another_script_without_spaces_are_recognized(
    texts: list[str], language: str, expected: bool
) -> None:
    assert is_mostly_cjk(texts, language) is expected


def pretrain_tiny_model(name: str, folder: Path) -> Checkpoint:
    """Pretrain a tiny model on Chinese for a few steps."""
    model_config = chinese_config(name)
    tokens = encode_corpus(chinese_texts(), chinese_tokenizer(name))
    assert tokens.text_bytes == sum(len(text.encode()) for text in chinese_texts())
    config = tiny.match_budget(
        model_config.family,
        model_config.architecture,
        vocab_size=chinese_tokenizer(name).vocab_size,
        body_parameters=tiny.BODY_PARAMETERS,
    )
    checkpoint = Checkpoint(
        name, model_config.family, config, model_config.pretrain, chinese_tokenizer(name), seed=11
    )
    with create_artifact(folder / "tokens", "tokens") as draft:
        tokens.save(draft, "train")
        tokens.save(draft, "valid")
    params = read_params(ROOT / "params.yaml")
    params = dataclasses.replace(
        params, budget=dataclasses.replace(params.budget, text_bytes=2_000)
    )
    context = TrainContext(tiny.CPU, Tracker(), folder / "resume", 99, lambda *_: None)
    outcome = pretrain(checkpoint, folder / "tokens", params, context)
    assert outcome.status == "ok"
    with create_artifact(folder / "model", "model") as draft:
        checkpoint.save(draft, outcome.model)
    return Checkpoint.load(folder / "model")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROFILE_FAMILIES)
def test_every_family_can_be_pretrained_and_evaluated_in_chinese(name: str, tmp_path: Path) -> None:
    checkpoint = pretrain_tiny_model(name, tmp_path)
    for number, (key, task_keys) in enumerate(TASKS.items()):
        items = build_task_items(
            tmp_path,
            {
                "generated": "synthetic",
                "language": "zh",
                "limit": {"train": 24, "validation": 6, "test": 12},
            }
            | task_keys,
            name=key,
            seed=7,
        )
        splits = {
            split: items.splits[split]
            for split in ("train", "validation", "test")
            if split in items.splits
        }
        context = EvalContext(
            checkpoint,
            TaskData(items.info, splits),
            chinese_config(name).evaluate,
            0,
            1000,
            "fp32",
            tiny.CPU,
        )
        runs = [*tiny.list_runs(items.info, ("pretrained",), ("all",), (0,))]
        rows, predictions, *_ = evaluate_runs(
            context, runs, cache_dir=tmp_path / str(number), report_progress=lambda *_: None
        )
        if key == "agreement" and name in tiny.STATIC:
            assert {row.status for row in rows} == {"not_applicable"}
            continue
        assert {row.status for row in rows} == {"ok"}, [row.reason for row in rows]
        test_predictions = predictions[predictions["split"] == "test"]
        assert len(test_predictions) == len(runs) * len(items.splits["test"])
        if key == "entities":
            lengths = dict(
                zip(
                    items.splits["test"]["id"], items.splits["test"]["tokens"].map(len), strict=True
                )
            )
            assert all(
                len(split_tags(row.prediction)) == lengths[row.id]
                for row in test_predictions.itertuples()
            )
