"""Extractor x direction: who sees what, what is predicted, and that nothing else differs; and how positions are told apart."""

import dataclasses
import math

import pytest
import torch

from lineage.config.params import Params, parse_params
from lineage.config.study import load_model_config
from lineage.errors import InputError
from lineage.formats import huggingface
from lineage.models.batch import IGNORE_INDEX, Batch
from lineage.models.bert import BertModel
from lineage.models.layers.transformer import sinusoidal_positions
from lineage.training.budget import count_parameters_by_role
from tests import tiny

TEXT = " ".join(tiny.documents()[0].split()[:15])
OPEN = {
    "contextualizer",
    "direction",
    "position_encoding",
    "num_heads",
}  # an LSTM has no heads, and needs no positions


def ids_batch(name: str, ids: list[int]) -> Batch:
    ids_BT = torch.tensor([ids])
    return Batch(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool))


@pytest.mark.parametrize("place", [3, 6, 9])
@pytest.mark.parametrize("name", tiny.CELLS)
def test_no_direction_sees_the_other_side_and_masked_sees_both(name: str, place: int) -> None:
    model, ids = tiny.model(name).eval(), list(range(20, 35))
    other = [*ids[:place], 77, *ids[place + 1 :]]
    D = model.config.hidden_size  # type: ignore[union-attr]
    for x, y in zip(
        *(model.encode(ids_batch(name, some))[1:] for some in (ids, other)), strict=True
    ):
        same = (x == y)[0]
        ahead, back = same[:, :D], same[:, D:]
        if name.startswith("masked"):
            assert not ahead.all(1).any()
            continue
        assert ahead[:place].all() and not ahead[place:].all(1).any()
        if name.startswith("joined"):
            assert back[place + 1 :].all() and not back[: place + 1].all(1).any()


@pytest.mark.parametrize("name", [name for name in tiny.CELLS if not name.startswith("masked")])
def test_every_piece_of_the_text_is_predicted_as_it_was_before_it_was_masked(name: str) -> None:
    found, model = tiny.variant(name), tiny.model(name).eval()
    assert found.family.objective is not None
    batch = tiny.batch(name, 1)
    assert batch.targets_BT is not None and batch.text_mask_BT is not None
    chosen = batch.targets_BT != IGNORE_INDEX
    assert (batch.ids_BT != batch.targets_BT)[chosen].any(), "else nothing was masked"
    out = found.family.objective(model, batch)
    plain = dataclasses.replace(
        batch,
        ids_BT=torch.where(chosen, batch.targets_BT, batch.ids_BT),
        targets_BT=torch.full_like(batch.ids_BT, IGNORE_INDEX),
    )
    assert float(out.loss.detach()) == float(found.family.objective(model, plain).loss.detach())
    names = ("forward", "backward") if name.startswith("joined") else ("causal",)
    assert out.target_counts == dict.fromkeys(names, int(batch.text_mask_BT.sum())), (
        "no mark is predicted, and no piece left out"
    )
    assert float(out.loss.detach()) == pytest.approx(
        sum(float(out.nats[n]) for n in names) / len(names) / out.target_counts[names[0]], rel=1e-6
    )


@pytest.mark.parametrize("name", ["left_lstm", "joined_transformer"])
@torch.inference_mode()
def test_scores_are_log_probabilities_piece_by_piece(name: str) -> None:
    model, reader, family = tiny.model(name).eval(), tiny.reader(name), tiny.variant(name).family
    assert isinstance(model, BertModel) and family.score_texts is not None
    ids = reader.encode(TEXT).ids
    top_TD, D = model.encode(reader.collate([reader.encode(TEXT)]))[-1][0], model.config.hidden_size
    log_p = {
        way: torch.log_softmax(model.logits(x), -1)
        for way, x in ((1, top_TD[:, :D]), (-1, top_TD[:, D:]))
        if x.shape[1]
    }
    by_hand = sum(
        float(p[t - way, ids[t]]) for way, p in log_p.items() for t in range(1, len(ids) - 1)
    )
    assert family.score_texts(model, reader, [TEXT], limit=None)[0, 0] == pytest.approx(
        by_hand, rel=1e-5
    )


def test_the_two_joined_directions_share_what_they_read_and_predict_with_and_nothing_else() -> None:
    model = tiny.model("joined_lstm")
    assert isinstance(model, BertModel)
    batch = tiny.reader("joined_lstm").collate([tiny.reader("joined_lstm").encode(TEXT)])
    D = model.config.hidden_size
    for way, half in (("forward_body", slice(0, D)), ("backward_body", slice(D, None))):
        model.zero_grad()
        model.logits(model.encode(batch)[-1][0, :, half]).sum().backward()
        reached = {
            key.split(".")[1]
            for key, p in model.named_parameters()
            if p.grad is not None and p.grad.any() and key.startswith("body.")
        }
        assert reached == {way}
        assert (
            model.token_embeddings.weight.grad is not None
            and model.mlm_dense.weight.grad is not None
        )


