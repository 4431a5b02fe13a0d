"""A task of translation: from a user's tables to rows, and two language models that read a language each."""

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
from lineage.config.data import Task
from lineage.config.params import Grid, ReportParams
from lineage.config.records import parse_record
from lineage.data.dataset_stats import DatasetStats, SplitStats, write_dataset_stats
from lineage.data.items import TaskItems, build_items, check_task_files
from lineage.data.language import sentence_spans
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.baselines import build_predictions_table, evaluate_baselines
from lineage.evaluation.evaluate import evaluate_runs, list_runs
from lineage.evaluation.metrics import METRICS, bleu, bleu_contributions
from lineage.evaluation.settings import EvaluateSettings
from lineage.evaluation.systems import EvalContext, EvalRun
from lineage.evaluation.translation import build_trained_translator, translate
from lineage.models.checkpoint import Checkpoint
from lineage.models.seq2seq import Seq2SeqConfig, TwoLanguageBpttBatches, one_language_lm_loss
from lineage.report import page
from lineage.report.notes import format_notes, format_reason
from lineage.synthetic import grammar
from lineage.tasks.base import load_kind
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import TokenizerSettings
from lineage.tokenizers.train import train_tokenizer
from lineage.training.loop import TrainPlan, train
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.schedules import linear_schedule_with_warmup
from lineage.training.state import RngState, TrainState
from tests import tiny
from tests.study_rows import overlap

ROOT = Path(__file__).parent.parent
BASE = tiny.variant("seq2seq").evaluate


def made(root: Path, train: pd.DataFrame, test: pd.DataFrame, **keys: Any) -> TaskItems:
    """A task of csv tables with the columns en and de."""
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
    return build_items("mt", task, load_kind("translation"), seed=1, root=root, where="task")


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


def test_a_users_table_becomes_pairs_and_nothing_is_lost_in_silence(tmp_path: Path) -> None:
    items = made(tmp_path, TRAIN, TEST, max_tokens=5, validation_share=0.2)
    assert (
        items.info["counts"] == {"train": 32, "test": 2, "validation": 8}
        and items.info["carved"] == 8
    )
    assert items.info["metric"] == ["bleu", "chrf"] and items.info["labels"] == []
    assert items.splits["test"].to_dict("records")[1] == {
        "id": "test-2",
        "source": "a dog sleeps in the",
        "target": TEST["de"][1],
        "group": "all",
    }
    assert items.info["cut"]["test"] == 1 and items.info["repeated_in_train"]["test"] == int(
        TEST["en"][0] in set(items.splits["train"]["source"])
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"de": ["x", ""]}, r"test\.csv: row 2.*column 'de': the target is blank"),
        ({"en": [" ", "x"]}, r"test\.csv: row 1.*'en'.*blank"),
    ],
)
def test_an_empty_side_names_its_file_and_row(
    tmp_path: Path, change: dict[str, list[str]], what: str
) -> None:
    with pytest.raises(InputError, match=what):
        made(tmp_path, TRAIN, TEST.assign(**change))


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"test\.csv.*'de'"):
        made(tmp_path, TRAIN, TEST.drop(columns="de"))
    with pytest.raises(InputError, match="'target' is missing"):
        made(tmp_path, TRAIN, TEST, target=None)


def test_bleu_is_sacrebleus_and_the_shares_of_examples_are_what_it_loses_without_them() -> None:
    rng = np.random.default_rng(4)
    gold = np.array(
        [" ".join(rng.choice([*"abcdefg"], rng.integers(5, 12))) for _ in range(23)], object
    )
    said = np.array(
        [" ".join(word if rng.random() < 0.8 else "z" for word in text.split()) for text in gold],
        object,
    )
    score = BLEU(force=True).corpus_score(list(said), [list(gold)]).score
    assert bleu(gold, said) == pytest.approx(score) and 20 < score < 80
    without = [
        BLEU(force=True)
        .corpus_score([*said[:i], *said[i + 1 :]], [[*gold[:i], *gold[i + 1 :]]])
        .score
        for i in range(23)
    ]
    shares = bleu_contributions(gold, said)
    assert shares.mean() == pytest.approx(score / 100, abs=1e-12)
    np.testing.assert_allclose(np.diff(shares), -22 * np.diff(without) / 100, atol=1e-9)
    chinese = np.array(["我喜欢读书和写字", "今天的天气很好"], object)
    japanese = np.array(["これはペンです。", "それは本です。"], object)
    assert bleu(japanese, np.array(["それはペンです。", "それは本です。"], object)) > 50, (
        "of characters, kana too"
    )
    assert bleu(chinese, chinese) == pytest.approx(100) and METRICS["chrf"](
        gold, gold
    ) == pytest.approx(100)


