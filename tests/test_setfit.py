"""SetFit: pairs of labelled texts teach the encoder, and a linear probe reads its vectors."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from lineage.analysis.gains import summarize_gains
from lineage.analysis.records import TrialCounts, read_analysis
from lineage.analysis.settings import fine_tuned_scores
from lineage.config.params import parse_params
from lineage.config.resolve import merge_trees
from lineage.data.task_data import TaskData
from lineage.errors import InputError
from lineage.evaluation.evaluate import EvaluationOutput
from lineage.methods import setfit
from lineage.methods.base import RunItems
from lineage.methods.encoder import EvalContext, EvalRun
from lineage.methods.encoding import EncodedItem, collate_items
from lineage.methods.registry import EvaluateSettings, load_system
from lineage.methods.saved import read_record
from lineage.methods.setfit import (
    PairBatches,
    SentenceEncoder,
    SetfitMethod,
    TunedEncoder,
    cosine_similarity_loss,
    encode_texts,
    sample_pairs,
    tune_encoder,
)
from lineage.methods.trials import Trial
from lineage.networks.batch import masked_mean
from lineage.networks.checkpoint import Checkpoint
from lineage.randomness import generator
from lineage.report.costs import build_costs
from lineage.report.formatting import format_use
from lineage.results import results_frame
from lineage.study.checks import check_study
from lineage.study.stage_records import stage_records
from lineage.work import TRAINING_PASSES
from tests.helpers import tiny, user_project
from tests.helpers.first_word import FINETUNE, PROBE, build_context
from tests.helpers.study_rows import GRID, Study, analyze, render_pages

SETTINGS = SetfitMethod(
    learning_rate=0.003, num_iterations=5, batch_size=7, trials=(Trial(l2=0.1), Trial(l2=0.001))
)


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def encoded(name: str, table: pd.DataFrame) -> list[EncodedItem]:
    return tiny.encode(name, table, max_length=20)


def setfit_context(
    data: TaskData, settings: SetfitMethod = SETTINGS, name: str = "gpt"
) -> EvalContext:
    context = build_context(name, data)
    return dataclasses.replace(
        context, settings=dataclasses.replace(context.settings, setfit=settings)
    )


def run_setfit(
    context: EvalContext, cache_dir: Path, *, counts: tuple[Any, ...] = (20,), seeds: Any = (0,)
) -> EvaluationOutput:
    runs = [EvalRun("random", "setfit", count, seed) for count in counts for seed in seeds]
    return tiny.evaluate_runs(context, runs, cache_dir)


def record_tuning(monkeypatch: pytest.MonkeyPatch) -> list[TunedEncoder]:
    """Record every fine-tuning on pairs."""
    recorded: list[TunedEncoder] = []

    def recording_tune(*arguments: Any, **options: Any) -> TunedEncoder:
        recorded.append(tune_encoder(*arguments, **options))
        return recorded[-1]

    monkeypatch.setattr(setfit, "tune_encoder", recording_tune)
    return recorded


@pytest.mark.parametrize("labels", [[0, 0, 0, 1, 1], [4, 2, 2, 4, 9, 2, 2, 7, 7]])
def test_half_of_the_pairs_have_one_label_and_each_text_comes_first_equally_often(
    labels: list[int],
) -> None:
    labels_N = np.array(labels)
    N = len(labels)
    pairs = sample_pairs(labels_N, 2 * 20 * N, rng())
    first_P, second_P = pairs.indices_P2.T
    is_same_P = labels_N[first_P] == labels_N[second_P]
    np.testing.assert_array_equal(is_same_P, pairs.same_label_P == 1)
    for is_positive in (True, False):
        chosen = first_P[is_same_P == is_positive]
        np.testing.assert_array_equal(np.bincount(chosen, minlength=N), np.full(N, 20))
    assert not np.array_equal(np.sort(first_P), first_P), "pairs are in random order"
    again = sample_pairs(labels_N, 2 * 20 * N, rng())
    np.testing.assert_array_equal(pairs.indices_P2, again.indices_P2)
    other = sample_pairs(labels_N, 2 * 20 * N, rng(4))
    assert not np.array_equal(pairs.indices_P2, other.indices_P2)


def test_the_second_text_of_a_pair_is_any_text_of_its_label_or_of_the_others() -> None:
    labels_N = np.array([2, 0, 1, 0, 1, 1])
    pairs = sample_pairs(labels_N, 2 * 200 * 6, rng())
    partners = {
        first: set(pairs.indices_P2[pairs.indices_P2[:, 0] == first, 1].tolist())
        for first in range(6)
    }
    assert all(partners[first] == {*range(6)} for first in range(6))
    counts = np.bincount(pairs.indices_P2[pairs.indices_P2[:, 0] == 0, 1], minlength=6)
    assert counts[0] == 200, "the only text with its label"
    assert counts[1:].min() > 20


def test_a_limit_on_steps_leaves_every_text_about_as_many_pairs() -> None:
    settings = SetfitMethod(num_iterations=20, batch_size=16, max_steps=1000)
    assert [settings.count_pairs(number) for number in (16, 384, 400, 5000)] == [
        640,
        15_360,
        16_000,
        16_000,
    ]
    assert [settings.count_steps(number) for number in (1, 16, 384, 5000)] == [3, 40, 960, 1000]
    pairs = sample_pairs(np.arange(3000) % 5, settings.count_pairs(3000), rng())
    times_N = np.bincount(pairs.indices_P2[:, 0], minlength=3000)
    assert times_N.sum() == 16_000 and {*times_N} == {4, 6}
    assert pairs.same_label_P.mean() == 0.5


def test_fine_tuning_on_pairs_is_that_of_plain_torch(task: TaskData) -> None:
    """Cosine, squared error, AdamW with decay of matrices alone, clipping and a linear schedule."""
    table = task.splits["train"][:8]
    labels_N = table["label"].to_numpy()
    items = encoded("word2vec", table)
    settings = SetfitMethod(learning_rate=0.01, num_iterations=5, batch_size=4)
    num_steps = 20
    assert settings.count_steps(8) == num_steps
    tuned = tune_encoder(
        tiny.model("word2vec"),
        tiny.tokenizer("word2vec"),
        items,
        labels_N,
        settings,
        seed=5,
        precision="fp32",
    )
    expected = tiny.model("word2vec")
    parameters = [parameter for group in expected.layer_groups() for parameter in group]
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.01},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ],
        lr=0.01,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: step / 2 if step < 2 else (num_steps - step) / (num_steps - 2)
    )
    pairs = sample_pairs(labels_N, 80, generator("setfit pairs", 5))
    losses = []
    for start in range(0, 80, 4):
        indices_B2 = pairs.indices_P2[start : start + 4]
        columns = []
        for column in indices_B2.T:
            batch = collate_items(tiny.tokenizer("word2vec"), [items[i] for i in column])
            assert batch.text_mask_BT is not None
            columns.append(masked_mean(expected.encode(batch)[-1], batch.text_mask_BT))
        dots_B = (columns[0] * columns[1]).sum(1)
        cosines_B = dots_B / (columns[0].norm(dim=1) * columns[1].norm(dim=1))
        targets_B = torch.from_numpy(pairs.same_label_P[start : start + 4])
        loss = ((cosines_B - targets_B) ** 2).mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        scheduler.step()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(
            tuned.model.encoder.state_dict()[name], value, atol=1e-5, rtol=1e-4
        )
    assert [point.train_loss for point in tuned.learning_curve] == pytest.approx(losses, abs=1e-4)
    assert [point.is_kept for point in tuned.learning_curve] == [False] * 19 + [True]


@pytest.mark.parametrize("name", tiny.mark_similar_slow([*tiny.TRAINED, *tiny.STATIC]))
def test_every_family_draws_texts_of_one_label_together(name: str, task: TaskData) -> None:
    table = task.splits["train"][:24]
    labels_N = table["label"].to_numpy()
    tokenizer = tiny.tokenizer(name)
    items = encoded(name, table)
    # As for the families' own fine-tuning of such small models (test_transfer).
    rates = dict.fromkeys((*tiny.STATIC, "context2vec"), 0.05) | {"elmo": 0.02}
    settings = SetfitMethod(learning_rate=rates.get(name, 0.005))
    is_same_NN = labels_N[:, None] == labels_N

    def cosine_gap(model: SentenceEncoder) -> float:
        vectors_ND = encode_texts(model, tokenizer, items, precision="fp32")[:, 0]
        cosines_NN = vectors_ND @ vectors_ND.T
        return float(cosines_NN[is_same_NN].mean() - cosines_NN[~is_same_NN].mean())

    before = cosine_gap(SentenceEncoder(tiny.model(name), uses_mean_pooling=False))

    def tune() -> TunedEncoder:
        return tune_encoder(
            tiny.model(name), tokenizer, items, labels_N, settings, seed=0, precision="fp32"
        )

    tuned = tune()
    assert cosine_gap(tuned.model) > before + 0.3
    if name == "gpt":
        for name_of_tensor, value in tune().model.state_dict().items():
            assert torch.equal(value, tuned.model.state_dict()[name_of_tensor]), name_of_tensor


@pytest.mark.parametrize("uses_mean_pooling", [False, True])
def test_vectors_do_not_depend_on_the_batch_and_have_length_one(
    uses_mean_pooling: bool, task: TaskData
) -> None:
    items = encoded("gpt", task.splits["test"])
    tokenizer = tiny.tokenizer("gpt")
    model = SentenceEncoder(tiny.model("gpt"), uses_mean_pooling=uses_mean_pooling)
    together = encode_texts(model, tokenizer, items, precision="fp32")
    assert together.shape == (29, 1, model.encoder.hidden_sizes()[-1])
    np.testing.assert_allclose(np.linalg.norm(together, axis=-1), 1.0, atol=1e-5)
    alone = [encode_texts(model, tokenizer, [item], precision="fp32")[0] for item in items]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-5)
    batch = collate_items(tokenizer, items[:1])
    top_BTD = model.encoder.eval().encode(batch)[-1]
    assert batch.text_mask_BT is not None
    expected_BD = masked_mean(top_BTD, batch.text_mask_BT) if uses_mean_pooling else top_BTD[:, -1]
    np.testing.assert_allclose(
        together[0], F.normalize(expected_BD, dim=-1).detach().numpy(), atol=1e-5
    )


def test_setfit_learns_a_task_from_few_labels_and_writes_rows_of_its_own(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = record_tuning(monkeypatch)
    output = run_setfit(setfit_context(task), tmp_path, counts=(20, "all"), seeds=(0, 1))
    rows = results_frame(output.rows)
    assert set(rows["transfer"]) == {"setfit"} and set(rows["status"]) == {"ok"}
    assert set(rows["head"]) == {"linear"} and set(rows["features"]) == {"last"}
    assert set(rows["recipe"]) == {"none"}
    # Two trials of L2 share one fine-tuning, with the first seed; the second seed takes the better.
    assert len(tuned) == 4
    assert set(rows.loc[rows["finetune_seed"] == 0, "trial"]) == {"0", "1", "chosen"}
    assert set(rows.loc[rows["finetune_seed"] == 1, "trial"]) == {"chosen"}
    test = rows[(rows["split"] == "test") & (rows["metric"] == "accuracy")]
    assert test.loc[test["label_count"] == "all", "value"].min() > 0.9
    curves = output.curves[output.curves["trial"] == "chosen"]
    assert set(curves["transfer"]) == {"setfit"} and curves["train_loss"].between(0, 1).all()
    (tmp_path / "again").mkdir()
    again = run_setfit(setfit_context(task), tmp_path / "again", counts=(20,), seeds=(0,))
    expected = output.predictions.query("label_count == '20' and finetune_seed == 0")
    pd.testing.assert_frame_equal(again.predictions, expected.reset_index(drop=True))


def test_the_seed_draws_the_labels_and_the_pairs(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all labels, two seeds differ in their pairs alone."""
    settings = dataclasses.replace(SETTINGS, trials=())
    tuned = record_tuning(monkeypatch)
    run_setfit(setfit_context(task, settings, "word2vec"), tmp_path, counts=("all",), seeds=(0, 1))
    first, second = (one.model.state_dict() for one in tuned)
    assert any(not torch.equal(first[name], second[name]) for name in first)


