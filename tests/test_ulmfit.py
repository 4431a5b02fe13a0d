"""ULMFiT's own mechanisms: new words of the target at the mean row, and texts read from their ends."""

import dataclasses
import functools
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from lineage.artifacts import create_artifact, write_json, write_table
from lineage.config.params import AdaptationBudget, Params, read_params
from lineage.errors import InputError
from lineage.evaluation.encoding import (
    batch_by_length,
    collate_items,
    encode_items,
    encode_word_in_context,
)
from lineage.evaluation.finetuning import FinetunedModel, unfreeze_layers, update_batch_norm
from lineage.evaluation.settings import AdaptSettings
from lineage.models.checkpoint import Checkpoint
from lineage.models.static import vocab_words
from lineage.models.ulmfit import PoolingClassifier, ULMFiTModel
from lineage.runtime.tracking import MlflowTracker
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.adapt import HeldOutMetrics, adapt, find_new_words, split_target_texts
from lineage.training.objectives import regularized_lm_loss
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.pretrain import TrainContext, TrainOutput
from tests import tiny

TEXT = tiny.documents()[0]
BACKWARD = {"tokenizer": {"direction": "backward"}}


@functools.cache
def strange() -> tuple[str, ...]:
    """A target's texts: known words, and zebras."""
    one, two, three = [word for word in vocab_words(tiny.reader("ulmfit")) if word.isalpha()][:3]
    return (
        f"Zebras {one} quokkas . Zebras {two} .",
        f"quokkas {three} zebras {one} Zebras .",
        f"quokkas ! quokkas {two} .",
    )


def trained_checkpoint(folder: Path) -> Checkpoint:
    """A checkpoint with weights on disk; its biases are not all alike, as they are at the start."""
    weights, state = folder / "model.safetensors", tiny.model("ulmfit").state_dict()
    state["softmax_bias"] = torch.randn(
        state["softmax_bias"].shape, generator=torch.Generator().manual_seed(4)
    )
    save_file(state, weights)
    return dataclasses.replace(tiny.checkpoint("ulmfit"), weights_path=weights)


def test_new_words_are_the_target_s_most_frequent_ones_that_the_vocabulary_lacks() -> None:
    reader = tiny.reader("ulmfit")
    assert find_new_words(strange(), reader, max_words=9, min_frequency=2) == ["quokkas", "Zebras"]
    assert find_new_words(strange(), reader, max_words=1, min_frequency=1) == ["quokkas"]
    assert find_new_words(strange(), reader, max_words=9, min_frequency=1)[:3] == [
        "quokkas",
        "Zebras",
        "!",
    ]


def test_new_words_begin_as_the_mean_of_all_rows_and_the_old_rows_stay(tmp_path: Path) -> None:
    before = trained_checkpoint(tmp_path)
    grown = before.with_added_words(["quokkas", "Zebras"])
    old, new = before.build(tiny.CPU).state_dict(), grown.build(tiny.CPU).state_dict()
    V = before.tokenizer.vocab_size
    assert old.keys() == new.keys() and grown.tokenizer.vocab_size == V + 2
    for name in old:
        assert torch.equal(new[name][: len(old[name])], old[name]), name
    for name in ("body.embedding_weight", "softmax_bias"):
        mean = old[name].double().mean(0)
        for row in new[name][V:]:
            torch.testing.assert_close(row.double(), mean, atol=1e-7, rtol=0)


def test_the_softmax_of_a_grown_model_is_still_its_table(tmp_path: Path) -> None:
    model = trained_checkpoint(tmp_path).with_added_words(["quokkas"]).build(tiny.CPU)
    assert isinstance(model, ULMFiTModel)
    width = model.hidden_sizes()[-1]
    torch.testing.assert_close(
        model.logits(torch.eye(width)) - model.softmax_bias, model.body.embedding_weight.T
    )
    assert len(model.state_dict()) == len(tiny.model("ulmfit").state_dict()), "no second table"


def test_the_reader_of_a_grown_model_knows_the_new_words_and_reads_all_else_as_before() -> None:
    old = tiny.reader("ulmfit")
    new = old.with_added_words(["quokkas", "Zebras"])
    V = old.vocab_size
    first, second = old.encode(f"{TEXT} quokkas").ids, new.encode(f"{TEXT} quokkas").ids
    assert (
        list(first[:-2]) == list(second[:-2])
        and first[-2] == old.special_token_ids["<unk>"]
        and second[-2] == V
    )
    assert encode_corpus(["Zebras ."], new).ids[1] == V + 1
    with pytest.raises(AssertionError, match="already"):
        new.with_added_words(["quokkas"])


