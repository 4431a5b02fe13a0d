"""Public checkpoints: read as transformers reads them, refused by name, and never a pickle."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("transformers")

import transformers

from lineage.config.resolve import fill_in_defaults
from lineage.config.study import parse_model_config
from lineage.errors import EvaluationError, InputError
from lineage.models import public as family
from lineage.models.base import rescale_embeddings, root_mean_square
from lineage.models.batch import Batch
from lineage.models.checkpoint import Checkpoint
from lineage.models.public_folders import inspect_checkpoint
from lineage.models.public_tokenizer import load_public_tokenizer
from lineage.tokenizers.pairs import encode_pairs
from lineage.tokenizers.token_ids import encode_corpus
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.training.optimizers import build_adamw, build_param_groups
from lineage.training.samplers import iterate_batches
from tests import tiny
from tests.public_checkpoints import KINDS, POSITIONS, changed, save, theirs

NEAR = {"atol": 1e-5, "rtol": 1e-5}
TEXTS = [
    "du kotbas gatit kaf vivkez debfi gizfif .",
    "to vandu",
    "to kible fidvid mur duzam kible zuvid . to tofla ut mekitaz mononut u du gozbupas .",
]
GOING_ON = family.ContinuedPretrainSettings(batch_size=5, seq_len=23)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("public")
    return {kind: save(kind, home / kind) for kind in KINDS}


def ours(folder: Path, seed: int = 3, **block: Any) -> tuple[family.PublicModel, Checkpoint]:
    reader = load_public_tokenizer(folder, language="en")
    config, model = family.load_pretrained(folder, family.PublicConfig(**block))
    return model, Checkpoint("other", family.FAMILY, config, GOING_ON, reader, seed=seed)


def batch_of(reader: Tokenizer, texts: list[str]) -> Batch:
    return reader.collate(reader.encode_batch(texts))


@pytest.mark.parametrize(
    ("length", "positions", "found"),
    [(None, 61, 61), (None, 512, 128), (24, 512, 24), (200, 512, 200)],
)
def test_a_window_is_as_long_as_somebody_says_or_as_can_be_read(
    length: int | None, positions: int, found: int
) -> None:
    assert (
        family.ContinuedPretrainSettings(batch_size=5, seq_len=length)
        .with_default_seq_len(positions)
        .seq_len
        == found
    )


@pytest.mark.parametrize("kind", KINDS)
def test_its_layers_are_those_of_automodel(kind: str, folders: dict[str, Path]) -> None:
    model, checkpoint = ours(folders[kind])
    assert not model.training
    automodel = transformers.AutoModel.from_pretrained(folders[kind], local_files_only=True).eval()
    for text in TEXTS:
        batch = batch_of(checkpoint.tokenizer, [text])
        expected = automodel(input_ids=batch.ids_BT, output_hidden_states=True)
        found = model.encode(batch)
        assert len(found) == 3 == len(model.hidden_sizes()) and {x.shape[-1] for x in found} == {
            *model.hidden_sizes()
        }
        for x, y in zip(found, expected.hidden_states, strict=True):
            torch.testing.assert_close(x, y, **NEAR)
        torch.testing.assert_close(found[-1], expected.last_hidden_state, **NEAR)


@pytest.mark.parametrize("kind", KINDS)
def test_neither_padding_nor_the_order_of_a_batch_changes_anything(
    kind: str, folders: dict[str, Path]
) -> None:
    model, checkpoint = ours(folders[kind])
    together, turned = (
        model.encode(batch_of(checkpoint.tokenizer, texts)) for texts in (TEXTS, TEXTS[::-1])
    )
    pooled = model.pool(together, batch_of(checkpoint.tokenizer, TEXTS))
    for row, text in enumerate(TEXTS):
        batch = batch_of(checkpoint.tokenizer, [text])
        alone, T = model.encode(batch), batch.ids_BT.shape[1]
        for x, y, z in zip(alone, together, turned, strict=True):
            torch.testing.assert_close(x[0], y[row, :T], **NEAR)
            torch.testing.assert_close(x[0], z[len(TEXTS) - 1 - row, :T], **NEAR)
        torch.testing.assert_close(model.pool(alone, batch)[0], pooled[row], **NEAR)


@pytest.mark.parametrize("kind", KINDS)
def test_its_ids_and_marks_are_those_of_its_own_tokenizer(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    reader, own = (
        load_public_tokenizer(folders[kind], language="en"),
        transformers.AutoTokenizer.from_pretrained(folders[kind], local_files_only=True),
    )
    begin = (
        [0] if kind == "gpt2" else []
    )  # what stood between GPT-2's texts, without which a first piece has no probability
    reader.save(tmp_path)
    for one in (reader, Tokenizer.load(tmp_path)):
        for text in [*TEXTS, "a [MASK] <mask>  that   is text"]:
            if "MASK" not in text:
                assert one.encode(text).ids.tolist() == begin + own(text)["input_ids"]
            encoded = one.encode(text)
            assert not {one.special_token_ids.get("[MASK]")} & {*encoded.ids.tolist()}, (
                "what is written in a text is text"
            )
            for start, end in encoded.offsets[encoded.offsets[:, 1] > 0]:
                assert 0 <= start < end <= len(text)
        (pair,) = encode_pairs(one, TEXTS[:1], TEXTS[1:2])
        expected = own(TEXTS[0], TEXTS[1])
        if kind in ("bert", "roberta"):
            assert pair.ids.tolist() == expected["input_ids"]
            assert pair.token_type_ids is not None and (
                pair.token_type_ids[0],
                pair.token_type_ids[-1],
            ) == (0, 1)
        for limit in (9, 12):
            (short,) = encode_pairs(one, TEXTS[2:], TEXTS[2:], max_length=limit)
            assert (
                len(short.ids) == limit
                and short.truncated
                and short.ids[-1]
                == (pair.ids[-1] if one.special_token_template.suffix else short.ids[-1])
            )
            assert len(one.encode(TEXTS[2], max_length=limit).ids) == limit


def test_a_text_without_anything_that_it_knows_is_one_position(folders: dict[str, Path]) -> None:
    reader = load_public_tokenizer(folders["gpt1"], language="en")
    encoded = reader.encode("​ ")
    assert encoded.ids.tolist() == [reader.pad_token_id] and encoded.offsets.tolist() == [[0, 0]]


@pytest.mark.parametrize("kind", ["gpt1", "gpt2"])
def test_a_causal_one_gives_sentences_their_log_probabilities(
    kind: str, folders: dict[str, Path]
) -> None:
    model, checkpoint = ours(folders[kind])
    library = theirs(kind)
    expected = []
    for text in TEXTS:
        ids = torch.from_numpy(checkpoint.tokenizer.encode(text).ids)[None]
        logits = library(input_ids=ids).logits[:, :-1]
        expected.append(-F.cross_entropy(logits[0], ids[0, 1:], reduction="sum").item())
    np.testing.assert_allclose(
        family.public_scores(model, checkpoint.tokenizer, TEXTS, limit=POSITIONS)[:, 0],
        expected,
        rtol=1e-4,
    )


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_masked_one_gives_sentences_their_pseudo_log_likelihoods(
    kind: str, folders: dict[str, Path]
) -> None:
    model, checkpoint = ours(folders[kind])
    library, reader = theirs(kind), checkpoint.tokenizer
    expected = []
    for text in TEXTS:
        ids, total = torch.from_numpy(reader.encode(text).ids), 0.0
        for place in range(1, len(ids) - 1):
            masked = ids.clone()
            masked[place] = reader.special_token_ids["[MASK]"]
            out = library(input_ids=masked[None])
            logits = out.prediction_logits if kind == "bert" else out.logits
            total += logits[0, place].log_softmax(-1)[ids[place]].item()
        expected.append(total)
    np.testing.assert_allclose(
        family.public_scores(model, reader, TEXTS, limit=POSITIONS)[:, 0], expected, rtol=1e-4
    )


@pytest.mark.parametrize("kind", KINDS)
def test_its_vector_of_a_text_is_its_own_or_the_mean(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    model, checkpoint = ours(folders[kind])
    batch = batch_of(checkpoint.tokenizer, TEXTS)
    own, layers = model.pool(model.encode(batch), batch), model.encode(batch)
    if kind == "bert":
        expected = (
            theirs(kind)
            .bert(input_ids=batch.ids_BT, attention_mask=batch.mask_BT.long())
            .pooler_output
        )
    else:
        places = (
            [0] * 3
            if kind == "roberta"
            else [len(checkpoint.tokenizer.encode(text).ids) - 1 for text in TEXTS]
        )
        expected = torch.stack([layers[-1][row, place] for row, place in enumerate(places)])
    torch.testing.assert_close(own, expected, **NEAR)
    mean = torch.stack([layers[-1][row][batch.mask_BT[row]].mean(0) for row in range(3)])
    torch.testing.assert_close(
        ours(folders[kind], pooling="mean")[0].pool(layers, batch), mean, **NEAR
    )


def test_an_encoder_of_sentences_says_itself_how_it_pools(tmp_path: Path) -> None:
    body = theirs("bert").bert
    folder = save("bert", tmp_path / "sentences", model=body)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(
        '{"word_embedding_dimension": 16, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}'
    )
    model, checkpoint = ours(folder)
    assert (
        model.checkpoint_info.pooling == "mean"
        and not model.checkpoint_info.has_lm_head
        and model.checkpoint_info.has_pooler
    )
    assert not checkpoint.family.can_answer("sentence_probability", checkpoint.architecture)
    pooler = {id(p) for p in model.hf_model.pooler.parameters()}
    assert not pooler & {id(p) for group in model.layer_groups() for p in group}, "it is not read"
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(InputError, match="pools by max_tokens"):
        inspect_checkpoint(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_here_it_is_the_same_and_its_twin_is_another_that_comes_again(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    model, checkpoint = ours(folders[kind])
    checkpoint.save(tmp_path, model)
    loaded, before = Checkpoint.load(tmp_path), torch.get_rng_state()
    batch = batch_of(loaded.tokenizer, TEXTS)
    assert loaded.architecture == checkpoint.architecture
    for x, y in zip(model.encode(batch), loaded.build(tiny.CPU).eval().encode(batch), strict=True):
        assert torch.equal(x, y)
    twins = [
        dataclasses.replace(loaded, seed=seed).build(tiny.CPU, load_weights=False).eval()
        for seed in (3, 3, 4)
    ]
    one, again, other = ([*twin.parameters()] for twin in twins)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True)) and not all(
        torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )
    assert all(torch.isfinite(p).all() for p in one) and [p.shape for p in one] == [
        p.shape for p in model.parameters()
    ]
    assert not torch.allclose(twins[0].encode(batch)[-1], model.encode(batch)[-1]), (
        "it has not the weights"
    )
    assert torch.equal(before, torch.get_rng_state())
    library = dict(theirs(kind, seed=9).named_parameters())
    for name, value in twins[0].tensor_views().items():  # type: ignore[operator]
        if (
            value.dim() > 1
            and value.numel() > 200
            and name in library
            and not (kind == "gpt1" and ".h." in name)
        ):  # begun at 0.02 there
            assert abs(value.std() / library[name].std() - 1) < 0.3, name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prefix", [2, 297]),
        ("separator", [10**6]),
        ("suffix", [297]),
        ("pad_token_id", 297),
        ("mask_token_id", 297),
    ],
)
def test_a_mark_that_is_no_row_of_the_model_is_refused_by_its_key(
    key: str, value: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    model, checkpoint = ours(folders["bert"])
    checkpoint.save(tmp_path, model)
    said = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(said | {"special_token_template": said["special_token_template"] | {key: value}})
    )
    with pytest.raises(
        InputError,
        match=rf"{tmp_path}/tokenizer_config\.json: special_token_template\.{key}: its ids go up to \d+, and the model has 297 rows",
    ):
        Checkpoint.load(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_in_one_layer_and_a_batch_can_be_learned_by_heart(
    kind: str, folders: dict[str, Path]
) -> None:
    _, checkpoint = ours(folders[kind])
    checkpoint = dataclasses.replace(
        checkpoint,
        architecture=dataclasses.replace(checkpoint.architecture, dropout=0.0),
        weights_path=folders[kind] / "unread",
    )
    model = checkpoint.build(tiny.CPU, load_weights=False).train()
    groups = [p for group in model.layer_groups() for p in group]
    heads = {
        id(p)
        for name, part in model.modules_by_role().items()
        if name == "head"
        for p in part.parameters()
    }
    assert len(model.layer_groups()) == 3 and len({id(p) for p in groups}) == len(groups)
    assert {id(p) for p in model.parameters()} - {id(p) for p in groups} <= heads
    assert sum(
        p.numel() for part in model.modules_by_role().values() for p in part.parameters()
    ) == sum(p.numel() for p in model.parameters())
    tokens = encode_corpus(tiny.documents(), checkpoint.tokenizer)
    batch = next(
        iterate_batches(family.build_batch_sampler(tokens, checkpoint.tokenizer, GOING_ON, seed=1))
    )[2]
    assert batch.ids_BT.shape == (5, 23) and batch.text_bytes > 0
    optimizer, losses = (
        build_adamw(
            build_param_groups([[*model.parameters()]], weight_decay=0.0),
            betas=(0.9, 0.98),
            epsilon=1e-8,
        ),
        [],
    )
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    for _ in range(80):
        out = family.pretraining_loss(model, batch)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(out.loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert {*out.nats} == {"causal"} if kind.startswith("gpt") else {"masked"}


def test_one_window_is_none_where_a_text_has_no_second_piece(folders: dict[str, Path]) -> None:
    reader = load_public_tokenizer(folders["gpt1"], language="en")
    tokens = dataclasses.replace(
        encode_corpus(tiny.documents()[:1], reader), ids=np.array([5]), byte_counts=np.array([2])
    )
    with pytest.raises(EvaluationError, match="too short for a single batch"):
        next(iterate_batches(family.build_batch_sampler(tokens, reader, GOING_ON, seed=1)))


def test_tables_of_zeros_stay_as_they_are_where_others_are_made_small(
    folders: dict[str, Path],
) -> None:
    """RoBERTa's segments are one row of zeros; which tables a public model has its folder alone tells, so that its block may ask for small ones."""
    changes = {"evaluate": {"finetune": {"rescale_embeddings": True}}}
    block = fill_in_defaults("other", {"family": "public", **changes})
    assert parse_model_config("other", block, "models.other").evaluate.finetune.rescale_embeddings
    (model, checkpoint), (zeros, _) = ours(folders["roberta"]), ours(folders["roberta"])
    for one in (model, zeros):
        one.hf_model.embeddings.token_type_embeddings.weight.data.zero_()
    twin = dataclasses.replace(checkpoint, weights_path=folders["roberta"] / "unread").build(
        tiny.CPU, load_weights=False
    )
    rescale_embeddings(model, twin)
    sizes = [
        [root_mean_square(table) for table in one.embedding_matrices()]
        for one in (model, twin, zeros)
    ]
    assert sizes[0].count(0.0) == sizes[2].count(0.0) == 1 and not all(
        map(torch.equal, model.embedding_matrices(), zeros.embedding_matrices())
    )
    assert all(a == 0 or a == pytest.approx(b) for a, b in zip(*sizes[:2], strict=True))