def save_gpt(folder: Path) -> None:
    tiny.checkpoint("gpt").save(folder, tiny.model("gpt"))


def save_public_encoder(folder: Path) -> None:
    """Save a public sentence encoder with a layer after its pooling."""
    pytest.importorskip("transformers")
    from tests.helpers.public_checkpoints import load_public, save_sentence_encoder

    source = save_sentence_encoder(folder / "source", "Dense", "Normalize")
    model, checkpoint = load_public(source)
    checkpoint.save(folder, model)


@pytest.mark.parametrize(
    ("save", "pooling", "features"),
    [
        (save_gpt, "model_default", "last"),
        (save_gpt, "mean", "mean"),
        (save_public_encoder, "model_default", "last"),
    ],
)
def test_a_kept_system_gives_the_reported_probabilities(
    save: Callable[[Path], None], pooling: Any, features: str, task: TaskData, tmp_path: Path
) -> None:
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    save(model_dir)
    context = dataclasses.replace(setfit_context(task), checkpoint=Checkpoint.load(model_dir))
    finetune = dataclasses.replace(context.settings.finetune, pooling=pooling)
    context = dataclasses.replace(
        context, settings=dataclasses.replace(context.settings, finetune=finetune)
    )
    runs = [
        EvalRun("pretrained", "setfit", count, seed) for count in (20, "all") for seed in (0, 1)
    ]
    output = tiny.evaluate_runs(context, runs, tmp_path)
    label_counts = []
    for folder in tmp_path.glob("*/system"):
        record = read_record(folder)
        label_counts.append(record.label_count)
        assert (record.name, record.features) == (f"{record.model}-setfit", features)
        answer = load_system(folder, tiny.CPU)
        found = answer(task.splits["test"].drop(columns="label")[::-1])
        saved = output.predictions.query(
            f"label_count == '{record.label_count}' and finetune_seed == 0 and split == 'test' "
            "and trial == 'chosen'"
        )
        assert len(saved) == len(task.splits["test"])
        for column in ("p a", "p b"):
            np.testing.assert_allclose(found[column][::-1], saved[column], atol=1e-5)
        assert found["prediction"][::-1].tolist() == saved["prediction"].tolist()
    assert sorted(label_counts) == ["20", "all"]


