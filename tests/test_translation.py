"""Translation tasks are built from tables, scored by BLEU, reported, and learned by two LMs."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from safetensors.torch import save_file

from lineage import artifacts, results
from lineage.analysis.build import build_results
from lineage.answers.metrics import METRICS, bleu, bleu_contributions
from lineage.config.data import Task
from lineage.config.params import Grid, ReportParams
from lineage.config.records import parse_record
from lineage.data.dataset_stats import DatasetStats, SplitStats, write_dataset_stats
from lineage.data.items import TaskItems, check_task_files
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.evaluate import EvaluationOutput, evaluate_runs, sort_predictions
from lineage.families.seq2seq import Seq2SeqConfig, TwoLanguageBpttBatches, one_language_lm_loss
from lineage.language import sentence_spans
from lineage.methods.encoder import EvalContext, EvalRun
from lineage.methods.registry import EvaluateSettings, load_system
from lineage.methods.translation import build_trained_translator, translate
from lineage.networks.checkpoint import Checkpoint
from lineage.report.notes import format_notes
from lineage.synthetic import grammar
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
from tests.helpers.notes import format_reason
from tests.helpers.study_rows import (
    render_pages,
    write_no_ngrams,
    write_overlap,
    write_stage_results,
)
from tests.helpers.tasks import build_task_items

BASE = tiny.model_config("seq2seq").evaluate


def build_task(root: Path, train: pd.DataFrame, test: pd.DataFrame, **keys: Any) -> TaskItems:
    """Build a translation task from csv tables with the columns en and de."""
    train.to_csv(root / "train.csv", index=False)
    test.to_csv(root / "test.csv", index=False)
    files = {"train": "train.csv", "test": "test.csv"}
    task = parse_record(
        Task,
        {
            "kind": "translation",
            "files": files,
            "source": "en",
            "target": "de",
            "metric": ["bleu", "chrf"],
            **keys,
        },
        "task",
    )
    check_task_files(task, load_kind("translation"), root=root, where="task", read_files=True)
    return build_task_items(root, task, name="mt")


TRAIN = pd.DataFrame(
    {
        "en": [f"the cat number {n} runs" for n in range(40)],
        "de": [f"die Katze Nummer {n} rennt" for n in range(40)],
    }
)
TEST = pd.DataFrame(
    {
        "en": ["the cat number 3 runs", "a dog sleeps in the sun"],
        "de": ["die Katze Nummer 3 rennt", "ein Hund schläft in der Sonne"],
    }
)


def test_a_users_table_becomes_pairs_and_truncation_is_counted(tmp_path: Path) -> None:
    items = build_task(tmp_path, TRAIN, TEST, max_words=5, validation_share=0.2)
    assert items.info.counts == {"train": 32, "test": 2, "validation": 8}
    assert items.info.held_out_from_train == 8
    assert items.info.metric == ["bleu", "chrf"] and items.info.labels == []
    assert items.splits["test"].to_dict("records")[1] == {
        "id": "test-2",
        "source": "a dog sleeps in the",
        "target": TEST["de"][1],
        "group": "all",
    }
    assert items.info.truncated["test"] == 1
    assert items.info.duplicates_of_train["test"] == int(
        TEST["en"][0] in set(items.splits["train"]["source"])
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"de": ["x", ""]}, r"test\.csv: row 2.*column 'de': the target is blank"),
        ({"en": [" ", "x"]}, r"test\.csv: row 1.*'en'.*blank"),
    ],
)
def test_a_blank_source_or_target_names_its_file_and_row(
    tmp_path: Path, change: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        build_task(tmp_path, TRAIN, TEST.assign(**change))


def test_a_missing_column_or_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"test\.csv.*'de'"):
        build_task(tmp_path, TRAIN, TEST.drop(columns="de"))
    with pytest.raises(InputError, match="'target' is missing"):
        build_task(tmp_path, TRAIN, TEST, target=None)


def test_bleu_equals_sacrebleu_and_contributions_match_leave_one_out() -> None:
    rng = np.random.default_rng(4)
    references = np.array(
        [" ".join(rng.choice([*"abcdefg"], rng.integers(5, 12))) for _ in range(23)], object
    )
    translations = np.array(
        [
            " ".join(word if rng.random() < 0.8 else "z" for word in text.split())
            for text in references
        ],
        object,
    )
    score = BLEU(force=True).corpus_score(list(translations), [list(references)]).score
    assert bleu(references, translations) == pytest.approx(score) and 20 < score < 80
    leave_one_out = [
        BLEU(force=True)
        .corpus_score(
            [*translations[:i], *translations[i + 1 :]], [[*references[:i], *references[i + 1 :]]]
        )
        .score
        for i in range(23)
    ]
    contributions = bleu_contributions(references, translations)
    assert contributions.mean() == pytest.approx(score / 100, abs=1e-12)
    np.testing.assert_allclose(
        np.diff(contributions), -22 * np.diff(leave_one_out) / 100, atol=1e-9
    )
    chinese = np.array(["我喜欢读书和写字", "今天的天气很好"], object)
    japanese = np.array(["これはペンです。", "それは本です。"], object)
    assert bleu(japanese, np.array(["それはペンです。", "それは本です。"], object)) > 50, (
        "Japanese is scored by characters"
    )
    assert bleu(chinese, chinese) == pytest.approx(100)
    assert METRICS["chrf"](references, references) == pytest.approx(100)


def small_settings(**overrides: Any) -> EvaluateSettings:
    """Return evaluation settings for a short translation training."""
    assert BASE.translation is not None
    return dataclasses.replace(
        BASE,
        translation=dataclasses.replace(
            BASE.translation, **{"epochs": 2, "max_new_tokens": 40, **overrides}
        ),
    )


@pytest.fixture(scope="module")
def task() -> TaskData:
    """Return short sentences; in the targets, the letters of the first word are shifted."""
    texts = [" ".join(document.split()[:4]) for document in tiny.documents()]
    table = pd.DataFrame(
        {
            "id": [str(i) for i in range(len(texts))],
            "source": texts,
            "target": [
                tiny.shift_letters(text.split()[0]) + text[len(text.split()[0]) :] for text in texts
            ],
            "group": "all",
        }
    )
    info = TaskInfo(
        name="mt", kind="translation", labels=[], metric=["bleu", "chrf"], language="en"
    )
    return TaskData(info, {"train": table[:40], "validation": table[40:47], "test": table[47:]})


def build_context(name: str, task: TaskData, folder: Path, **overrides: Any) -> EvalContext:
    """Return a context of a tiny model whose pretrained weights come from another seed."""
    if not (folder / "tokens").exists():
        with artifacts.create_artifact(folder / "tokens", "tokens") as draft:
            tiny.two_languages().save(draft, "train")
        other_model = dataclasses.replace(tiny.checkpoint("seq2seq"), seed=12).build(
            tiny.CPU, load_weights=False
        )
        save_file(other_model.state_dict(), folder / "model.safetensors")
    pretrain = {"source_language": "en", "target_language": "xx"} if name == "seq2seq" else {}
    checkpoint = dataclasses.replace(
        tiny.checkpoint(name, pretrain=pretrain), weights_path=folder / "model.safetensors"
    )
    settings = (
        small_settings(**overrides) if name == "seq2seq" else tiny.model_config(name).evaluate
    )
    return EvalContext(
        checkpoint, task, settings, 0, 1000, "fp32", tiny.CPU, tokens_dir=folder / "tokens"
    )


def evaluate(context: EvalContext, runs: list[EvalRun], folder: Path) -> EvaluationOutput:
    """Evaluate runs with this folder as their cache."""
    return evaluate_runs(context, runs, cache_dir=folder, report_progress=lambda *_: None)


def test_rows_hold_corpus_bleu_and_a_killed_evaluation_ends_the_same(
    task: TaskData, tmp_path: Path
) -> None:
    context = build_context("seq2seq", task, tmp_path)
    runs = [
        *tiny.list_runs(tiny.task_info("translation"), ("pretrained", "random"), (10, "all"), (0,))
    ]
    assert [(run.init, run.method, run.label_count) for run in runs] == [
        (init, "translation", label_count)
        for init in ("pretrained", "random")
        for label_count in (10, "all")
    ]
    for folder, first_runs in (("whole", runs), ("killed", runs[:1])):
        (tmp_path / folder).mkdir()
        evaluate(context, first_runs, tmp_path / folder)
    evaluated = [evaluate(context, runs, tmp_path / folder) for folder in ("whole", "killed")]
    assert results.results_frame(evaluated[0][0]).equals(results.results_frame(evaluated[1][0]))
    assert evaluated[0][1].equals(evaluated[1][1])
    frame = results.results_frame(evaluated[0][0])
    predictions = evaluated[0][1]
    assert set(frame["metric"]) == {"bleu", "chrf"}
    assert set(frame["split"]) == {"validation", "test"}
    assert set(frame["train_examples"]) == {10, 40}
    assert set(frame["head"]) == {"decoder"}
    assert set(frame["recipe"]) == {"both+lm_losses+residual+first_and_top"}
    for row in frame[frame["metric"] == "bleu"].itertuples():
        own_predictions = predictions[
            (predictions["init"] == row.init)
            & (predictions["label_count"] == row.label_count)
            & (predictions["split"] == row.split)
        ]
        assert row.value == pytest.approx(
            bleu(own_predictions["label"].to_numpy(), own_predictions["prediction"].to_numpy())
        )
        assert row.value == pytest.approx(100 * own_predictions["correct"].mean(), abs=1e-9)
        assert 0 <= row.value <= 100
        assert format_reason(row.reason).startswith(
            "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
        )


def test_translations_that_reach_the_length_limit_are_counted(
    task: TaskData, tmp_path: Path
) -> None:
    context = build_context("seq2seq", task, tmp_path, max_new_tokens=40, learning_rate=1e-6)
    rows, predictions, *_ = evaluate(context, [EvalRun("random", "translation", 10, 0)], tmp_path)
    share = predictions[predictions["split"] == "test"]["score"].isna().mean()
    assert share > 0, "an untrained model does not stop"
    assert f"{share:.1%} of the translations had not ended after 40 tokens" in next(
        format_notes(row.reason) for row in rows if row.split == "test"
    )


def test_targets_longer_than_the_limit_give_a_failed_row_with_a_reason(
    task: TaskData, tmp_path: Path
) -> None:
    context = build_context("seq2seq", task, tmp_path, max_new_tokens=3)
    (row,), *_ = evaluate(context, [EvalRun("random", "translation", "all", 0)], tmp_path)
    assert row.status == "failed"
    assert "more than evaluate.translation.max_new_tokens, 3" in format_notes(row.reason)


@pytest.mark.parametrize("name", ["gpt", "word2vec", "bert"])
def test_families_without_a_decoder_are_not_applicable(
    name: str, task: TaskData, tmp_path: Path
) -> None:
    context = build_context(name, task, tmp_path)
    rows, predictions, *_ = evaluate(
        context,
        [*tiny.list_runs(tiny.task_info("translation"), ("random",), ("all",), (0,))],
        tmp_path,
    )
    assert [(row.status, row.metric) for row in rows] == [("not_applicable", "bleu")]
    assert "no decoder" in format_notes(rows[0].reason)
    assert predictions.empty


def test_without_auxiliary_losses_the_pretraining_text_does_not_matter(
    task: TaskData, tmp_path: Path
) -> None:
    context = build_context("seq2seq", task, tmp_path)
    weights = []
    for number in (1, 2):
        with artifacts.create_artifact(tmp_path / f"other-{number}", "tokens") as draft:
            tiny.two_languages().select_language(None if number == 1 else "en").save(draft, "train")
    assert context.settings.translation is not None
    settings = dataclasses.replace(context.settings.translation, aux_lm_losses=False, epochs=1)
    pretrain = dataclasses.replace(
        context.checkpoint.pretrain, source_language=None, target_language=None
    )
    checkpoint = dataclasses.replace(context.checkpoint, pretrain=pretrain)
    for number in (1, 2):
        start_models = checkpoint.build(tiny.CPU), checkpoint.build(tiny.CPU, load_weights=False)
        pairs = task.splits["train"][:12]
        weights.append(
            build_trained_translator(
                checkpoint,
                start_models,
                tmp_path / f"other-{number}",
                pairs,
                settings,
                seed=0,
                precision="fp32",
            ).state_dict()
        )
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def run_baselines(
    task: TaskData, split: str = "test"
) -> list[tuple[list[results.ResultRow], pd.DataFrame]]:
    """Return the rows and predictions of each baseline."""
    kind = load_kind("translation")
    return [
        *tiny.evaluate_baselines(
            kind, task, split=split, finetune_seeds=(0,), label_counts=(10, "all")
        )
    ]  # type: ignore[arg-type]


def test_baselines_copy_the_source_and_recall_translations(task: TaskData) -> None:
    repeated = TaskData(
        task.info, {"train": task.splits["train"], "test": task.splits["train"][:9]}
    )
    rows = results.results_frame(row for own_rows, _ in run_baselines(repeated) for row in own_rows)
    bleu_rows = rows[(rows["label_count"] == "all") & (rows["metric"] == "bleu")].set_index("model")
    assert bleu_rows.loc["tfidf", "value"] == pytest.approx(100), "all these sources are in train"
    table = repeated.splits["test"]
    assert bleu_rows.loc["copy", "value"] == pytest.approx(
        bleu(table["target"].to_numpy(object), table["source"].to_numpy(object))
    )
    assert bleu_rows.loc["majority", "status"] == "not_applicable"
    assert bleu_rows.loc["majority", "reason"]


def test_the_report_labels_bleu_as_bleu(task: TaskData, tmp_path: Path) -> None:
    grid = Grid(
        models=("seq2seq", "gpt"),
        tasks=("mt",),
        pretrain_seeds=(0,),
        adapt_models=(),
        adapt_tasks=(),
        target_only_models=(),
        finetune_seeds=(0,),
        label_counts=(10, "all"),
    )
    folder = tmp_path / "results"
    runs = [
        *tiny.list_runs(tiny.task_info("translation"), ("pretrained", "random"), (10, "all"), (0,))
    ]
    for name in grid.models:
        context = build_context(name, task, tmp_path)
        rows, predictions, *_ = evaluate(context, runs, tmp_path / name)
        write_stage_results(
            folder, f"evaluate-{name}-0-mt", results.results_frame(rows), predictions
        )
    baselines = run_baselines(task)
    baseline_rows = results.results_frame(row for own_rows, _ in baselines for row in own_rows)
    baseline_predictions = sort_predictions([predictions for _, predictions in baselines])
    write_stage_results(folder, "baselines-mt", baseline_rows, baseline_predictions)
    write_no_ngrams(folder)
    write_overlap(folder, "mt", ())
    splits = {"train": SplitStats(1), "test": SplitStats(1)}
    stats = DatasetStats("mt", "translation", splits, {}, None)
    write_dataset_stats(folder / "statistics/baselines-mt.json", stats)
    table, analysis = build_results(folder, grid, ReportParams())
    assert {one.metric for one in analysis.comparisons} == {"bleu"}
    copy_row = table[(table["model"] == "copy") & (table["metric"] == "bleu")].iloc[0]
    assert copy_row["value"] > 1, "the score must be visible in the report"
    pages = render_pages(analysis)
    assert f"| copied source | {copy_row['value']:.1f} |" in pages["md"]
    assert "| system | BLEU | interval" in pages["md"]
    assert "% correct" not in pages["md"]
    assert '>BLEU <small class="muted">all 40 labels</small></th>' in pages["html"]
    assert "no decoder" in pages["html"]
    assert "points" in pages["md"]


def synthetic_sentences(count: int) -> list[str]:
    """Return sentences of the synthetic language's hundred commonest words, shuffled."""
    documents = grammar.generate_documents(1500, seed=3, grammar_seed=grammar.DEFAULT_GRAMMAR_SEED)
    sentences = list(
        dict.fromkeys(
            document[start:end]
            for document in documents
            for start, end in sentence_spans(document, "en")
        )
    )
    word_counts = Counter(word for sentence in sentences for word in sentence.split())
    common = {word for word, _ in word_counts.most_common(100)}
    common_sentences = [
        sentence
        for sentence in sentences
        if set(sentence.split()) <= common and 4 <= len(sentence.split()) <= 9
    ]
    return [
        common_sentences[index]
        for index in np.random.default_rng(0).permutation(len(common_sentences))[:count]
    ]