def test_going_on_reads_all_of_a_text_between_the_marks(folders: dict[str, Path]) -> None:
    reader = load_public_tokenizer(folders["roberta"], language="en")
    tokens = encode_corpus(tiny.documents(), reader)
    found = [
        batch
        for _, _, batch in iterate_batches(
            family.build_batch_sampler(tokens, reader, GOING_ON, seed=1)
        )
    ]
    assert sum(len(batch.ids_BT) for batch in found) == len(tokens.ids) // 21
    assert {(row[0].item(), row[-1].item()) for batch in found for row in batch.ids_BT} == {(0, 2)}
    chosen = sum(len(batch.target_positions()) for batch in found) / sum(
        batch.num_tokens for batch in found
    )
    assert abs(chosen - 0.15) < 0.03 and tokens.text_bytes == sum(
        len(text.encode()) for text in tiny.documents()
    )
    causal = load_public_tokenizer(folders["gpt2"], language="en")
    assert (encode_corpus(tiny.documents(), causal).ids == 0).sum() == len(tiny.documents()), (
        "its begin mark, before each document"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_bare_body_with_names_of_old_is_read_too(
    kind: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """As gpt2 and bert-base-uncased are on the Hub."""
    library = theirs(kind)
    body = getattr(library, library.base_model_prefix)
    folder = save(kind, tmp_path, model=body)
    if kind == "bert":
        tensors = {f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value.clone()
                   for name, value in body.state_dict().items()}  # fmt: skip
        changed(folder, dict.fromkeys(body.state_dict()) | tensors)
    model, checkpoint = ours(folder)
    batch = batch_of(checkpoint.tokenizer, TEXTS)
    torch.testing.assert_close(
        model.encode(batch)[-1], ours(folders[kind])[0].encode(batch)[-1], **NEAR
    )
    assert model.checkpoint_info.has_lm_head == kind.startswith("gpt")