def test_labels_of_one_class_fail_with_a_reason_and_other_runs_continue(
    task: TaskData, tmp_path: Path
) -> None:
    table = task.splits["train"].assign(label=1)
    data = TaskData(task.info, {**task.splits, "train": table})
    runs = [EvalRun("random", "setfit", 20, 0), EvalRun("random", "linear_probe", 20, 0)]
    output = tiny.evaluate_runs(setfit_context(data), runs, tmp_path)
    rows = results_frame(output.rows)
    failed = rows[rows["transfer"] == "setfit"]
    assert set(failed["status"]) == {"failed"}
    assert failed["reason"].str.contains("all labelled texts have the same label").all()
    assert set(rows.loc[rows["transfer"] == "frozen", "status"]) == {"ok"}


def test_without_a_learning_rate_of_its_own_that_of_fine_tuning_is_used() -> None:
    settings = EvaluateSettings(finetune=FINETUNE)
    method = settings.methods["setfit"]
    assert isinstance(method, SetfitMethod)
    assert method.learning_rate == FINETUNE.learning_rate
    own = dataclasses.replace(settings, setfit=SetfitMethod(learning_rate=0.1, pooling="mean"))
    assert own.methods["setfit"] == own.setfit


def setfit_params(**changes: Any) -> dict[str, Any]:
    grid = {"grid": {"setfit_models": ["gpt"]}}
    return merge_trees(merge_trees(user_project.PARAMS, grid), changes)


