"""ELMo gives the numbers of AllenNLP, and its released files are read and written.

The tests compare layers, carried state and scalar mix of two models in the released format.
"""

import functools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from lineage.errors import InputError
from lineage.families.elmo import ElmoModel
from lineage.formats.bilm import Elmo, batch_to_ids, read_bilm, read_options, write_bilm
from lineage.networks.layers.scalar_mix import ScalarMix
from tests.helpers import tiny
from tests.helpers.golden import golden_folder, golden_settings, golden_tensors

REFERENCE_MODELS = ("noclip", "clip")
assert_close = functools.partial(torch.testing.assert_close, atol=2e-5, rtol=0.0)


def load_elmo(name: str) -> Elmo:
    folder = golden_folder("elmo") / name
    return Elmo.load(folder / "options.json", folder / "weights.hdf5").eval()


def test_byte_ids_of_words_match_allennlp() -> None:
    expected = golden_tensors("elmo")
    assert {*REFERENCE_MODELS} == {*golden_settings("elmo")["model_dirs"]}, (
        "a reference model is not tested"
    )
    for name, sentences in golden_settings("elmo")["batches"].items():
        assert torch.equal(
            batch_to_ids(sentences, max_word_bytes=expected[f"ids_{name}"].shape[-1]),
            expected[f"ids_{name}"].long(),
        ), name


@pytest.mark.parametrize("name", REFERENCE_MODELS)
@torch.inference_mode()
def test_layers_and_carried_state_match_allennlp(name: str) -> None:
    model = load_elmo(name)
    expected = golden_tensors("elmo")
    for batch in golden_settings("elmo")["batches"]:
        layers, mask = model.layer_outputs(expected[f"ids_{batch}"].long())
        _check_layers(layers, mask, expected, f"{name}.warm_{batch}")
        _check_state(model, expected, f"{name}.warm_{batch}")
    cold = [key.split(".")[1] for key in expected if key.startswith(f"{name}.cold_")]
    for batch in sorted({case.removeprefix("cold_") for case in cold}):
        model.reset_state()
        layers, mask = model.layer_outputs(expected[f"ids_{batch}"].long())
        _check_layers(layers, mask, expected, f"{name}.cold_{batch}")
        _check_state(model, expected, f"{name}.cold_{batch}")
    assert (
        expected[f"{name}.warm_B.layer1"] - expected[f"{name}.cold_B.layer1"]
    ).abs().max() > 1e-3, "the carried state changes nothing, so it is not tested"


def _check_layers(
    layers: tuple[torch.Tensor, ...],
    mask: torch.Tensor,
    expected: dict[str, torch.Tensor],
    prefix: str,
) -> None:
    assert torch.equal(mask, expected[f"{prefix}.mask_bos_eos"].bool())
    assert f"{prefix}.layer{len(layers)}" not in expected
    for number, layer in enumerate(layers):
        assert_close(layer, expected[f"{prefix}.layer{number}"])


def _check_state(model: Elmo, expected: dict[str, torch.Tensor], prefix: str) -> None:
    for number, (output, cell) in enumerate(model.state):
        assert_close(torch.cat([*output], -1), expected[f"{prefix}.state_h"][number])
        assert_close(torch.cat([*cell], -1), expected[f"{prefix}.state_c"][number])


@pytest.mark.parametrize("name", REFERENCE_MODELS)
@torch.inference_mode()
def test_character_encoder_matches_allennlp(name: str) -> None:
    model = load_elmo(name)
    expected = golden_tensors("elmo")
    layers, mask = model.layer_outputs(expected["ids_A"].long())
    P = expected[f"{name}.A.char_cnn_token_embedding"].shape[-1]
    assert_close(layers[0][mask][:, :P], expected[f"{name}.A.char_cnn_token_embedding"][mask])
    assert torch.equal(layers[0][..., :P], layers[0][..., P:]), (
        "the token layer must be concatenated with itself"
    )


@pytest.mark.parametrize("name", REFERENCE_MODELS)
@torch.inference_mode()
def test_scalar_mix_matches_allennlp(name: str) -> None:
    model = load_elmo(name)
    expected = golden_tensors("elmo")
    model.scalar_mix.weights.copy_(
        torch.tensor(golden_settings("elmo")["scalar_mix_parameters"][name])
    )
    model.scalar_mix.gamma.fill_(golden_settings("elmo")["gamma"])
    mixed, mask = model(expected["ids_A"].long())
    case = f"{name}.A.mix.ln0.keep0"  # no layer norm, no sentence boundaries
    assert torch.equal(mask, expected[f"{case}.mask"].bool())
    assert_close(mixed[mask], expected[case][mask])


def test_a_new_scalar_mix_is_the_mean_of_layers_and_penalizes_raw_weights() -> None:
    layers = [torch.randn(2, 3, 4) for _ in range(3)]
    mix = ScalarMix(3)
    torch.testing.assert_close(mix(layers), torch.stack(layers).mean(0))
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([1.0, -2.0, 0.5]))
    assert float(mix.l2_penalty().detach()) == pytest.approx(5.25)
    assert not any("gamma" in name for name, _ in ScalarMix(3, gamma=False).named_parameters())