@pytest.mark.slow
def test_translation_is_learned_and_pretraining_helps_when_pairs_are_few(tmp_path: Path) -> None:
    """Translate word by word: near perfect with 1000 pairs.

    With 300 pairs, pretraining is far above the random-init baseline, which takes the same steps.
    """
    texts = synthetic_sentences(2200)
    test = texts[:100]
    pairs = pd.DataFrame(
        {
            "source": texts[100:1100],
            "target": [tiny.shift_letters(sentence) for sentence in texts[100:1100]],
        }
    )
    corpus_texts = texts[1100:]
    half = len(corpus_texts) // 2
    # No sentence is in both languages.
    corpus = [
        *corpus_texts[:half],
        *(tiny.shift_letters(sentence) for sentence in corpus_texts[half:]),
    ]
    tokenizer = train_tokenizer(
        corpus, TokenizerSettings(vocab_size=500), tokenizer_type="byte_bpe", language="en"
    )
    tokens = encode_corpus(
        corpus, tokenizer, languages=["en"] * half + ["xx"] * (len(corpus) - half)
    )
    with artifacts.create_artifact(tmp_path / "tokens", "tokens") as draft:
        tokens.save(draft, "train")
    pretrain = tiny.bilingual_settings(batch_size=16, seq_len=12)
    checkpoint = Checkpoint(
        "s",
        tiny.model_config("seq2seq").family,
        Seq2SeqConfig(dropout=0.0, hidden_size=48),
        pretrain,
        tokenizer,
        seed=1,
        weights_path=tmp_path / "w",
    )
    model = checkpoint.build(tiny.CPU, load_weights=False)
    sampler = TwoLanguageBpttBatches(tokens, tokenizer, pretrain, seed=1)
    plan = TrainPlan(
        lambda counters: counters.text_bytes / (6 * tokens.text_bytes),
        schedule_with_warmup("linear", 0.05),
        learning_rate=0.005,
        max_grad_norm=1.0,
        precision="fp32",
    )
    for _ in train(
        TrainState(
            model,
            build_adamw(build_param_groups([[*model.parameters()]], weight_decay=0.0)),
            RngState(1),
        ),
        one_language_lm_loss,
        sampler,
        plan,
    ):
        pass
    save_file(model.state_dict(), tmp_path / "w")
    settings = small_settings(epochs=35, learning_rate=0.005).translation
    references = np.array([tiny.shift_letters(sentence) for sentence in test], object)
    scores = {}
    for count, is_pretrained in ((1000, True), (300, True), (300, False)):
        models = (
            checkpoint.build(tiny.CPU, load_weights=is_pretrained),
            checkpoint.build(tiny.CPU, load_weights=False),
        )
        assert settings is not None
        translator = build_trained_translator(
            checkpoint,
            models,
            tmp_path / "tokens",
            pairs[:count],
            settings,
            seed=0,
            precision="fp32",
        )
        scores[count, is_pretrained] = bleu(
            references, translate(translator, tokenizer, test, precision="fp32")[0]
        )
    assert scores[1000, True] > 95 and scores[300, True] > scores[300, False] + 20, scores


def test_a_kept_translator_translates_as_it_did(task: TaskData, tmp_path: Path) -> None:
    context = build_context("seq2seq", task, tmp_path)
    context.checkpoint.save(tmp_path, context.checkpoint.build(tiny.CPU))
    runs = [*tiny.list_runs(tiny.task_info("translation"), ("pretrained",), ("all",), (0,))]
    (tmp_path / "cache").mkdir()
    output = evaluate(context, runs, tmp_path / "cache")
    (folder,) = (tmp_path / "cache").glob("*/system")
    answer = load_system(folder, tiny.CPU)
    found = answer(task.splits["test"].drop(columns=["target"]))["prediction"]
    stored = output.predictions[output.predictions["split"] == "test"]
    assert found.tolist() == stored["prediction"].tolist()
    assert len(set(found)) > 1