ENTITIES = {
    "kind": "token_classification",
    "files": {"train": "a.jsonl", "test": "b.jsonl"},
    "tokens": "words",
    "label": "tags",
}
PAIRS = {
    "kind": "text_classification",
    "files": {"train": "a.csv", "test": "b.csv"},
    "text": ["one", "two"],
    "label": "same",
}


@pytest.mark.parametrize("other", [ENTITIES, PAIRS])
def test_a_study_without_labels_of_single_texts_is_refused(other: dict[str, Any]) -> None:
    changes = {"tasks": {"other": other}, "grid": {"tasks": ["other"], "adapt_tasks": ["other"]}}
    with pytest.raises(InputError, match=r"grid\.setfit_models: SetFit learns labels of single"):
        check_study(parse_params(setfit_params(**changes)))
    mixed = merge_trees(changes, {"grid": {"tasks": ["other", "mood"]}})
    check_study(parse_params(setfit_params(**mixed)))


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"grid\.setfit_models: 'gtp'.*gpt"):
        parse_params(setfit_params(grid={"setfit_models": ["gtp"]}))


@pytest.mark.parametrize("key", ["num_iterations", "max_steps", "learning_rate", "l2"])
def test_numbers_of_setfit_are_above_zero(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        SetfitMethod(**{key: 0})


def test_a_single_step_has_pairs_of_one_label_and_of_two() -> None:
    assert SetfitMethod(batch_size=2, max_steps=1).count_pairs(16) == 2
    with pytest.raises(ValueError, match=r"batch_size is 1; .* set it to 2 or more"):
        SetfitMethod(batch_size=1)


def test_only_stages_of_named_models_depend_on_the_settings_of_setfit() -> None:
    changes = {"models": {"gpt": {"evaluate": {"setfit": {"num_iterations": 7}}}}}

    def record(models: list[str]) -> Any:
        params = parse_params(setfit_params(**changes, grid={"setfit_models": models}))
        return stage_records(params, check_study(params))["evaluate-gpt"]["evaluate"]

    assert "setfit" not in record([])
    assert record(["gpt"])["setfit"]["num_iterations"] == 7
    assert {key: value for key, value in record(["gpt"]).items() if key != "setfit"} == record([])


def test_a_study_that_sets_l2_has_no_default_trials_of_it() -> None:
    changes = {"models": {"gpt": {"evaluate": {"setfit": {"l2": 0.5}}}}}
    models = check_study(parse_params(setfit_params(**changes)))
    assert (models["gpt"].evaluate.setfit.l2, models["gpt"].evaluate.setfit.trials) == (0.5, ())


def test_the_counted_steps_and_texts_are_those_of_an_evaluation(
    task: TaskData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 and 60 texts with 10 pairs each, 7 pairs a step; two learning rates with the first seed."""
    trials = (Trial(l2=0.1), Trial(l2=0.01), Trial(learning_rate=0.01))
    method = dataclasses.replace(SETTINGS, trials=trials)
    settings = EvaluateSettings(linear_probe=PROBE, finetune=FINETUNE, setfit=method)
    data = TaskData(dataclasses.replace(task.info, probes=[]), task.splits)
    context = dataclasses.replace(setfit_context(data, name="word2vec"), settings=settings)
    encoded_texts: list[int] = []
    tuned = record_tuning(monkeypatch)

    def recording_encode(model: Any, tokenizer: Any, items: Any, **options: Any) -> np.ndarray:
        encoded_texts.append(len(items))
        return encode_texts(model, tokenizer, items, **options)

    monkeypatch.setattr(setfit, "encode_texts", recording_encode)
    run_setfit(context, tmp_path, counts=(20, 60), seeds=(0, 1))
    num_steps = sum(one.learning_curve[-1].step for one in tuned)
    assert num_steps == 3 * (method.count_steps(20) + method.count_steps(60)) == 3 * (29 + 86)
    counted = 0.0
    for num_train in (20, 60):
        first = RunItems(num_train, validation=13, scored=42, chooses_trial=True)
        later = dataclasses.replace(first, chooses_trial=False)
        counted += method.count_work(first) + method.count_work(later)
    read_texts = 3 * (29 * method.count_distinct_texts(20) + 86 * method.count_distinct_texts(60))
    # The vectors of validation are computed once for each encoder, and counted for each trial.
    repeated = 2 * 3 * 13 + 2 * 2 * 13
    expected = TRAINING_PASSES * read_texts + sum(encoded_texts)
    assert expected <= counted <= expected + repeated


def test_each_text_of_a_batch_of_pairs_is_read_once(task: TaskData) -> None:
    table = task.splits["train"][:9]
    pairs = sample_pairs(table["label"].to_numpy(), 30, rng())
    batches = PairBatches(tiny.tokenizer("gpt"), encoded("gpt", table), pairs, batch_size=13)
    assert batches.set_epoch(0) == 3
    model = SentenceEncoder(tiny.model("gpt").eval(), uses_mean_pooling=False)
    vectors = encode_texts(model, tiny.tokenizer("gpt"), batches.items, precision="fp32")[:, 0]
    errors = []
    for index, size in enumerate((13, 13, 4)):
        batch = batches.get_batch(index)
        part = pairs.indices_P2[13 * index : 13 * index + size]
        assert len(batch.ids_BT) == len({*part.flatten().tolist()})
        with torch.no_grad():
            output = cosine_similarity_loss(model, batch)
        assert output.target_counts == {"pairs": size}
        errors.append(float(output.nats["pairs"]))
    cosines_P = (vectors[pairs.indices_P2[:, 0]] * vectors[pairs.indices_P2[:, 1]]).sum(1)
    assert math.isclose(
        sum(errors), float(((cosines_P - pairs.same_label_P) ** 2).sum()), rel_tol=1e-4
    )


def test_as_many_distinct_texts_are_counted_as_batches_have(task: TaskData) -> None:
    settings = SetfitMethod()
    table = task.splits["train"][:16]
    pairs = sample_pairs(table["label"].to_numpy(), settings.count_pairs(16), rng())
    batches = PairBatches(tiny.tokenizer("gpt"), encoded("gpt", table), pairs, batch_size=16)
    counts = [len(batches.get_batch(index).ids_BT) for index in range(batches.set_epoch(0))]
    assert np.mean(counts) == pytest.approx(settings.count_distinct_texts(16), rel=0.03)
    assert settings.count_distinct_texts(0) == 0


@dataclass(frozen=True)
class SetfitStudy(Study):
    """The study with SetFit of gpt, for the task whose items are single texts."""

    def cells(
        self, model: str, pretrain_seed: int, task: str, init: str
    ) -> Iterator[tuple[dict[str, Any], float]]:
        """Yield each cell, and after those of fine-tuning those of SetFit."""
        for cell, skill in super().cells(model, pretrain_seed, task, init):
            yield cell, skill
            if (model, task, cell["transfer"]) == ("gpt", "sentiment", "finetuned"):
                yield cell | {"transfer": "setfit", "recipe": "none"}, skill + 0.5


def test_setfit_has_rows_charts_comparisons_and_gains_of_its_own(tmp_path: Path) -> None:
    folder = SetfitStudy(tmp_path, items=60).write()
    grid = dataclasses.replace(GRID, setfit_models=("gpt",))
    analysis = analyze(folder, grid)
    setfit = {
        (one.comparison_type, one.second.transfer)
        for one in analysis.comparisons
        if one.first.transfer == "setfit"
    }
    assert {("pretraining", "setfit"), ("adaptation", "setfit"), ("tfidf", "none")} <= setfit
    assert TrialCounts("setfit", 1, 1) in analysis.trials
    assert any(one.system.transfer == "setfit" for one in fine_tuned_scores(analysis, "sentiment"))
    gains, *_ = summarize_gains(analysis)
    assert "SetFit" in {gain.method for gain in gains.at_most_labels}
    html = render_pages(analysis)["html"]
    assert "<b>GPT</b> SetFit" in html, "a line in the table of the task"


def test_the_cost_of_setfit_is_that_of_its_own_runs(tmp_path: Path) -> None:
    folder = SetfitStudy(tmp_path, items=60).write()
    grid = dataclasses.replace(GRID, setfit_models=("gpt",))
    analysis = analyze(folder, grid)
    analysis = dataclasses.replace(
        analysis,
        budget=tuple(dataclasses.replace(one, seconds=100.0) for one in analysis.budget),
        adaptation=tuple(dataclasses.replace(one, seconds=20.0) for one in analysis.adaptation),
    )
    metadata = {}
    for stage, init in (("evaluate", "pretrained"), ("evaluate_adapted", "adapted")):
        runs = [
            {"init": init, "transfer": transfer, "head": "linear", "label_count": count}
            for transfer in ("finetuned", "setfit")
            for count in (100, "all")
        ]
        seconds = {"finetuned": 30.0, "setfit": 40.0}
        metadata[f"{stage}@gpt-0-sentiment"] = {
            "run_costs": [run | {"seconds": seconds[run["transfer"]]} for run in runs]
        }
    found = {
        system: cost.seconds
        for (system, _), cost in build_costs(analysis, metadata).items()
        if system.transfer == "setfit"
    }
    assert found, "SetFit represents gpt"
    for system, cost_seconds in found.items():
        assert cost_seconds == (160.0 if system.init == "adapted" else 140.0)
        assert format_use(system).endswith("SetFit")


@pytest.mark.slow
def test_the_best_of_setfit_and_the_other_methods_is_kept_and_all_trials_are_counted(
    tmp_path: Path, run_stages: user_project.RunStages
) -> None:
    tree = user_project.make_project(tmp_path)
    tree["budget"] |= {"text_bytes": 5_000, "body_parameters": 100_000}
    tree["grid"] |= {"finetune_seeds": [0, 1], "setfit_models": ["gpt"]}
    tree["grid"] |= {"adapt_models": [], "adapt_tasks": []}
    tree["models"]["gpt"]["evaluate"]["finetune"] |= {"epochs": 1, "min_steps": None}
    tree["models"]["gpt"]["evaluate"]["setfit"] = {"num_iterations": 2}
    user_project.write_params(tmp_path, tree)
    commands = ("sources", "corpus general", "task mood", "contamination mood", "tokenizer gpt", "pretrain gpt 0", "evaluate gpt 0 mood",
                "baselines mood", "ngram", "report")  # fmt: skip
    run_stages(tmp_path, *commands)
    kept = {path.name for path in (tmp_path / "artifacts/systems/evaluate-gpt-0-mood").iterdir()}
    rows = pd.read_parquet(tmp_path / "artifacts/results/rows/evaluate-gpt-0-mood.parquet")
    rows = rows.query("init == 'pretrained' and split == 'validation' and trial == 'chosen'")
    rows = rows.query("group == 'all' and metric == 'accuracy'")
    means = rows.groupby(["label_count", "transfer", "head"])["value"].mean()
    assert set(means.index.get_level_values("label_count")) == {"20", "all"}
    for label_count, own in means.groupby("label_count"):
        is_best = own[label_count, "setfit", "linear"] >= own.max()
        assert (f"{label_count}-gpt-setfit" in kept) == is_best, label_count
    analysis = read_analysis(tmp_path / "reports/results.json")
    assert TrialCounts("setfit", 6, 6) in analysis.trials