def test_a_text_is_pooled_where_it_has_been_read_whole() -> None:
    for name, place in (("left_transformer", 1), ("joined_lstm", 1), ("masked_lstm", -1)):
        model, ids = tiny.model(name).eval(), list(range(20, 35))
        changed = ids.copy()
        changed[place] = 77  # near the end that a wrong pooling would not see
        pooled = [
            model.pool(model.encode(b), b) for b in (ids_batch(name, ids), ids_batch(name, changed))
        ]
        assert not torch.equal(*pooled)
    model = tiny.model("joined_lstm").eval()
    layers, batch = model.encode(ids_batch("joined_lstm", ids)), ids_batch("joined_lstm", ids)
    D = model.hidden_sizes()[0] // 2
    whole = torch.cat([layers[-1][:, -1, :D], layers[-1][:, 0, D:]], -1)
    torch.testing.assert_close(model.pool(layers, batch), torch.tanh(model.pooler(whole)))  # type: ignore[operator]


def test_the_six_cells_differ_in_contextualizer_and_direction_alone() -> None:
    models = {name: load_model_config(params(), name) for name in tiny.CELLS}
    first = models["masked_transformer"]
    for name, model in models.items():
        assert (model.tokenizer, model.pretrain, model.adapt, model.evaluate) == (
            first.tokenizer,
            first.pretrain,
            first.adapt,
            first.evaluate,
        )
        one, other = vars(model.architecture), vars(first.architecture)
        assert {key for key in one if one[key] != other[key]} <= OPEN
        line = tiny.variant(name).mechanism
        assert line["contextualizer"] == ("LSTM" if name.endswith("lstm") else "Transformer")
        assert "next sentence" not in line["objective"]
    switches = {(m.architecture.contextualizer, m.architecture.direction) for m in models.values()}
    assert len(switches) == 6


def params() -> Params:
    """The study of the six cells."""
    return parse_params(tiny.composed("cells"), "params.yaml")


def test_sinusoids_are_the_paper_s() -> None:
    found = sinusoidal_positions(9, 7, device=tiny.CPU)
    for t in range(9):
        for unit in range(7):
            angle = t / 10_000 ** (unit // 2 * 2 / 7)
            assert float(found[t, unit]) == pytest.approx(
                math.cos(angle) if unit % 2 else math.sin(angle), abs=1e-6
            )


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_only_learned_positions_have_parameters(name: str) -> None:
    counts = {
        kind: count_parameters_by_role(tiny.model(name, architecture={"position_encoding": kind}))
        for kind in ("learned", "sinusoidal", "none")
    }
    config = tiny.checkpoint(name).architecture
    assert counts["none"] == counts["sinusoidal"]
    assert (
        counts["learned"]["total"] - counts["none"]["total"]
        == config.max_positions * config.hidden_size
    )
    assert counts["learned"]["body"] == counts["none"]["body"]


@pytest.mark.parametrize(
    ("kind", "alike"), [("none", True), ("learned", False), ("sinusoidal", False)]
)
@torch.inference_mode()
def test_a_bert_tells_the_order_of_words_by_its_positions_alone(kind: str, alike: bool) -> None:
    model = tiny.model("bert", architecture={"position_encoding": kind}).eval()
    ids, order = list(range(20, 35)), [3, 0, 14, *range(4, 14), 1, 2]
    here, there = (
        model.encode(ids_batch("bert", some))[-1][0] for some in (ids, [ids[i] for i in order])
    )
    assert torch.allclose(here[order], there, atol=1e-5) == alike


@pytest.mark.parametrize("kind", ["none", "learned", "sinusoidal"])
@torch.inference_mode()
def test_a_gpt_tells_the_order_of_words_without_positions_from_its_second_layer_on(
    kind: str,
) -> None:
    """The first reads a set of words; but what stands at each of them has read those before it, and no others (Haviv et al. 2022)."""
    model = tiny.model(
        "gpt", architecture={"position_encoding": kind, "init_std": 0.5}
    ).eval()  # small weights attend to all alike
    ids = list(range(20, 35))
    pairs = zip(
        *(model.encode(ids_batch("gpt", some)) for some in (ids, [*ids[:-1][::-1], ids[-1]])),
        strict=True,
    )
    _, first, second = [torch.allclose(x[0, -1], y[0, -1], atol=1e-5) for x, y in pairs]
    assert first == (kind == "none") and not second


@pytest.mark.parametrize(("name", "over", "said"), [
    ("gpt", {"position_encoding": "sinusoidal"}, "position_encoding is 'sinusoidal'"),
    ("bert", {"position_encoding": "none"}, "position_encoding is 'none'"),
    ("bert", {"direction": "left_to_right"}, "direction 'left_to_right'"),
    ("bert", {"contextualizer": "lstm"}, "contextualizer 'lstm'"),
    *((name, {}, f"models.{name}: transformers has no class") for name in ("elmo", "ulmfit", "taglm", "seq2seq", "sa_lstm", "context2vec")),
    *((name, {}, "transformers has no class") for name in tiny.STATIC),
])  # fmt: skip
def test_what_transformers_cannot_hold_is_not_written(
    name: str, over: dict[str, str], said: str, tmp_path: object
) -> None:
    with pytest.raises(InputError, match=said):
        huggingface.write_hf_folder(
            tiny.model(name, architecture=over), tiny.reader(name), tmp_path
        )  # type: ignore[arg-type]