def small(**over: Any) -> EvaluateSettings:
    assert BASE.translation is not None
    return dataclasses.replace(
        BASE,
        translation=dataclasses.replace(
            BASE.translation, **{"epochs": 2, "max_new_tokens": 40, **over}
        ),
    )


@pytest.fixture(scope="module")
def task() -> TaskData:
    """Short sentences, and the same with the letters of their first word moved on."""
    texts = [" ".join(document.split()[:4]) for document in tiny.documents()]
    table = pd.DataFrame(
        {
            "id": [str(i) for i in range(len(texts))],
            "source": texts,
            "target": [tiny.moved(t.split()[0]) + t[len(t.split()[0]) :] for t in texts],
            "group": "all",
        }
    )
    facts = {
        "name": "mt",
        "kind": "translation",
        "answer": None,
        "labels": [],
        "metric": ["bleu", "chrf"],
        "max_tokens": 20,
        "language": "en",
    }
    return TaskData(facts, {"train": table[:40], "validation": table[40:47], "test": table[47:]})


def setting(name: str, task: TaskData, folder: Path, **over: Any) -> EvalContext:
    """A tiny model of which trained weights are there: those of another start."""
    if not (folder / "tokens").exists():
        with artifacts.create_artifact(folder / "tokens", "tokens") as draft:
            tiny.two_languages().save(draft, "train")
        other = dataclasses.replace(tiny.checkpoint("seq2seq"), seed=12).build(
            tiny.CPU, load_weights=False
        )
        save_file(other.state_dict(), folder / "model.safetensors")
    pretrain = {"source_language": "en", "target_language": "xx"} if name == "seq2seq" else {}
    checkpoint = dataclasses.replace(
        tiny.checkpoint(name, pretrain=pretrain), weights_path=folder / "model.safetensors"
    )
    settings = small(**over) if name == "seq2seq" else tiny.variant(name).evaluate
    return EvalContext(
        checkpoint, task, settings, 0, 1000, "fp32", tiny.CPU, tokens_dir=folder / "tokens"
    )


def test_rows_are_corpus_bleu_and_a_killed_evaluation_ends_in_the_same(
    task: TaskData, tmp_path: Path
) -> None:
    found, some = (
        setting("seq2seq", task, tmp_path),
        [*list_runs(tiny.asked("translation"), ("pretrained", "random"), (10, "all"), (0,))],
    )
    assert [(cell.init, cell.transfer, cell.label_count) for cell in some] == [
        (init, "finetuned", labels) for init in ("pretrained", "random") for labels in (10, "all")
    ]
    for place, first in (("whole", some), ("killed", some[:1])):
        (tmp_path / place).mkdir()
        evaluate_runs(found, first, cache_dir=tmp_path / place, report_progress=lambda *_: None)
    evaluated = [
        evaluate_runs(found, some, cache_dir=tmp_path / place, report_progress=lambda *_: None)
        for place in ("whole", "killed")
    ]
    assert results.results_frame(evaluated[0][0]).equals(
        results.results_frame(evaluated[1][0])
    ) and evaluated[0][1].equals(evaluated[1][1])
    frame, predictions = results.results_frame(evaluated[0][0]), evaluated[0][1]
    assert (
        set(frame["metric"]) == {"bleu", "chrf"}
        and set(frame["split"]) == {"validation", "test"}
        and set(frame["train_examples"]) == {10, 40}
    )
    assert set(frame["head"]) == {"decoder"} and set(frame["recipe"]) == {
        "both+lm_losses+residual+first_and_top"
    }
    for row in frame[frame["metric"] == "bleu"].itertuples():
        own = predictions[
            (predictions["init"] == row.init)
            & (predictions["label_count"] == row.label_count)
            & (predictions["split"] == row.split)
        ]
        assert row.value == pytest.approx(
            bleu(own["label"].to_numpy(), own["prediction"].to_numpy())
        )
        assert (
            row.value == pytest.approx(100 * own["correct"].mean(), abs=1e-9)
            and 0 <= row.value <= 100
        )
        assert format_reason(row.reason).startswith(
            "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:"
        )


def test_translations_without_an_end_are_counted(task: TaskData, tmp_path: Path) -> None:
    found = setting("seq2seq", task, tmp_path, max_new_tokens=40, learning_rate=1e-6)
    list_of_rows, predictions = evaluate_runs(
        found,
        [EvalRun("random", "finetuned", 10, 0)],
        cache_dir=tmp_path,
        report_progress=lambda *_: None,
    )
    share = predictions[predictions["split"] == "test"]["score"].isna().mean()
    assert share > 0, "an untrained network writes on and on"
    assert f"{share:.1%} of the translations had not ended after 40 tokens" in next(
        format_notes(row.reason) for row in list_of_rows if row.split == "test"
    )


