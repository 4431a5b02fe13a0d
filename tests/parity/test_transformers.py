"""GPT-1, GPT-2 and BERT against the numbers of `transformers`, and folders of that library read and written."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lineage.errors import InputError
from lineage.formats import huggingface
from lineage.models import bert, gpt
from lineage.models.base import Encoder
from lineage.models.batch import IGNORE_INDEX, Batch
from lineage.tokenizers.pairs import encode_pairs
from lineage.tokenizers.tokenizer import Tokenizer
from lineage.tokenizers.train import train_tokenizer
from lineage.training.objectives import causal_lm_loss, masked_lm_loss
from tests import tiny
from tests.golden import golden

NEAR = {"atol": 3e-5, "rtol": 0.0}
NAMES = ("gpt1", "gpt2", "bert")


def reference(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    return huggingface.read_hf_folder(golden(name) / "hf"), load_file(
        golden(name) / "cases.safetensors"
    )


def layout(model: Encoder) -> dict[str, torch.Tensor]:
    if isinstance(model, bert.BertModel):
        kind = "bert"
    else:
        assert isinstance(model, gpt.GPTModel)
        kind = "gpt2" if model.config.norm_first else "openai-gpt"
    return huggingface.LAYOUTS[kind].tensor_views(model)


@pytest.mark.parametrize("name", ["gpt1", "gpt2"])
@pytest.mark.parametrize("case", ["full", "rightpad"])
def test_gpt_gives_the_reference_s_layers_logits_and_loss(name: str, case: str) -> None:
    model, found = reference(name)
    ids = found[f"in.{case}.input_ids"].long()
    mask = (
        found[f"in.{case}.attention_mask"].bool()
        if case == "rightpad"
        else torch.ones_like(ids, dtype=torch.bool)
    )
    labels = found[f"in.{case}.labels"].long()
    targets = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORE_INDEX)], 1)
    batch = Batch(ids, mask, targets_BT=targets)
    layers = model.encode(batch)
    assert f"{case}.hidden{len(layers)}" not in found
    for number, layer in enumerate(layers):
        torch.testing.assert_close(layer[mask], found[f"{case}.hidden{number}"][mask], **NEAR)
    torch.testing.assert_close(
        model.logits(layers[-1])[mask], found[f"{case}.logits"][mask], **NEAR
    )
    out = causal_lm_loss(model, batch)
    torch.testing.assert_close(out.loss.reshape(1), found[f"{case}.loss"], **NEAR)
    out.loss.backward()
    _gradients_match(
        model,
        {k.removeprefix(f"{case}."): v for k, v in found.items() if k.startswith(case)},
        atol=1e-5,
    )


@pytest.mark.parametrize("name", ["gpt1", "gpt2"])
@torch.inference_mode()
def test_gpt_reads_what_was_padded_on_the_left_once_padding_stands_last(name: str) -> None:
    """Not its loss: the first real token is predicted from padding there, which is implementation-defined."""
    model, found = reference(name)
    real = found["in.leftpad.attention_mask"].bool()
    last = (~real).int().argsort(dim=1, stable=True)
    mask = real.gather(1, last)
    assert torch.equal(
        found["in.leftpad.position_ids"].gather(1, last)[mask],
        torch.arange(mask.shape[1]).expand_as(mask)[mask].int(),
    )
    layers = model.encode(Batch(found["in.leftpad.input_ids"].long().gather(1, last), mask))
    for number, layer in enumerate(layers):
        torch.testing.assert_close(layer[mask], found[f"leftpad.hidden{number}"][real], **NEAR)
    torch.testing.assert_close(
        model.logits(layers[-1])[mask], found["leftpad.logits"][real], **NEAR
    )


def _gradients_match(model: Encoder, found: dict[str, torch.Tensor], *, atol: float) -> None:
    """The layout's views of the gradients, by the reference's names; norms for all, whole gradients where they were kept."""
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(grad is not None for grad in grads.values())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(grads[name])
    views = layout(model)
    norms = {k.removeprefix("gradnorm."): v for k, v in found.items() if k.startswith("gradnorm.")}
    assert norms.keys() == views.keys()
    for name, view in views.items():
        torch.testing.assert_close(
            view.norm().reshape(1), norms[name], atol=atol, rtol=atol, msg=name
        )  # less than 3e-6 lies between them
        if f"grad.{name}" in found:
            torch.testing.assert_close(view, found[f"grad.{name}"], atol=atol, rtol=0.0, msg=name)


def test_bert_gives_the_reference_s_layers_logits_losses_and_gradients() -> None:
    model, found = reference("bert")
    ids, mask = found["in.input_ids"].long(), found["in.attention_mask"].bool()
    labels = found["in.labels"].long()
    batch = Batch(
        ids,
        mask,
        segment_ids_BT=found["in.token_type_ids"].long(),
        targets_BT=labels,
        next_sentence_labels_B=found["in.next_sentence_label"].long(),
    )
    layers = model.encode(batch)
    for number, layer in enumerate(layers):
        torch.testing.assert_close(layer[mask], found[f"hidden{number}"][mask], **NEAR)
    torch.testing.assert_close(model.pool(layers, batch), found["pooled"], **NEAR)
    torch.testing.assert_close(model.logits(layers[-1])[mask], found["mlm_logits"][mask], **NEAR)
    torch.testing.assert_close(
        model.next_sentence_logits(layers[-1], batch), found["nsp_logits"], **NEAR
    )
    out = masked_lm_loss(model, batch)
    assert out.nats["next_sentence_correct"] == (
        found["nsp_logits"].argmax(-1) == batch.next_sentence_labels_B
    ).sum() and out.target_counts["next_sentence_correct"] == len(ids)
    for name, loss in (
        ("mlm", out.nats["masked"] / out.target_counts["masked"]),
        ("nsp", out.nats["next_sentence"] / out.target_counts["next_sentence"]),
        ("total", out.loss),
    ):
        torch.testing.assert_close(loss.reshape(1), found[f"loss_{name}"], **NEAR)
    out.loss.backward()
    _gradients_match(model, {k: v for k, v in found.items() if k.startswith("grad")}, atol=2e-5)


@torch.inference_mode()
def test_bert_without_a_mask_and_without_segments() -> None:
    model, found = reference("bert")
    ids = found["in.input_ids"].long()
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool))
    top = model.encode(batch)[-1]
    torch.testing.assert_close(model.logits(top), found["nomask_notypes.mlm_logits"], **NEAR)
    torch.testing.assert_close(
        model.next_sentence_logits(top, batch), found["nomask_notypes.nsp_logits"], **NEAR
    )


def ours(name: str) -> tuple[Encoder, Tokenizer]:
    """An untrained model of ours that the class of this name can hold."""
    family = "bert" if name == "bert" else "gpt"
    if name != "gpt1":
        model = tiny.model(family, architecture={"norm_first": name == "gpt2"})
        return model, tiny.reader(family)
    config = dataclasses.replace(
        tiny.checkpoint("gpt").architecture, hidden_size=24, ffn_size=96
    )  # the class knows no other proportion
    model = gpt.GPTModel(config, vocab_size=tiny.reader("gpt").vocab_size)
    model.init_weights(torch.Generator().manual_seed(4))
    return model, tiny.reader("gpt")


TEXTS = ["the bank , of the river .", "zebra", *tiny.documents()[0].split(" . ")[:2]]


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_what_is_trained_here_loads_in_transformers_and_gives_equal_outputs(
    name: str, tmp_path: Path
) -> None:
    model, reader = ours(name)
    huggingface.write_hf_folder(model.eval(), reader, tmp_path)
    theirs, said = transformers.AutoModelForPreTraining.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(said[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), (
        said
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.padding_side = "right"
    (pair,) = encode_pairs(reader, TEXTS[:1], TEXTS[2:3])
    given = tokenizer(TEXTS[0], TEXTS[2], return_tensors="pt")
    assert given["input_ids"][0].tolist() == pair.ids.tolist() and ("token_type_ids" in given) == (
        name == "bert"
    )
    both = dataclasses.replace(
        reader.collate([pair]),
        segment_ids_BT=None
        if pair.token_type_ids is None
        else torch.from_numpy(pair.token_type_ids)[None],
    )
    last = theirs.eval()(**given, output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(model.encode(both)[-1][both.mask_BT], last[0], **NEAR)
    batch = reader.collate([reader.encode(text) for text in TEXTS])
    given = tokenizer(TEXTS, return_tensors="pt", padding=True)
    assert torch.equal(given["attention_mask"].bool(), batch.mask_BT)
    assert torch.equal(given["input_ids"][batch.mask_BT], batch.ids_BT[batch.mask_BT])
    out = theirs.eval()(
        input_ids=given["input_ids"],
        attention_mask=given["attention_mask"],
        output_hidden_states=True,
    )
    layers = model.encode(batch)
    assert len(layers) == len(out.hidden_states)
    for layer, other in zip(layers, out.hidden_states, strict=True):
        torch.testing.assert_close(layer[batch.mask_BT], other[batch.mask_BT], **NEAR)
    logits = out.prediction_logits if name == "bert" else out.logits
    found = model.logits(layers[-1])
    torch.testing.assert_close(found[batch.mask_BT], logits[batch.mask_BT], **NEAR)


@pytest.mark.parametrize("name", ["gpt1", "gpt2"])
def test_text_begins_and_ends_with_the_mark_between_documents(name: str, tmp_path: Path) -> None:
    model, reader = ours(name)
    huggingface.write_hf_folder(model, reader, tmp_path)
    written = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
        .eval()
        .generate(max_new_tokens=4, do_sample=False)[0]
        .tolist()
    )
    mark = reader.special_token_ids["<|endoftext|>"]
    assert written[0] == mark and (len(written) == 5 or mark in written[1:])


@pytest.mark.parametrize(
    ("family", "kind", "lowercase"),
    [
        ("bert", "BertTokenizer", False),
        ("bert", "BertTokenizer", True),
        ("gpt", "GPT2Tokenizer", False),
    ],
)  # GPT2Tokenizer knows no lower case; AutoTokenizer reads that too
def test_a_tokenizer_that_is_loaded_by_its_class_gives_the_same_ids(
    family: str, kind: str, lowercase: bool, tmp_path: Path
) -> None:
    text = "The Bank and the Café of the RIVER."
    variant = tiny.variant(family, tokenizer={"lowercase": lowercase})
    reader = train_tokenizer(
        [*tiny.documents(), text],
        variant.tokenizer,
        tokenizer_type=variant.tokenizer_type,
        language="en",
    )
    config = dataclasses.replace(tiny.checkpoint(family).architecture, norm_first=family != "bert")
    huggingface.write_hf_folder(
        variant.family.build(config, vocab_size=reader.vocab_size), reader, tmp_path
    )
    assert (
        getattr(transformers, kind).from_pretrained(tmp_path)(text)["input_ids"]
        == reader.encode(text).ids.tolist()
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_that_was_written_is_read_back_to_the_last_bit(name: str, tmp_path: Path) -> None:
    model, reader = ours(name)
    huggingface.write_hf_folder(model, reader, tmp_path)
    again = huggingface.read_hf_folder(tmp_path)
    assert vars(again.config) == vars(model.config)  # type: ignore[arg-type]
    for (key, value), (other, found) in zip(
        model.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert key == other and torch.equal(value, found)


@pytest.mark.parametrize("name", NAMES)
def test_files_with_other_names_and_idle_buffers_are_read_too(name: str, tmp_path: Path) -> None:
    """As the files of gpt2 and bert-base-uncased on the Hub are: no prefix, causal masks, TensorFlow's words for a norm, tied weights twice."""
    shutil.copytree(golden(name) / "hf", tmp_path / "hf")
    tensors = load_file(golden(name) / "weights.safetensors")
    assert {*tensors} > {*load_file(tmp_path / "hf" / "model.safetensors")}, "else no copy is tried"
    body = {"bert": "bert.", "gpt1": "transformer.", "gpt2": "transformer."}[name]
    bare = {key.removeprefix(body): value for key, value in tensors.items()}
    bare = {
        re.sub(
            "LayerNorm.bias$", "LayerNorm.beta", re.sub("LayerNorm.weight$", "LayerNorm.gamma", key)
        ): v
        for key, v in bare.items()
    }
    bare |= {
        "gpt2": {"h.0.attn.bias": torch.ones(1, 1, 4, 4)},
        "bert": {"embeddings.position_ids": torch.arange(4)[None]},
    }.get(name, {})
    save_file(bare, tmp_path / "hf" / "model.safetensors")
    one, other = (
        huggingface.read_hf_folder(golden(name) / "hf").state_dict(),
        huggingface.read_hf_folder(tmp_path / "hf").state_dict(),
    )
    assert all(torch.equal(value, other[key]) for key, value in one.items())