def write_tiny_model(folder: Path) -> tuple[ElmoModel, Path, Path]:
    model = tiny.model("elmo")
    write_bilm(model, folder / "options.json", folder / "weights.hdf5", max_word_bytes=50)
    return model, folder / "options.json", folder / "weights.hdf5"


def test_our_model_is_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    model, options, weights = write_tiny_model(tmp_path)
    again = read_bilm(options, weights)
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("softmax")}
    state_again = {k: v for k, v in again.state_dict().items() if not k.startswith("softmax")}
    assert state.keys() == state_again.keys()
    for name, value in state.items():
        # 1 is subtracted from the forget bias when it is written, and added when it is read.
        torch.testing.assert_close(state_again[name], value, rtol=0, atol=2e-7)
    sentences = [text.split() for text in tiny.documents()[0].split(" . ")[:3]]
    tokenizer = tiny.tokenizer("elmo")
    batch = tokenizer.collate([tokenizer.encode(" ".join(words)) for words in sentences])
    with torch.inference_mode():
        before = model.eval().encode(batch)
        layers, mask = Elmo(again).eval().layer_outputs(batch_to_ids(sentences))
    assert torch.equal(mask, batch.mask_BT)
    for expected, actual in zip(before, layers, strict=True):
        torch.testing.assert_close(expected[mask], actual[mask], atol=1e-5, rtol=1e-5)


def dataset_names(file: h5py.File) -> list[str]:
    names: list[str] = []
    file.visititems(lambda key, item: names.append(key) if isinstance(item, h5py.Dataset) else None)
    return names


@pytest.mark.parametrize("name", REFERENCE_MODELS)
def test_reading_and_writing_gives_the_same_file(name: str, tmp_path: Path) -> None:
    folder = golden_folder("elmo") / name
    _, max_word_bytes = read_options(folder / "options.json")
    write_bilm(
        read_bilm(folder / "options.json", folder / "weights.hdf5"),
        tmp_path / "options.json",
        tmp_path / "weights.hdf5",
        max_word_bytes=max_word_bytes,
    )
    with (
        h5py.File(folder / "weights.hdf5") as read_file,
        h5py.File(tmp_path / "weights.hdf5") as written_file,
    ):
        names = dataset_names(read_file)
        assert names and dataset_names(written_file) == names
        for key in names:
            value = read_file[key][...]
            tolerance = 0.0
            if key.endswith("LSTMCell/B"):
                # 1 is added to the cells' biases and subtracted again, and both round.
                tolerance = np.spacing(np.abs(value).max() + np.float32(1))
            np.testing.assert_allclose(
                written_file[key][...], value, rtol=0, atol=tolerance, err_msg=key
            )
    before = json.loads((folder / "options.json").read_text())
    after = json.loads((tmp_path / "options.json").read_text())
    assert before == after


def change_options(options: Path, block: str, **changes: Any) -> None:
    """Change keys of a block of options.json."""
    tree = json.loads(options.read_text())
    tree[block] |= changes
    options.write_text(json.dumps(tree))


def break_file(weights: Path, defect: str) -> None:
    with h5py.File(weights, "a") as file:
        if defect == "missing":
            del file["CNN_proj/b_proj"]
        elif defect == "extra":
            file["RNN_0/surprise"] = np.zeros(3, np.float32)
        elif defect == "shape":
            del file["char_embed"]
            file["char_embed"] = np.zeros((261, 3), np.float32)
        elif defect == "vast":  # Its values are never written, so the file is small.
            del file["char_embed"]
            file.create_dataset("char_embed", shape=(10**9, 10**6), dtype="f4", chunks=(1024, 1024))
        elif defect == "nan":
            file["CNN_proj/b_proj"][0] = np.nan
        elif defect == "text":
            del file["char_embed"]
            file["char_embed"] = np.full((261, 5), b"x")
        else:
            move_array_elsewhere(file, defect, weights.with_name("numbers"))


def move_array_elsewhere(file: h5py.File, defect: str, data_path: Path) -> None:
    """Put CNN_proj/b_proj elsewhere, in one of HDF5's five ways."""
    shape = file["CNN_proj/b_proj"].shape
    del file["CNN_proj/b_proj"]
    if defect == "link":
        file["CNN_proj/b_proj"] = h5py.ExternalLink("/etc/hostname", "x")
    elif defect == "soft link":
        file["CNN_proj/b_proj"] = h5py.SoftLink("/CNN_high_0/b_carry")
    elif defect == "external":
        data_path.write_bytes(bytes(4 * shape[0]))
        file.create_dataset(
            "CNN_proj/b_proj", shape=shape, dtype="f4", external=[(str(data_path), 0, 4 * shape[0])]
        )
    elif defect == "virtual":
        layout = h5py.VirtualLayout(shape=shape, dtype="f4")
        # There is no such file, so its values would be zeros.
        layout[:] = h5py.VirtualSource(str(data_path), "x", shape=shape)
        file.create_virtual_dataset("CNN_proj/b_proj", layout)
    else:
        file["CNN_proj/b_proj"] = h5py.Empty("f4")


