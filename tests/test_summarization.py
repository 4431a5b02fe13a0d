"""Summaries: read from tables, scored by ROUGE, written by a translator or by a GPT, and floors."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rouge_score.rouge_scorer import RougeScorer

from lineage import artifacts
from lineage.answers.metrics import CONTRIBUTIONS, METRICS, RougeWords
from lineage.config.data import Task
from lineage.config.records import parse_record
from lineage.data.items import TaskItems, check_task_files
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.evaluate import evaluate_runs
from lineage.families.seq2seq import (
    Seq2SeqConfig,
    TwoLanguageBpttBatches,
    one_language_lm_loss,
)
from lineage.methods.continuation import ContinuationMethod
from lineage.methods.encoder import EvalContext, EvalRun
from lineage.methods.extracts import split_sentences
from lineage.methods.registry import load_system
from lineage.networks.batch import Batch
from lineage.networks.checkpoint import Checkpoint
from lineage.report.notes import format_notes
from lineage.results import results_frame
from lineage.synthetic.grammar import DEFAULT_GRAMMAR_SEED
from lineage.synthetic.words import build_lexicon
from lineage.tasks.base import load_kind
from lineage.tasks.info import TaskInfo
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.schedules import schedule_with_warmup
from lineage.training.state import RngState, TrainState
from tests.helpers import tiny
from tests.helpers.public_checkpoints import build_hf_model, load_public, save_checkpoint
from tests.helpers.tasks import build_task_items

METRIC_NAMES = ("rouge1", "rouge2", "rougeL")
DIALOGUE = "Ann: Hello there. Are you well?\nBob: Yes, thank you.\nAnn: Good.\nBob: See you."


def build_task(
    root: Path, train: pd.DataFrame, test: pd.DataFrame | None = None, **keys: Any
) -> TaskItems:
    """Build a task from tables with the columns article and summary."""
    train.to_json(root / "train.jsonl", orient="records", lines=True)
    files = {"train": "train.jsonl"}
    if test is not None:
        test.to_json(root / "test.jsonl", orient="records", lines=True)
        files["test"] = "test.jsonl"
    block = {"kind": "summarization", "files": files, "source": "article", "target": "summary"}
    task = parse_record(Task, block | keys, "task")
    check_task_files(task, load_kind(task.kind), root=root, where="task", read_files=True)
    return build_task_items(root, task, name="news")


TRAIN = pd.DataFrame(
    {
        "article": [
            f"Today the cat number {n} ran away. Nobody saw it. It rained." for n in range(20)
        ],
        "summary": [f"Cat {n} ran away." for n in range(20)],
    }
)
TEST = pd.DataFrame(
    {
        "article": [
            "The cat number 3 ran away. It rained.",
            "A dog slept. It was hot. It was noon.",
        ],
        "summary1": ["Cat 3 ran away.", "A dog slept."],
        "summary2": ["A cat ran.", "The dog slept in the heat."],
    }
)


def test_rouge_equals_rouge_score_and_is_the_mean_over_references() -> None:
    rng = np.random.default_rng(4)
    words = ["The", "cat", "don't", "U.S.", "ran", "3", "times,", "away"]
    references, other_references, written = (
        np.array([" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(23)], object)
        for _ in range(3)
    )
    scorer = RougeScorer(METRIC_NAMES)
    both = references + "\t" + other_references
    for metric in METRIC_NAMES:
        expected = [
            [scorer.score(reference, text)[metric].fmeasure for reference in item]
            for *item, text in zip(references, other_references, written, strict=True)
        ]
        np.testing.assert_allclose(
            CONTRIBUTIONS[metric](references, written), np.array(expected)[:, 0]
        )
        np.testing.assert_allclose(CONTRIBUTIONS[metric](both, written), np.mean(expected, 1))
        assert METRICS[metric](both, written) == pytest.approx(100 * np.mean(expected))
        assert 5 < METRICS[metric](both, written) < 95


def test_rouge_reads_letters_that_rouge_score_drops() -> None:
    assert RougeWords().tokenize("Müller’s Кот, 天很 हिन्दी") == [
        "müller",
        "s",
        "кот",
        "天",
        "很",
        "हिन्दी",
    ]
    russian = np.array(["кот убежал"], object)
    assert METRICS["rouge1"](russian, np.array(["кот спит"], object)) == pytest.approx(50)


def test_test_may_have_several_summaries_where_train_has_one(tmp_path: Path) -> None:
    items = build_task(tmp_path, TRAIN, TEST, references=["summary1", "summary2"], max_words=6)
    assert items.info.metric == ["rougeL"]
    assert items.splits["test"].to_dict("records")[1] == {
        "id": "test-2",
        "source": "A dog slept. It was",
        "num_words": 12,
        "target": "A dog slept.\tThe dog slept in the heat.",
        "group": "all",
    }
    assert "\t" not in items.splits["train"]["target"][0]
    assert items.info.truncated["test"] == 2


@pytest.mark.parametrize("empty", ["", " ", None, "\u200b"])
def test_an_empty_summary_is_refused_by_its_row(tmp_path: Path, empty: str | None) -> None:
    table = TRAIN.copy()
    table.loc[3, "summary"] = empty
    with pytest.raises(InputError, match=r"train\.jsonl: row 4.*'summary': the summary is blank"):
        build_task(tmp_path, table, TEST.rename(columns={"summary1": "summary"}))
    table = TEST.copy()
    table.loc[1, "summary2"] = empty
    with pytest.raises(InputError, match=r"test\.jsonl: row 2.*'summary2': the summary is blank"):
        build_task(tmp_path, TRAIN, table, references=["summary1", "summary2"])


def test_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"test\.jsonl.*'summary'"):
        build_task(tmp_path, TRAIN, TEST)
    with pytest.raises(InputError, match=r"references: with folds .* remove references"):
        build_task(tmp_path, TRAIN, folds=3, references=["summary1"])
    with pytest.raises(InputError, match="'references' is empty"):
        build_task(tmp_path, TRAIN, TEST, references=[])
    with pytest.raises(InputError, match=r"task\.label: .* does not use it"):
        build_task(tmp_path, TRAIN, TEST, label="summary")


def test_cut_documents_and_long_summaries_cause_warnings(tmp_path: Path) -> None:
    test = TEST.rename(columns={"summary1": "summary"})
    assert build_task(tmp_path, TRAIN, test).label_warnings == []
    (warning,) = build_task(tmp_path, TRAIN, test, max_words=7).label_warnings
    # 15 words with punctuation, of which 7 are left
    assert "100% of the training documents are longer than max_words, 7" in warning
    assert "takes 53% of all their words away" in warning
    swapped = TRAIN.rename(columns={"article": "summary", "summary": "article"})
    (warning,) = build_task(tmp_path, swapped, test).label_warnings
    assert "20 of 20 training summaries are as long as their documents or longer" in warning
    assert "cat" not in warning, "warnings hold no text of the user"


def test_a_dialogue_is_split_into_turns_and_other_text_into_sentences() -> None:
    assert split_sentences(DIALOGUE, "en") == DIALOGUE.splitlines()
    article = "It rained. Nobody came: all stayed at home.\nIt ended."
    assert split_sentences(article, "en") == [
        "It rained.",
        "Nobody came: all stayed at home.",
        "It ended.",
    ]


def make_task(train: pd.DataFrame, test: pd.DataFrame, *, folds: int | None = None) -> TaskData:
    """Return a task from tables with source and target."""
    info = TaskInfo("news", "summarization", metric=[*METRIC_NAMES], folds=folds)
    splits = {}
    for split, table in (("train", train), ("validation", test[:5]), ("test", test)):
        ids = [f"{split}-{row + 1}" for row in range(len(table))]
        splits[split] = table.assign(id=ids, group="all", num_words=9).reset_index(drop=True)
    return TaskData(info, {"train": splits["train"]} if folds else splits)


def run_baselines(task: TaskData) -> pd.DataFrame:
    """Return the predictions of all baselines with all labels."""
    kind = load_kind("summarization")
    found = tiny.evaluate_baselines(
        kind, task, split="test", finetune_seeds=(0,), label_counts=("all",)
    )
    return pd.concat([predictions for _, predictions in found])  # type: ignore[misc]


def test_the_floors_are_parts_of_the_document_and_the_nearest_summary() -> None:
    train = pd.DataFrame(
        {
            "source": ["one cat ran", "two dogs slept", *["x y"] * 8],
            "target": ["cat", "dogs", *"abcdefgh"],
        }
    )
    test = pd.DataFrame(
        {"source": [DIALOGUE, "dogs slept here. So long it was. No."], "target": ["hi", "dogs"]}
    )
    predictions = run_baselines(make_task(train, test))
    found = predictions[predictions["split"] == "test"].pivot(
        index="id", columns="model", values="prediction"
    )
    assert "copy" not in found, "a whole document is no summary"
    assert found["lead_3"].tolist() == [
        "\n".join(DIALOGUE.splitlines()[:3]),
        "dogs slept here.\nSo long it was.\nNo.",
    ]
    assert found["longest_sentence"].tolist() == [DIALOGUE.splitlines()[0], "So long it was."]
    assert found["tfidf"]["test-2"] == "dogs"
    scores = predictions[predictions["model"] == "tfidf"].set_index("id")["correct"]
    assert scores["test-2"] == 1.0


def test_with_folds_each_document_is_summarized_once() -> None:
    train = pd.DataFrame(
        {"source": [f"a{n} b. c d{n}." for n in range(12)], "target": [f"d{n}" for n in range(12)]}
    )
    predictions = run_baselines(make_task(train, train, folds=3))
    lead = predictions[(predictions["model"] == "lead_3") & (predictions["split"] == "test")]
    assert sorted(lead["id"]) == sorted(f"train-{n + 1}" for n in range(12))
    assert set(lead["fold"]) == {0, 1, 2}


# A language model writes on.

CONTINUATION = EvalRun("pretrained", "continuation", "all", 0)
TEXTS = [
    document[:length] for document, length in zip(tiny.documents(), (30, 90, 60), strict=False)
]
WORDS = pd.DataFrame({"source": TEXTS, "target": ["one", "two", "three"]})


def build_context(name: str, folder: Path, max_new_tokens: int = 4) -> EvalContext:
    """Return a context of an untrained model, whose weights are saved, on three documents."""
    task = make_task(WORDS, WORDS)
    pretrain = {} if name in tiny.STATIC else {"seq_len": 24}
    checkpoint = tiny.checkpoint(name, pretrain=pretrain)
    checkpoint.save(folder, tiny.model(name, pretrain=pretrain))
    checkpoint = Checkpoint.load(folder)
    settings = dataclasses.replace(
        tiny.model_config(name).evaluate,
        continuation=ContinuationMethod(max_new_tokens=max_new_tokens),
    )
    return EvalContext(checkpoint, task, settings, 0, 1000, "fp32", tiny.CPU)


@pytest.mark.parametrize("name", ["gpt", "gpt_modern"])
def test_the_continuation_is_greedy_and_a_kept_system_writes_the_same(
    name: str, tmp_path: Path
) -> None:
    context = build_context(name, tmp_path)
    (tmp_path / "cache").mkdir()
    output = evaluate_runs(
        context, [CONTINUATION], cache_dir=tmp_path / "cache", report_progress=lambda *_: None
    )
    rows = results_frame(output.rows)
    assert set(rows["metric"]) == {*METRIC_NAMES} and set(rows["transfer"]) == {"zero_shot"}
    own = output.predictions[output.predictions["split"] == "test"].set_index("id")
    model = context.checkpoint.build(tiny.CPU).eval()
    tokenizer = context.checkpoint.tokenizer
    end_id = tokenizer.special_token_ids["<|endoftext|>"]
    prompt = tokenizer.tokenize(["\nTL;DR:"])[0].ids
    room = context.max_input_positions - 1 - len(prompt) - 4
    for row, text in enumerate(TEXTS):
        ids = [end_id, *tokenizer.tokenize([text])[0].ids[:room], *prompt]
        start = len(ids)
        for _ in range(4):
            ids_1T = torch.tensor([ids])
            with torch.no_grad():
                top = model.encode(Batch(ids_1T, torch.ones_like(ids_1T, dtype=torch.bool)))[-1]
                logits = model.logits(top[0, -1:])[0]
            ids.append(int(logits.argmax()))
        expected = tokenizer.backend_tokenizer.decode(ids[start:])
        assert own.loc[f"test-{row + 1}", "prediction"] == expected.split("\n")[0].strip()
    assert f"of the texts were longer than {room} tokens, and cut" in format_notes(
        output.rows[0].reason
    )
    (folder,) = (tmp_path / "cache").glob("*/system")
    answer = load_system(folder, tiny.CPU)
    assert answer(WORDS[["source"]])["prediction"].tolist() == own["prediction"].tolist()


def test_a_text_ends_with_its_line_and_is_never_empty(tmp_path: Path) -> None:
    context = build_context("gpt", tmp_path)
    tokenizer = context.checkpoint.tokenizer
    line_end = tokenizer.tokenize(["\n"])[0].ids[-1]
    word = tokenizer.tokenize([TEXTS[0]])[0].ids[0]
    model = context.checkpoint.build(tiny.CPU)
    top_V = torch.full((tokenizer.vocab_size,), 0.0)
    top_V[[line_end, word]] = torch.tensor([2.0, 1.0])
    model.logits = lambda x_ND: top_V.expand(len(x_ND), -1)  # type: ignore[method-assign]
    texts = ContinuationMethod(max_new_tokens=4).write(model, tokenizer, TEXTS[:2], limit=24)
    assert texts == [tokenizer.backend_tokenizer.decode([word]).strip()] * 2


@pytest.mark.parametrize("name", ["bert", "elmo", "word2vec"])
def test_models_that_cannot_write_say_so(name: str, tmp_path: Path) -> None:
    context = build_context(name, tmp_path)
    runs = [*tiny.list_runs(tiny.task_info("summarization"), ("pretrained",), ("all",), (0,))]
    output = evaluate_runs(context, runs, cache_dir=tmp_path, report_progress=lambda *_: None)
    assert {row.status for row in output.rows} == {"not_applicable"}
    reasons = {format_notes(row.reason) for row in output.rows}
    assert reasons == {
        "it has no decoder to write a summary with",
        "it cannot write on from a text: it does not predict each token from those before",
    }


def test_a_context_that_is_too_short_fails_with_advice(tmp_path: Path) -> None:
    context = build_context("gpt", tmp_path, max_new_tokens=20)
    output = evaluate_runs(
        context, [CONTINUATION], cache_dir=tmp_path, report_progress=lambda *_: None
    )
    assert {row.status for row in output.rows} == {"failed"}
    assert "lower evaluate.continuation.max_new_tokens" in format_notes(output.rows[0].reason)


@pytest.mark.parametrize("kind", ["gpt2", "gpt1"])
def test_a_public_gpt_writes_what_transformers_generates(kind: str, tmp_path: Path) -> None:
    model, checkpoint = load_public(save_checkpoint(kind, tmp_path))
    assert checkpoint.family.can_answer("continuation", checkpoint.architecture)
    tokenizer = checkpoint.tokenizer
    text = TEXTS[0][:20]
    (written,) = ContinuationMethod(max_new_tokens=6).write(model, tokenizer, [text], limit=None)
    parts = [tokenizer.tokenize([part])[0].ids for part in (text, "\nTL;DR:")]
    ids = [*tokenizer.special_token_template.prefix, *np.concatenate(parts)]
    reference = build_hf_model(kind).eval()
    generated = reference.generate(
        torch.tensor([ids]), max_new_tokens=6, min_new_tokens=1, do_sample=False
    )[0, len(ids) :].tolist()
    expected = tokenizer.backend_tokenizer.decode(generated)
    assert written == expected.split("\n")[0].strip() and written


def test_a_masked_public_checkpoint_cannot_write(tmp_path: Path) -> None:
    _, checkpoint = load_public(save_checkpoint("bert", tmp_path))
    assert not checkpoint.family.can_answer("continuation", checkpoint.architecture)


# A planted summary: the sentence with the marker.


def make_planted(count: int, seed: int) -> pd.DataFrame:
    """Return documents of three short sentences, and as summary the one that a word contrasts."""
    lexicon = build_lexicon(DEFAULT_GRAMMAR_SEED)
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        names = rng.choice(lexicon.names[:16], 3, replace=False)
        verbs = rng.choice(lexicon.generic.verbs[:4], 3)
        sentences = [f"{name} {verb} ." for name, verb in zip(names, verbs, strict=True)]
        links = [lexicon.additive_conjunction] * 3
        place = rng.integers(3)
        links[place] = lexicon.contrastive_conjunction
        document = " ".join(f"{a} {b}" for a, b in zip(links, sentences, strict=True))
        rows.append({"source": document, "target": sentences[place]})
    return pd.DataFrame(rows)


def pretrain_on(texts: list[str], folder: Path) -> Checkpoint:
    """Pretrain the two language models of a translator on the texts, both on all of them."""
    settings = TokenizerSettings(vocab_size=400)
    tokenizer = train_tokenizer(texts, settings, tokenizer_type="byte_bpe", language="en")
    tokens = encode_corpus(texts, tokenizer)
    with artifacts.create_artifact(folder / "tokens", "tokens") as draft:
        tokens.save(draft, "train")
    config = tiny.model_config("seq2seq", pretrain={"batch_size": 16, "seq_len": 12})
    checkpoint = Checkpoint(
        "seq2seq",
        config.family,
        Seq2SeqConfig(dropout=0.0, hidden_size=32),
        config.pretrain,
        tokenizer,
        seed=1,
    )
    model = checkpoint.build(tiny.CPU, load_weights=False)
    optimizer = build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.0))
    plan = TrainPlan(
        lambda counters: counters.text_bytes / (8 * tokens.text_bytes),
        schedule_with_warmup("linear", 0.05),
        learning_rate=0.005,
        max_grad_norm=1.0,
        precision="fp32",
    )
    sampler = TwoLanguageBpttBatches(tokens, tokenizer, config.pretrain, seed=1)
    for _ in train(TrainState(model, optimizer, RngState(1)), one_language_lm_loss, sampler, plan):
        pass
    (folder / "model").mkdir()
    checkpoint.save(folder / "model", model)
    return Checkpoint.load(folder / "model")


def test_a_planted_summary_is_found_and_not_if_summaries_are_shuffled(tmp_path: Path) -> None:
    checkpoint = pretrain_on(make_planted(400, seed=2)["source"].tolist(), tmp_path)
    settings = tiny.model_config("seq2seq").evaluate
    assert settings.translation is not None
    translation = dataclasses.replace(
        settings.translation,
        epochs=12,
        learning_rate=0.01,
        dropout=0.0,
        max_new_tokens=20,
        aux_lm_losses=False,
    )
    settings = dataclasses.replace(settings, translation=translation)
    train_items = make_planted(400, seed=0)
    shuffled = np.random.default_rng(5).permutation(train_items["target"])
    scores = {}
    for name, table in (
        ("planted", train_items),
        ("shuffled", train_items.assign(target=shuffled)),
    ):
        task = make_task(table, make_planted(60, seed=1))
        context = EvalContext(
            checkpoint, task, settings, 0, 1000, "fp32", tiny.CPU, tokens_dir=tmp_path / "tokens"
        )
        run = EvalRun("pretrained", "translation", "all", 0)
        folder = tmp_path / name
        folder.mkdir()
        output = evaluate_runs(context, [run], cache_dir=folder, report_progress=lambda *_: None)
        own = output.predictions
        scores[name] = own[own["split"] == "test"]["correct"].mean()
    planted = run_baselines(make_task(train_items, make_planted(60, seed=1)))
    floors = planted.groupby("model")["correct"].mean()
    assert set(floors.index) == {"lead_3", "longest_sentence", "tfidf"}
    assert scores["planted"] > floors.max() + 0.2, (scores, floors)
    assert scores["shuffled"] < floors.min(), (scores, floors)