def adapted(
    checkpoint: Checkpoint, folder: Path, text_bytes: int = 3000
) -> tuple[TrainOutput, HeldOutMetrics]:
    settings = AdaptSettings(
        learning_rate=0.02,
        layer_lr_decay=1.3,
        cut_frac=0.1,
        ratio=32.0,
        weight_decay=0.0,
        max_grad_norm=1.0,
    )
    shipped = read_params(Path(__file__).parent.parent / "params.yaml")
    params = Params(
        **{**vars(shipped), "adapt": AdaptationBudget(text_bytes=text_bytes, max_epochs=100)}
    )
    conditions = TrainContext(
        tiny.CPU,
        MlflowTracker(None),
        folder / "resume",
        checkpoint_seconds=99,
        report_progress=lambda *_: None,
    )
    return adapt(checkpoint, settings, [*strange()] * 8, [*strange()], params, conditions)


def test_an_adapted_model_carries_its_own_tokenizer_and_has_learned_its_words(
    tmp_path: Path,
) -> None:
    before = trained_checkpoint(tmp_path)
    grown = before.with_added_words(
        find_new_words(strange(), before.tokenizer, max_words=9, min_frequency=2)
    )
    outcome, held = adapted(grown, tmp_path)
    assert (
        outcome.status == "ok"
        and held.after["bits_per_byte_forward"] < 0.9 * held.before["bits_per_byte_forward"]
    )
    with create_artifact(tmp_path / "adapted", "model") as draft:
        grown.save(draft, outcome.model)
    again = Checkpoint.load(tmp_path / "adapted")
    assert (
        again.tokenizer.vocab_size == before.tokenizer.vocab_size + 2 and again.num_new_words == 0
    )
    for name, value in again.build(tiny.CPU).state_dict().items():
        assert torch.equal(value, outcome.model.state_dict()[name])
    rows = load_file(tmp_path / "adapted" / "model.safetensors")["body.embedding_weight"][-2:]
    assert not torch.allclose(rows[0], rows[1], atol=1e-3), "they began alike"
    assert (
        Checkpoint.load(tmp_path / "adapted").tokenizer.encode("quokkas").ids[1]
        == before.tokenizer.vocab_size
    )


def test_adaptation_reads_no_item_of_test_or_validation(tmp_path: Path) -> None:
    """Files that cannot be read stand in their places; new words come from the text that is adapted to, not from what is held out."""
    with create_artifact(tmp_path / "t", "task") as draft:
        write_table(
            draft / "train.parquet",
            pd.DataFrame(
                {"id": [str(i) for i in range(20)], "text": [f"word{i} word{i}" for i in range(20)]}
            ),
        )
        write_json(
            draft / "task.json", {"name": "t", "language": "en", "kind": "text_classification"}
        )
        for split in ("test", "validation"):
            (draft / f"{split}.parquet").write_bytes(b"nobody may read this")
    texts, held = split_target_texts(
        tmp_path / "t", AdaptationBudget(text_bytes=10**6, max_epochs=4), seed=7
    )
    found = find_new_words(texts, tiny.reader("ulmfit"), max_words=99, min_frequency=2)
    assert len(found) == 18 and not {*found} & {text.split()[0] for text in held}