@pytest.mark.parametrize(("defect", "message"), [
    ("missing", "CNN_proj/b_proj is missing"), ("extra", "RNN_0/surprise has no place"), ("shape", r"char_embed is of shape \(261, 3\)"),
    ("text", "char_embed holds"), ("vast", r"char_embed is of shape \(1000000000, 1000000\)"),
    ("nan", "CNN_proj/b_proj holds values that are not finite"), ("link", "CNN_proj/b_proj is a link"),
    *((defect, "CNN_proj/b_proj is a link, or empty, or its numbers lie in another file") for defect in ("soft link", "external", "virtual", "empty")),
])  # fmt: skip
def test_weights_that_do_not_fit_are_rejected_by_tensor_name(
    tmp_path: Path, defect: str, message: str
) -> None:
    _, options, weights = write_tiny_model(tmp_path)
    break_file(weights, defect)
    with pytest.raises(InputError, match=message):
        read_bilm(options, weights)


@pytest.mark.parametrize(("block", "changes", "message"), [
    ("lstm", {"dim": 10**10}, r"weights\.hdf5: the tensor RNN_0/.*/LSTMCell/W_0 is of shape .* requires \(\d+, 40000000000\)"),
    ("lstm", {"dim": 3 * 10**9, "projection_dim": 3 * 10**9}, r"options\.json: its sizes ask for a tensor of more numbers than can be counted"),
    ("lstm", {"dim": 2**30, "projection_dim": 2**28}, r"options\.json: its sizes ask for a tensor of more"),  # in the file, two matrices are concatenated
    ("char_cnn", {"embedding": {"dim": 10**12}}, r"weights\.hdf5: the tensor char_embed is of shape .* requires \(261, 1000000000000\)"),
])  # fmt: skip
def test_options_with_sizes_too_large_for_memory_are_rejected(
    tmp_path: Path, block: str, changes: dict[str, Any], message: str
) -> None:
    _, options, weights = write_tiny_model(tmp_path)
    change_options(options, block, **changes)
    with pytest.raises(InputError, match=message):
        read_bilm(options, weights)


def test_a_file_with_arrays_too_large_for_memory_is_rejected(tmp_path: Path) -> None:
    """The options ask for such sizes; no values are ever written, so the file is small."""
    _, options, weights = write_tiny_model(tmp_path)
    vast = 10**13
    change_options(options, "char_cnn", embedding={"dim": vast})
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


def test_files_of_another_kind_are_rejected(tmp_path: Path) -> None:
    _, options, weights = write_tiny_model(tmp_path)
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
    for text, message in (
        ("{", "not a JSON"),
        ("[]", "'lstm' is missing"),
        ('{"lstm": {"dim": 4}}', "'projection_dim' is missing"),
        ('{"lstm": {"dim": 4, "projection_dim": 0, "n_layers": 2}}', "projection_dim is 0"),
    ):
        (tmp_path / "broken.json").write_text(text)
        with pytest.raises(InputError, match=message):
            read_bilm(tmp_path / "broken.json", weights)
    change_options(options, "lstm", dim=7)
    with pytest.raises(InputError, match=r"LSTMCell/.* is of shape"):
        read_bilm(options, weights)


@pytest.mark.parametrize(("change", "message"), [
    ({"max_characters_per_token": 10**12}, "max_characters_per_token is 1000000000000; it is from"),
    ({"embedding": {"dim": -1}}, "a whole number 'dim' above zero"),
    ({"max_characters_per_token": 1}, "max_characters_per_token is 1"), ({"embedding": {"dim": True}}, "a whole number 'dim'"),
    ({"filters": [[1, 2, 3]]}, r"filters is a list of \[width, number\]"), ({"filters": []}, "filters is a list"),
])  # fmt: skip
def test_invalid_options_are_rejected_by_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    _, options, weights = write_tiny_model(tmp_path)
    change_options(options, "char_cnn", **change)
    with pytest.raises(InputError, match=message):
        read_bilm(options, weights)


def test_ids_of_any_integer_type_are_accepted(tmp_path: Path) -> None:
    elmo = Elmo(tiny.model("elmo").eval())  # type: ignore[arg-type]
    ids = batch_to_ids([["a", "word"]])
    expected, _ = elmo(ids)
    elmo.reset_state()
    assert torch.equal(elmo(ids.int())[0], expected)


def test_a_model_rejects_ids_with_more_bytes_per_word_than_it_reads(tmp_path: Path) -> None:
    model = tiny.model("elmo")
    write_bilm(model, tmp_path / "options.json", tmp_path / "weights.hdf5", max_word_bytes=20)
    short_model = Elmo.load(tmp_path / "options.json", tmp_path / "weights.hdf5").eval()
    words = [["a-word-of-thirty-letters-or-more", "b"]]
    assert short_model(batch_to_ids(words, max_word_bytes=20))[0].shape[:2] == (1, 2)
    with pytest.raises(InputError, match="50 bytes a word, and the model 20"):
        short_model(batch_to_ids(words))