def test_a_target_that_could_not_be_written_is_a_failed_cell_with_its_reason(
    task: TaskData, tmp_path: Path
) -> None:
    found = setting("seq2seq", task, tmp_path, max_new_tokens=3)
    (row,), _ = evaluate_runs(
        found,
        [EvalRun("random", "finetuned", "all", 0)],
        cache_dir=tmp_path,
        report_progress=lambda *_: None,
    )
    assert (
        row.status == "failed"
        and "more than evaluate.translation.max_new_tokens, 3" in format_notes(row.reason)
    )


@pytest.mark.parametrize("name", ["gpt", "word2vec", "bert"])
def test_families_without_a_decoder_say_so(name: str, task: TaskData, tmp_path: Path) -> None:
    found = setting(name, task, tmp_path)
    some, predictions = evaluate_runs(
        found,
        [*list_runs(tiny.asked("translation"), ("random",), ("all",), (0,))],
        cache_dir=tmp_path,
        report_progress=lambda *_: None,
    )
    assert (
        [(row.status, row.metric) for row in some] == [("not_applicable", "bleu")]
        and "no decoder" in format_notes(some[0].reason)
        and predictions.empty
    )


def test_no_trace_of_the_language_models_text_is_left_where_their_losses_are_off(
    task: TaskData, tmp_path: Path
) -> None:
    found = setting("seq2seq", task, tmp_path)
    models = []
    for count in (1, 2):
        with artifacts.create_artifact(tmp_path / f"other-{count}", "tokens") as draft:
            tiny.two_languages().select_language(None if count == 1 else "en").save(draft, "train")
    assert found.settings.translation is not None
    settings = dataclasses.replace(found.settings.translation, aux_lm_losses=False, epochs=1)
    pretrain = dataclasses.replace(
        found.checkpoint.pretrain, source_language=None, target_language=None
    )
    checkpoint = dataclasses.replace(found.checkpoint, pretrain=pretrain)
    for count in (1, 2):
        both = checkpoint.build(tiny.CPU), checkpoint.build(tiny.CPU, load_weights=False)
        pairs = task.splits["train"][:12]
        models.append(
            build_trained_translator(
                checkpoint,
                both,
                tmp_path / f"other-{count}",
                pairs,
                settings,
                seed=0,
                precision="fp32",
            ).state_dict()
        )
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


def control_cells(
    task: TaskData, split: str = "test"
) -> list[tuple[list[results.ResultRow], pd.DataFrame]]:
    kind = load_kind("translation")
    return [
        *evaluate_baselines(kind, task, split=split, finetune_seeds=(0,), label_counts=(10, "all"))
    ]  # type: ignore[arg-type]


def test_controls_copy_the_source_and_remember_translations(task: TaskData) -> None:
    repeated = TaskData(
        task.info, {"train": task.splits["train"], "test": task.splits["train"][:9]}
    )
    found = results.results_frame(row for some, _ in control_cells(repeated) for row in some)
    by = found[(found["label_count"] == "all") & (found["metric"] == "bleu")].set_index("model")
    assert by.loc["tfidf", "value"] == pytest.approx(100), "all of these sources were seen"
    table = repeated.splits["test"]
    assert by.loc["copy", "value"] == pytest.approx(
        bleu(table["target"].to_numpy(object), table["source"].to_numpy(object))
    )
    assert by.loc["majority", "status"] == "not_applicable" and by.loc["majority", "reason"]