def changed(folder: Path, tensors: dict[str, Any] | None = None, **facts: Any) -> Path:
    """A written GPT-1 folder with some of its tensors or facts replaced; None takes one away."""
    huggingface.write_hf_folder(*ours("gpt1"), folder)
    config = json.loads((folder / "config.json").read_text()) | facts
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if v is not None})
    )
    kept = load_file(folder / "model.safetensors") | (tensors or {})
    save_file({k: v for k, v in kept.items() if v is not None}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(("tensors", "facts", "said"), [
    ({"transformer.h.0.ln_1.bias": None}, {}, r"transformer\.h\.0\.ln_1\.bias is missing"),
    ({"transformer.h.0.surprise": torch.zeros(2)}, {}, r"transformer\.h\.0\.surprise has no place"),
    ({"transformer.tokens_embed.weight": torch.zeros(3, 4)}, {}, r"tokens_embed\.weight is of shape \(3, 4\)"),
    ({}, {"vocab_size": 7}, r"tokens_embed\.weight is of shape .* requires \(7, "),
    ({}, {"vocab_size": 10**12}, r"tokens_embed\.weight is of shape .* requires \(1000000000000, "),  # before it takes memory
    ({}, {"n_embd": 4 * 10**9}, r"config\.json: its sizes ask for a tensor of more numbers than can be counted"),
    ({}, {"n_layer": 5}, r"transformer\.h\.2\..* is missing"),
    ({}, {"n_embd": None}, "the key 'n_embd' is missing"),
    ({}, {"vocab_size": None}, "the key 'vocab_size' is missing"),
    ({}, {"vocab_size": -1}, "vocab_size is -1; it is a whole number above zero"),
    ({}, {"model_type": "bart"}, "model_type is 'bart'; did you mean 'bert'"),
    ({}, {"afn": "swish"}, "afn is 'swish'"),
    ({}, {"n_head": 5}, "n_embd, 24, is not a multiple of n_head, 5"),
    ({}, {"model_type": ["bert"]}, r"model_type is '\['bert'\]'"),
    ({}, {"vocab_size": True}, "vocab_size is True; it is a whole number above zero"),
    ({}, {"n_layer": 10**9}, r"config\.json: n_layer is 1000000000; it is a whole number from 1 to 1,000"),
    ({}, {"n_embd": {}}, r"config\.json: n_embd is \{\}; it is a whole number above zero"),
    ({}, {"layer_norm_epsilon": "x"}, "layer_norm_epsilon is 'x'; it is a number above 0"),
    ({}, {"initializer_range": 10**400}, r"initializer_range is 10+\.\.\.; it is a number above 0"),
    ({}, {"embd_pdrop": "x"}, r"config\.json: embd_pdrop is 'x'; it is a share"),
    ({}, {"embd_pdrop": 0.7}, r"config\.json: embd_pdrop is 0\.7 and resid_pdrop 0\.\d+; a model here has one dropout: give all the one"),
    ({}, {"resid_pdrop": None}, "the key 'resid_pdrop' is missing"),
    ({}, {"attn_pdrop": None, "resid_pdrop": 0.2, "embd_pdrop": 0.2}, r"attn_pdrop is 0\.1 and resid_pdrop 0\.2; a model here has one dropout"),
    ({}, {"model_type": "gpt2", "activation_function": ["gelu"]}, r"activation_function is \['gelu'\]; it is a name"),
    ({"lm_head.weight": torch.zeros(7, 2)}, {}, r"lm_head\.weight differs from the embedding"),
    ({"h.0.ln_1.bias": torch.zeros(3)}, {}, r"h\.0\.ln_1\.bias are one and the same"),
])  # fmt: skip
def test_a_folder_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, tensors: dict[str, Any], facts: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        huggingface.read_hf_folder(changed(tmp_path, tensors, **facts))


@pytest.mark.parametrize(("kind", "key", "value", "said"), [
    ("bert", "hidden_size", None, "hidden_size is None; it is a whole number above zero"),
    ("bert", "intermediate_size", None, "intermediate_size is None; it is a whole number above zero"),
    ("gpt1", "n_embd", None, "n_embd is None; it is a whole number above zero"),
    ("gpt2", "n_embd", None, "n_embd is None; it is a whole number above zero"),
    ("gpt2", "n_inner", {}, r"n_inner is \{\}; it is a whole number above zero, or null"),
    ("bert", "attention_probs_dropout_prob", 0.5, r"attention_probs_dropout_prob is 0\.5 and hidden_dropout_prob 0\.0; a model here has one"),
    ("bert", "add_cross_attention", True, "add_cross_attention is True; only False can be read"),
    ("bert", "hidden_act", None, "hidden_act is None; it is a name"),
])  # fmt: skip
def test_a_value_that_cannot_be_is_refused_by_the_library_s_own_key(
    kind: str, key: str, value: Any, said: str, tmp_path: Path
) -> None:
    path = shutil.copytree(golden(kind) / "hf", tmp_path / "hf") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(InputError, match=rf"{path}: {said}"):
        huggingface.read_hf_folder(path.parent)


def test_pickles_and_broken_files_are_refused_unread(tmp_path: Path) -> None:
    folder = changed(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="only safetensors are read"):
        huggingface.read_hf_folder(folder)
    (folder / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(InputError, match="not a safetensors file"):
        huggingface.read_hf_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="not a JSON file"):
        huggingface.read_hf_folder(folder)
    with pytest.raises(InputError, match="there is no such file"):
        huggingface.read_hf_folder(tmp_path / "nowhere")


def test_a_model_that_transformers_has_no_class_for_is_not_written(tmp_path: Path) -> None:
    for name, own, said in (
        ("gpt", {"activation": "gelu"}, "gelu_tanh and a feed-forward"),
        ("bert", {"norm_first": True}, "normalizes after each part"),
    ):
        with pytest.raises(InputError, match=said):
            huggingface.write_hf_folder(
                tiny.model(name, architecture=own), tiny.reader(name), tmp_path / name
            )
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("family", "other", "said"),
    [("bert", "gpt", "cuts text into byte_bpe"), ("gpt", "bert", "cuts text into wordpiece")],
)
def test_a_model_is_not_written_with_the_reader_of_another(
    family: str, other: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        huggingface.write_hf_folder(tiny.model(family), tiny.reader(other), tmp_path)
    fewer = tiny.variant(family, tokenizer={"vocab_size": 400})
    small = train_tokenizer(
        tiny.documents(), fewer.tokenizer, tokenizer_type=fewer.tokenizer_type, language="en"
    )
    assert small.vocab_size != tiny.reader(family).vocab_size
    with pytest.raises(InputError, match="rows of embeddings"):
        huggingface.write_hf_folder(tiny.model(family), small, tmp_path)
    assert not [*tmp_path.iterdir()]