@pytest.mark.parametrize(
    ("name", "over", "message"),
    [
        (
            "elmo",
            {"adapt": {"new_words": {"most": 5, "min_frequency": 2}}},
            "models.elmo.adapt.new_words: elmo has no table of words",
        ),
        (
            "gpt",
            {"adapt": {"new_words": {"most": 5, "min_frequency": 2}}},
            "models.gpt.adapt.new_words: gpt has no table of words",
        ),
        (
            "bert",
            BACKWARD,
            "models.bert.tokenizer.direction: bert does not read words in one direction",
        ),
        ("word2vec", BACKWARD, "models.word2vec.tokenizer.direction"),
        (
            "gpt",
            {"evaluate": {"finetune": {"bptt_window": 8}}},
            "models.gpt.evaluate.finetune.bptt_window: gpt does not read",
        ),
        (
            "gpt",
            {"evaluate": {"finetune": {"classifier_hidden_dropout": 0.1}}},
            "models.gpt.evaluate.finetune.classifier_hidden_dropout: gpt has no hidden layer",
        ),
        (
            "ulmfit",
            {"evaluate": {"finetune": {"classifier_hidden_dropout": 0.1, "pooling": "mean"}}},
            "classifier_hidden_dropout belongs to the family's own classifier",
        ),
    ],
)
def test_what_a_family_cannot_do_is_refused_with_its_key(
    name: str, over: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        tiny.variant(name, **over)


# --- texts read from their ends


def back() -> Tokenizer:
    """The reader of the tests, the other way round."""
    found = tiny.reader("ulmfit")
    return Tokenizer(
        found.backend_tokenizer, dataclasses.replace(found.config, direction="backward")
    )


def test_a_backward_reader_turns_texts_round_and_keeps_every_word_s_place(tmp_path: Path) -> None:
    forward, backward = tiny.reader("ulmfit"), back()
    one, other = forward.encode(TEXT), backward.encode(TEXT)
    assert list(one.ids) == list(other.ids[::-1]) and one.words == other.words[::-1]
    words = TEXT.split()
    for target in (0, 5, len(words) - 1):
        items = [
            encode_word_in_context(words, target, reader, max_length=None, language="en")
            for reader in (forward, backward)
        ]
        here, there = (item.word_pieces[0][:, 0] for item in items)
        assert (
            [items[0].encoded.words[i] for i in here]
            == [items[1].encoded.words[i] for i in there]
            == [words[target]]
        )
        assert list(there) == [len(one.ids) - 1 - i for i in here[::-1]]
    backward.save(tmp_path)
    assert Tokenizer.load(tmp_path).direction == "backward" and list(
        Tokenizer.load(tmp_path).encode(TEXT).ids
    ) == list(other.ids)


def test_a_backward_corpus_holds_the_same_sentences_and_bytes() -> None:
    one, other = tiny.tokens("ulmfit"), encode_corpus(tiny.documents(), back())
    assert one.text_bytes == other.text_bytes and np.array_equal(
        one.document_starts, other.document_starts
    )
    for a, b in zip(one.document_starts[:-1], one.document_starts[1:], strict=True):
        assert np.array_equal(one.ids[a:b][::-1], other.ids[a:b]) and np.array_equal(
            one.byte_counts[a:b][::-1], other.byte_counts[a:b]
        )
        starts = [
            tokens.sentence_starts[(tokens.sentence_starts >= a) & (tokens.sentence_starts < b)] - a
            for tokens in (one, other)
        ]
        ends = [*starts[0][1:], b - a]
        assert sorted(int(b - a - end) for end in ends) == list(starts[1])


def test_a_backward_model_learns_to_say_the_word_before() -> None:
    found, reader = tiny.variant("ulmfit", **BACKWARD), back()
    assert (
        found.family.batch_sampler is not None and found.mechanism["direction"] == "right to left"
    )
    tokens = encode_corpus([TEXT] * 4, reader)
    stream = found.family.batch_sampler(
        tokens,
        reader,
        dataclasses.replace(found.pretrain, batch_size=1, variable_bptt=False),
        seed=1,
    )
    stream.set_epoch(0)
    batch = stream.get_batch(1)
    assert batch.targets_BT is not None and batch.is_backward
    pairs = set(
        zip(
            tiny.reader("ulmfit").encode(TEXT).ids[1:].tolist(),
            tiny.reader("ulmfit").encode(TEXT).ids[:-1].tolist(),
            strict=True,
        )
    )
    assert {*zip(batch.ids_BT[0].tolist(), batch.targets_BT[0].tolist(), strict=True)} <= pairs
    out = regularized_lm_loss(tiny.model("ulmfit"), batch)
    assert [*out.nats] == [*out.target_counts] == ["backward"], (
        "its bits per byte stand apart from forward ones"
    )


def test_a_backward_model_has_read_what_comes_later_and_ends_at_the_beginning() -> None:
    model, reader = tiny.model("ulmfit").eval(), back()
    words = TEXT.split()[:12]
    changed = ["." if words[0] != "." else "a", *words[1:]]
    one, other = (reader.encode(" ".join(some)) for some in (words, changed))
    first, second = (model.encode(reader.collate([encoded]))[-1][0] for encoded in (one, other))
    place = next(
        place for place, (start, end) in enumerate(one.offsets) if start < len(words[0]) and end > 0
    )
    assert torch.equal(first[:place], second[:place]) and not torch.allclose(
        first[place], second[place]
    )
    batch = reader.collate([one, reader.encode(words[3])])
    pooled = model.pool(model.encode(batch), batch)
    width = model.hidden_sizes()[-1]
    torch.testing.assert_close(pooled[0, :width], first[-1])
    assert one.offsets[-2][0] == 0, "behind it stands only the mark before the text's first word"


def test_backward_scores_are_the_chance_of_each_word_after_the_later_ones() -> None:
    model, reader = tiny.model("ulmfit").eval(), back()
    assert isinstance(model, ULMFiTModel)
    family, texts = tiny.variant("ulmfit").family, [" ".join(TEXT.split()[:n]) for n in (4, 9)]
    assert family.score_texts is not None
    found = family.score_texts(model, reader, texts, limit=None)[:, 0]
    for text, score in zip(texts, found, strict=True):
        ids = tiny.reader("ulmfit").encode(text).ids[::-1].copy()
        outputs, _, _ = model.run_layers(torch.from_numpy(ids)[None], None)
        log_p = torch.log_softmax(model.logits(outputs[-1][0]), -1)
        assert score == pytest.approx(
            sum(float(log_p[t - 1, ids[t]].detach()) for t in range(1, len(ids))), rel=1e-5
        )


def test_the_head_s_norms_have_the_statistics_of_all_training_items_together() -> None:
    """Not a mean over batches, which hold texts of like length: an average over a long text varies less than one over a short one."""
    reader, rng = tiny.reader("ulmfit"), np.random.default_rng(0)
    words = [word for word in reader.backend_tokenizer.get_vocab() if word.isalpha()]
    items = encode_items(
        pd.DataFrame({"text": [" ".join(rng.choice(words, n)) for n in rng.integers(2, 80, 150)]}),
        reader,
        max_length=None,
        language="en",
    )
    settings = tiny.variant("ulmfit").evaluate.finetune
    model = FinetunedModel(
        tiny.model("ulmfit"), tiny.labels(2), settings, seed=0, example_item=items[0]
    )
    update_batch_norm(model, reader, items, precision="fp32")
    batches = batch_by_length(items)
    assert len(batches) > 1, "else this shows nothing"
    with torch.no_grad():
        pooled = torch.cat(
            [
                model.pooled_vectors(collate_items(reader, [items[i] for i in some]))[0]
                for some in batches
            ]
        )
    assert isinstance(model.head, PoolingClassifier)
    torch.testing.assert_close(
        model.head.input_norm.running_var, pooled.var(0), rtol=1e-4, atol=1e-9
    )
    torch.testing.assert_close(
        model.head.input_norm.running_mean, pooled.mean(0), rtol=1e-4, atol=1e-6
    )


def classifier(**over: Any) -> PoolingClassifier:
    """The head of a classifier that is tuned so."""
    item = encode_items(
        pd.DataFrame({"text": [TEXT]}), tiny.reader("ulmfit"), max_length=None, language="en"
    )[0]
    settings = dataclasses.replace(tiny.variant("ulmfit").evaluate.finetune, **over)
    head = FinetunedModel(
        tiny.model("ulmfit"), tiny.labels(2), settings, seed=0, example_item=item
    ).head.train()
    assert isinstance(head, PoolingClassifier)
    return head


@pytest.mark.parametrize(("over", "shares"), [
    ({"dropout": 0.5}, (0.5, 0.5)), ({"dropout": 0.5, "classifier_hidden_dropout": 0.0}, (0.5, 0.0)), ({"dropout": 0.0, "classifier_hidden_dropout": 0.25}, (0.0, 0.25)),
])  # fmt: skip
def test_the_classifier_s_hidden_layer_has_a_dropout_of_its_own_where_one_is_given(
    over: dict[str, float], shares: tuple[float, float]
) -> None:
    head, read = classifier(**over), dict[str, torch.Tensor]()
    for name in ("hidden_layer", "output_layer"):
        getattr(head, name).register_forward_pre_hook(
            lambda _, given, name=name: read.__setitem__(name, given[0])
        )
    torch.manual_seed(1)
    head(torch.randn(400, head.hidden_layer.in_features))
    for name, share in zip(("hidden_layer", "output_layer"), shares, strict=True):
        assert float((read[name] == 0).float().mean()) == pytest.approx(share, abs=0.05), name


@pytest.mark.parametrize(("epochs", "share"), [(5, 0.8), (5, 0.4), (10, 0.3), (7, 1.0), (3, 1.0)])
def test_a_layer_thaws_at_its_very_step(epochs: int, share: float) -> None:
    layers = [[torch.nn.Parameter(torch.zeros(1))] for _ in range(5)]
    optimizer, steps, thawed = (
        build_adamw(build_param_groups(layers, weight_decay=0.0)),
        20 * epochs,
        list[int](),
    )
    for step in range(steps + 1):
        unfreeze_layers(optimizer, Fraction(step, steps), share)
        thawed += [step] * (sum(layer[0].requires_grad for layer in layers) - len(thawed))
    whole = 2 * epochs * round(10 * share)  # the step at which all have thawed
    assert thawed == [-(-whole * depth // 4) for depth in range(5)]