def test_the_report_shows_bleu_as_bleu(task: TaskData, tmp_path: Path) -> None:
    grid = Grid(
        models=("seq2seq", "gpt"),
        tasks=("mt",),
        pretrain_seeds=(0,),
        adapt_models=(),
        adapt_tasks=(),
        finetune_seeds=(0,),
        label_counts=(10, "all"),
    )
    folder, some = (
        tmp_path / "results",
        [*list_runs(tiny.asked("translation"), ("pretrained", "random"), (10, "all"), (0,))],
    )
    for name in grid.models:
        found, predictions = evaluate_runs(
            setting(name, task, tmp_path),
            some,
            cache_dir=tmp_path / name,
            report_progress=lambda *_: None,
        )
        artifacts.write_table(
            folder / "rows" / f"evaluate-{name}-0-mt.parquet", results.results_frame(found)
        )
        artifacts.write_table(folder / "predictions" / f"evaluate-{name}-0-mt.parquet", predictions)
    controls = control_cells(task)
    artifacts.write_table(
        folder / "rows" / "baselines-mt.parquet",
        results.results_frame(row for some_rows, _ in controls for row in some_rows),
    )
    artifacts.write_table(
        folder / "predictions" / "baselines-mt.parquet",
        build_predictions_table([one for _, one in controls]),
    )
    overlap(folder, "mt", ())
    splits = {"train": SplitStats(1), "test": SplitStats(1)}
    stats = DatasetStats("mt", "translation", splits, {}, None)
    write_dataset_stats(folder / "statistics/baselines-mt.json", stats)
    table, analysis = build_results(folder, grid, ReportParams())
    assert {one.metric for one in analysis.comparisons} == {"bleu"}
    copied = table[(table["model"] == "copy") & (table["metric"] == "bleu")].iloc[0]
    assert copied["value"] > 1, "else this shows nothing"
    shown = page.render_report(analysis)
    assert (
        f"| copy | **{copied['value']:.1f}** |" in shown["md"]
        and "| system | BLEU | interval" in shown["md"]
        and "% correct" not in shown["md"]
    )
    assert (
        'class="n start">BLEU</th>' in shown["html"]
        and "no decoder" in shown["html"]
        and "points" in shown["md"]
    )


def invented(count: int) -> list[str]:
    """Sentences of the synthetic language in its hundred commonest words, in a random order."""
    documents = grammar.generate_documents(1500, seed=3, grammar_seed=grammar.DEFAULT_GRAMMAR_SEED)
    every = list(
        dict.fromkeys(
            document[a:b] for document in documents for a, b in sentence_spans(document, "en")
        )
    )
    common = {
        word for word, _ in Counter(word for s in every for word in s.split()).most_common(100)
    }
    few = [s for s in every if set(s.split()) <= common and 4 <= len(s.split()) <= 9]
    return [few[i] for i in np.random.default_rng(0).permutation(len(few))[:count]]


@pytest.mark.slow
def test_it_learns_to_translate_and_pretraining_pays_where_pairs_are_few(tmp_path: Path) -> None:
    """Word by word into another language: near perfect with 1000 pairs, and with 300 far above the untrained twin, which has the same steps."""
    texts = invented(2200)
    test, pairs, running = (
        texts[:100],
        pd.DataFrame(
            {"source": texts[100:1100], "target": [tiny.moved(s) for s in texts[100:1100]]}
        ),
        texts[1100:],
    )
    half = len(running) // 2
    corpus = [
        *running[:half],
        *(tiny.moved(s) for s in running[half:]),
    ]  # no sentence in both languages
    reader = train_tokenizer(
        corpus, TokenizerSettings(vocab_size=500), tokenizer_type="byte_bpe", language="en"
    )
    tokens = encode_corpus(corpus, reader, languages=["en"] * half + ["xx"] * (len(corpus) - half))
    with artifacts.create_artifact(tmp_path / "tokens", "tokens") as draft:
        tokens.save(draft, "train")
    found = tiny.bilingual(batch_size=16, seq_len=12)
    checkpoint = Checkpoint(
        "s",
        tiny.variant("seq2seq").family,
        Seq2SeqConfig(dropout=0.0, hidden_size=48),
        found,
        reader,
        seed=1,
        weights_path=tmp_path / "w",
    )
    model, stream = (
        checkpoint.build(tiny.CPU, load_weights=False),
        TwoLanguageBpttBatches(tokens, reader, found, seed=1),
    )
    course = TrainPlan(
        lambda spent: spent.text_bytes / (6 * tokens.text_bytes),
        linear_schedule_with_warmup(0.05),
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
        stream,
        course,
    ):
        pass
    save_file(model.state_dict(), tmp_path / "w")
    settings, gold = (
        small(epochs=35, learning_rate=0.005).translation,
        np.array([tiny.moved(s) for s in test], object),
    )
    scores = {}
    for count, trained in ((1000, True), (300, True), (300, False)):
        models = (
            checkpoint.build(tiny.CPU, load_weights=trained),
            checkpoint.build(tiny.CPU, load_weights=False),
        )
        assert settings is not None
        tuned = build_trained_translator(
            checkpoint,
            models,
            tmp_path / "tokens",
            pairs[:count],
            settings,
            seed=0,
            precision="fp32",
        )
        scores[count, trained] = bleu(gold, translate(tuned, reader, test, precision="fp32")[0])
    assert scores[1000, True] > 95 and scores[300, True] > scores[300, False] + 20, scores
