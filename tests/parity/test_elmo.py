"""ELMo against AllenNLP: layers, carried state and scalar mix of two released-format models; and the files read and written."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lineage.errors import InputError
from lineage.formats.bilm import Elmo, batch_to_ids, read_bilm, read_options, write_bilm
from lineage.models.elmo import ElmoModel
from lineage.models.layers.scalar_mix import ScalarMix
from tests import tiny
from tests.golden import golden

MODELS = ("noclip", "clip")
NEAR = {"atol": 2e-5, "rtol": 0.0}


def elmo(name: str, **how: bool) -> Elmo:
    folder = golden("elmo") / name
    return Elmo.load(folder / "options.json", folder / "weights.hdf5", **how).eval()


def numbers() -> dict[str, torch.Tensor]:
    return load_file(golden("elmo") / "cases.safetensors")


def facts() -> dict:
    return json.loads((golden("elmo") / "config.json").read_text())


def test_words_become_the_same_byte_ids() -> None:
    found = numbers()
    assert {*MODELS} == {*facts()["model_dirs"]}, "else a model is not tried"
    for name, sentences in facts()["batches"].items():
        assert torch.equal(
            batch_to_ids(sentences, max_word_bytes=found[f"ids_{name}"].shape[-1]),
            found[f"ids_{name}"].long(),
        ), name


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_layers_and_the_carried_state_are_those_of_allennlp(name: str) -> None:
    model, found = elmo(name), numbers()
    for batch in facts()["batches"]:
        layers, mask = model.layer_outputs(found[f"ids_{batch}"].long())
        _layers_match(layers, mask, found, f"{name}.warm_{batch}")
        _state_matches(model, found, f"{name}.warm_{batch}")
    for batch in sorted(
        {
            key.split(".")[1].removeprefix("cold_")
            for key in found
            if key.startswith(f"{name}.cold_")
        }
    ):
        model.reset_state()
        layers, mask = model.layer_outputs(found[f"ids_{batch}"].long())
        _layers_match(layers, mask, found, f"{name}.cold_{batch}")
        _state_matches(model, found, f"{name}.cold_{batch}")
    assert (found[f"{name}.warm_B.layer1"] - found[f"{name}.cold_B.layer1"]).abs().max() > 1e-3, (
        "else the state is not tried"
    )


def _layers_match(
    layers: tuple[torch.Tensor, ...], mask: torch.Tensor, found: dict[str, torch.Tensor], where: str
) -> None:
    assert torch.equal(mask, found[f"{where}.mask_bos_eos"].bool())
    assert f"{where}.layer{len(layers)}" not in found
    for number, layer in enumerate(layers):
        torch.testing.assert_close(layer, found[f"{where}.layer{number}"], **NEAR)


def _state_matches(model: Elmo, found: dict[str, torch.Tensor], where: str) -> None:
    assert model.state is not None
    for number, (output, cell) in enumerate(model.state):
        torch.testing.assert_close(
            torch.cat([*output], -1), found[f"{where}.state_h"][number], **NEAR
        )
        torch.testing.assert_close(
            torch.cat([*cell], -1), found[f"{where}.state_c"][number], **NEAR
        )


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_the_character_encoder_is_that_of_allennlp(name: str) -> None:
    model, found = elmo(name), numbers()
    layers, mask = model.layer_outputs(found["ids_A"].long())
    P = found[f"{name}.A.char_cnn_token_embedding"].shape[-1]
    torch.testing.assert_close(
        layers[0][mask][:, :P], found[f"{name}.A.char_cnn_token_embedding"][mask], **NEAR
    )
    assert torch.equal(layers[0][..., :P], layers[0][..., P:]), (
        "the token layer is joined with itself"
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("boundaries", [False, True])
@torch.inference_mode()
def test_the_scalar_mix_is_that_of_allennlp(name: str, layer_norm: bool, boundaries: bool) -> None:
    model, found = elmo(name, layer_norm=layer_norm, keep_sentence_boundaries=boundaries), numbers()
    model.scalar_mix.weights.copy_(torch.tensor(facts()["scalar_mix_parameters"][name]))
    assert model.scalar_mix.gamma is not None
    model.scalar_mix.gamma.fill_(facts()["gamma"])
    mixed, mask = model(found["ids_A"].long())
    where = f"{name}.A.mix.ln{int(layer_norm)}.keep{int(boundaries)}"
    assert torch.equal(mask, found[f"{where}.mask"].bool())
    torch.testing.assert_close(mixed[mask], found[where][mask], **NEAR)


def test_a_fresh_mix_is_the_mean_of_the_layers_and_its_penalty_is_on_raw_weights() -> None:
    layers = [torch.randn(2, 3, 4) for _ in range(3)]
    mix = ScalarMix(3)
    torch.testing.assert_close(mix(layers), torch.stack(layers).mean(0))
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([1.0, -2.0, 0.5]))
    assert float(mix.l2_penalty().detach()) == pytest.approx(5.25)
    assert not any("gamma" in name for name, _ in ScalarMix(3, gamma=False).named_parameters())


def written(folder: Path) -> tuple[ElmoModel, Path, Path]:
    model = tiny.model("elmo")
    assert isinstance(model, ElmoModel)
    write_bilm(model, folder / "options.json", folder / "weights.hdf5", max_word_bytes=50)
    return model, folder / "options.json", folder / "weights.hdf5"


def test_a_model_of_ours_is_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    model, options, weights = written(tmp_path)
    again = read_bilm(options, weights)
    ours = {k: v for k, v in model.state_dict().items() if not k.startswith("softmax")}
    theirs = {k: v for k, v in again.state_dict().items() if not k.startswith("softmax")}
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(
            theirs[name], value, rtol=0, atol=2e-7
        )  # the forget bias has 1 taken away and given back
    sentences = [text.split() for text in tiny.documents()[0].split(" . ")[:3]]
    reader = tiny.reader("elmo")
    batch = reader.collate([reader.encode(" ".join(words)) for words in sentences])
    with torch.inference_mode():
        before = model.eval().encode(batch)
        layers, mask = Elmo(again, carry_state=False).eval().layer_outputs(batch_to_ids(sentences))
    assert torch.equal(mask, batch.mask_BT)
    for one, other in zip(before, layers, strict=True):
        torch.testing.assert_close(one[mask], other[mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_what_was_read_and_written_again_is_the_same_file(name: str, tmp_path: Path) -> None:
    folder = golden("elmo") / name
    _, size = read_options(folder / "options.json")
    write_bilm(
        read_bilm(folder / "options.json", folder / "weights.hdf5"),
        tmp_path / "options.json",
        tmp_path / "weights.hdf5",
        max_word_bytes=size,
    )
    with h5py.File(folder / "weights.hdf5") as theirs, h5py.File(tmp_path / "weights.hdf5") as ours:
        names: list[str] = []
        theirs.visititems(
            lambda key, item: names.append(key) if isinstance(item, h5py.Dataset) else None
        )
        again: list[str] = []
        ours.visititems(
            lambda key, item: again.append(key) if isinstance(item, h5py.Dataset) else None
        )
        assert names and again == names
        for key in names:  # the same bits, but for the cells' biases: 1 is added and taken away, and each rounds by half a place at most
            value = theirs[key][...]
            place = (
                np.spacing(np.abs(value).max() + np.float32(1))
                if key.endswith("LSTMCell/B")
                else 0.0
            )
            np.testing.assert_allclose(ours[key][...], value, rtol=0, atol=place, err_msg=key)
    before, after = (
        json.loads((place / "options.json").read_text()) for place in (folder, tmp_path)
    )
    assert before == after


def break_file(weights: Path, how: str) -> None:
    with h5py.File(weights, "a") as file:
        if how == "missing":
            del file["CNN_proj/b_proj"]
        elif how == "extra":
            file["RNN_0/surprise"] = np.zeros(3, np.float32)
        elif how == "shape":
            del file["char_embed"]
            file["char_embed"] = np.zeros((261, 3), np.float32)
        elif how == "vast":  # whose numbers were never written, so that the file is small
            del file["char_embed"]
            file.create_dataset("char_embed", shape=(10**9, 10**6), dtype="f4", chunks=(1024, 1024))
        elif how == "nan":
            file["CNN_proj/b_proj"][0] = np.nan
        elif how == "text":
            del file["char_embed"]
            file["char_embed"] = np.full((261, 5), b"x")
        else:
            break_place(file, how, weights.with_name("numbers"))


def break_place(file: h5py.File, how: str, numbers: Path) -> None:
    """Put CNN_proj/b_proj elsewhere: HDF5 has five ways to say that an array is not here."""
    shape = file["CNN_proj/b_proj"].shape
    del file["CNN_proj/b_proj"]
    if how == "link":
        file["CNN_proj/b_proj"] = h5py.ExternalLink("/etc/hostname", "x")
    elif how == "soft link":
        file["CNN_proj/b_proj"] = h5py.SoftLink("/CNN_high_0/b_carry")
    elif how == "external":
        numbers.write_bytes(bytes(4 * shape[0]))
        file.create_dataset(
            "CNN_proj/b_proj", shape=shape, dtype="f4", external=[(str(numbers), 0, 4 * shape[0])]
        )
    elif how == "virtual":
        layout = h5py.VirtualLayout(shape=shape, dtype="f4")
        layout[:] = h5py.VirtualSource(
            str(numbers), "x", shape=shape
        )  # no such file: its numbers would be zeros
        file.create_virtual_dataset("CNN_proj/b_proj", layout)
    else:
        file["CNN_proj/b_proj"] = h5py.Empty("f4")


@pytest.mark.parametrize(("how", "said"), [
    ("missing", "CNN_proj/b_proj is missing"), ("extra", "RNN_0/surprise has no place"), ("shape", r"char_embed is of shape \(261, 3\)"),
    ("text", "char_embed holds"), ("vast", r"char_embed is of shape \(1000000000, 1000000\)"),
    ("nan", "CNN_proj/b_proj holds values that are not finite"), ("link", "CNN_proj/b_proj is a link"),
    *((how, "CNN_proj/b_proj is a link, or empty, or its numbers lie in another file") for how in ("soft link", "external", "virtual", "empty")),
])  # fmt: skip
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path, how: str, said: str) -> None:
    _, options, weights = written(tmp_path)
    break_file(weights, how)
    with pytest.raises(InputError, match=said):
        read_bilm(options, weights)


@pytest.mark.parametrize(("block", "changes", "said"), [
    ("lstm", {"dim": 10**10}, r"weights\.hdf5: the tensor RNN_0/.*/LSTMCell/W_0 is of shape .* requires \(\d+, 40000000000\)"),
    ("lstm", {"dim": 3 * 10**9, "projection_dim": 3 * 10**9}, r"options\.json: its sizes ask for a tensor of more numbers than can be counted"),
    ("lstm", {"dim": 2**30, "projection_dim": 2**28}, r"options\.json: its sizes ask for a tensor of more"),  # in the file, where two are joined
    ("char_cnn", {"embedding": {"dim": 10**12}}, r"weights\.hdf5: the tensor char_embed is of shape .* requires \(261, 1000000000000\)"),
])  # fmt: skip
def test_options_of_sizes_that_no_memory_holds_are_refused(
    tmp_path: Path, block: str, changes: dict[str, Any], said: str
) -> None:
    _, options, weights = written(tmp_path)
    tree = json.loads(options.read_text())
    tree[block] |= changes
    options.write_text(json.dumps(tree))
    with pytest.raises(InputError, match=said):
        read_bilm(options, weights)


def test_a_file_whose_numbers_no_memory_holds_is_refused(tmp_path: Path) -> None:
    """Its options ask for them, and none was ever written, so that the file is small."""
    _, options, weights = written(tmp_path)
    tree, vast = json.loads(options.read_text()), 10**13
    tree["char_cnn"]["embedding"]["dim"] = vast
    options.write_text(json.dumps(tree))
    with h5py.File(weights, "a") as file:
        for name in (
            "char_embed",
            *(f"CNN/{name}" for name in file["CNN"] if name.startswith("W_")),
        ):
            shape = [*file[name].shape]
            shape[1 if name == "char_embed" else 2] = vast
            del file[name]
            file.create_dataset(name, shape=shape, dtype="f4", chunks=(1,) * len(shape))
    with pytest.raises(InputError, match=r"weights\.hdf5: Unable to allocate"):
        read_bilm(options, weights)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    _, options, weights = written(tmp_path)
    (tmp_path / "pickle").write_bytes(b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.")
    with pytest.raises(InputError, match="pickle: not an HDF5 file"):
        read_bilm(options, tmp_path / "pickle")
    with pytest.raises(InputError, match="nowhere: there is no such file"):
        read_bilm(options, tmp_path / "nowhere")
    damaged = bytearray(weights.read_bytes())
    damaged[200:] = bytes(len(damaged) - 200)
    (tmp_path / "damaged.hdf5").write_bytes(damaged)
    with pytest.raises(InputError, match=r"damaged\.hdf5: "):
        read_bilm(options, tmp_path / "damaged.hdf5")
    for text, said in (
        ("{", "not a JSON"),
        ("[]", "'lstm' is missing"),
        ('{"lstm": {"dim": 4}}', "'projection_dim' is missing"),
        ('{"lstm": {"dim": 4, "projection_dim": 0, "n_layers": 2}}', "projection_dim is 0"),
    ):
        (tmp_path / "broken.json").write_text(text)
        with pytest.raises(InputError, match=said):
            read_bilm(tmp_path / "broken.json", weights)
    shutil.copy(options, tmp_path / "other.json")
    tree = json.loads(options.read_text())
    tree["lstm"]["dim"] += 1
    (tmp_path / "other.json").write_text(json.dumps(tree))
    with pytest.raises(InputError, match=r"LSTMCell/.* is of shape"):
        read_bilm(tmp_path / "other.json", weights)


@pytest.mark.parametrize(("change", "said"), [
    ({"max_characters_per_token": 10**12}, "max_characters_per_token is 1000000000000; it is from"),
    ({"embedding": {"dim": -1}}, "a whole number 'dim' above zero"),
    ({"max_characters_per_token": 1}, "max_characters_per_token is 1"), ({"embedding": {"dim": True}}, "a whole number 'dim'"),
    ({"filters": [[1, 2, 3]]}, r"filters is a list of \[width, number\]"), ({"filters": []}, "filters is a list"),
])  # fmt: skip
def test_odd_options_are_refused_by_name(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    _, options, weights = written(tmp_path)
    tree = json.loads(options.read_text())
    tree["char_cnn"] |= change
    options.write_text(json.dumps(tree))
    with pytest.raises(InputError, match=said):
        read_bilm(options, weights)


def test_ids_of_any_whole_type_are_read(tmp_path: Path) -> None:
    elmo = Elmo(tiny.model("elmo").eval(), carry_state=False)  # type: ignore[arg-type]
    ids = batch_to_ids([["a", "word"]])
    assert torch.equal(elmo(ids)[0], elmo(ids.int())[0])


def test_a_model_of_fewer_bytes_a_word_refuses_ids_of_more(tmp_path: Path) -> None:
    model = tiny.model("elmo")
    assert isinstance(model, ElmoModel)
    write_bilm(model, tmp_path / "options.json", tmp_path / "weights.hdf5", max_word_bytes=20)
    short = Elmo.load(tmp_path / "options.json", tmp_path / "weights.hdf5").eval()
    words = [["a-word-of-thirty-letters-or-more", "b"]]
    assert short(batch_to_ids(words, max_word_bytes=20))[0].shape[:2] == (1, 2)
    with pytest.raises(InputError, match="50 bytes a word, and the model 20"):
        short(batch_to_ids(words))
