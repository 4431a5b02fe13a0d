"""A public checkpoint's own tokenizer, with the marks that it puts round one text and two."""

import json
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import pre_tokenizers

from lineage.errors import InputError
from lineage.models.public_folders import CheckpointInfo, inspect_checkpoint, read_json_mapping
from lineage.tokenizers.tokenizer import SpecialTokenTemplate, Tokenizer, TokenizerConfig


def load_public_tokenizer(folder: Path, *, language: str) -> Tokenizer:
    """The folder's own tokenizer, with the marks that it puts round one text and two. Raises InputError where they are not its model's."""
    info, path = inspect_checkpoint(folder), folder / "tokenizer.json"
    try:
        backend = BackendTokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library has no other class of error
        raise InputError(f"{path}: not a tokenizer: {error}; save it again") from None
    backend.no_truncation()  # how long a text may be is the study's affair
    backend.no_padding()
    vocab_size, ((first, between, last), second) = (
        info.hf_config["vocab_size"],
        _special_tokens(backend, path),
    )
    backend.post_processor = None  # its marks are known; it would also trim the spans, so that a piece that is a space seemed to be a mark
    if not info.causal and not (first and last):
        raise InputError(
            f"{path}: puts no marks round a text, which a {info.hf_config['model_type']} has been pretrained with; save it with its "
            "post_processor"
        )
    begin = _bos_token_id(folder, info, backend)
    if info.causal and not first and begin is not None:
        first, between = (
            (begin,),
            between or (begin,),
        )  # as it stood between the texts of pretraining; without it the first piece has no probability
    pad = info.hf_config.get("pad_token_id")
    pad = pad if isinstance(pad, int) and 0 <= pad < vocab_size else 0
    template = SpecialTokenTemplate(
        first,
        between,
        last,
        pad,
        _mask_token_id(folder, info, backend),
        _unk_token_id(backend),
        second,
    )
    byte_level = backend.normalizer is None and isinstance(
        backend.pre_tokenizer, pre_tokenizers.ByteLevel
    )
    public_tokenizer = Tokenizer(
        backend, TokenizerConfig("pretrained", language, 50, "forward", None, template, byte_level)
    )
    check_token_ids(
        public_tokenizer, info, tokenizer_place=str(path), template_place=f"{path}: post_processor"
    )
    return public_tokenizer


def check_token_ids(
    public_tokenizer: Tokenizer, info: CheckpointInfo, *, tokenizer_place: str, template_place: str
) -> None:
    """Raise InputError where the tokenizer, or a key of the frame, each with its place for the message, has an id beyond the model's rows."""
    rows, found = (
        info.hf_config["vocab_size"],
        {
            tokenizer_place: [
                *public_tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True).values()
            ]
        },
    )
    found |= {
        f"{template_place}.{key}": [*marks] if isinstance(marks, tuple) else [marks or 0]
        for key, marks in vars(public_tokenizer.special_token_template).items()
    }
    for place, ids in found.items():
        if ids and max(ids) >= rows:
            raise InputError(
                f"{place}: its ids go up to {max(ids)}, and the model has {rows} rows of embeddings; give the model's own tokenizer"
            )


def _special_tokens(
    backend: BackendTokenizer, path: Path
) -> tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], Literal[0, 1]]:
    """The ids before a text, between two and after the last, and the segment of the second, as its post-processor has them."""
    found, second = [], False
    for texts in (("a",), ("a", "a")):
        encoded = backend.encode(*texts)
        places = [i for i, mark in enumerate(encoded.special_tokens_mask) if not mark]
        if not places:
            raise InputError(f"{path}: cannot read the letter a; save the tokenizer again")
        second = encoded.type_ids[places[-1]] > 0
        inner = [i for i in range(places[0], places[-1]) if encoded.special_tokens_mask[i]]
        found.append(
            [
                tuple(encoded.ids[i] for i in some)
                for some in (range(places[0]), inner, range(places[-1] + 1, len(encoded.ids)))
            ]
        )
    (first, _, last), (first_of_two, between, last_of_two) = found
    if (first, last) != (first_of_two, last_of_two):
        raise InputError(
            f"{path}: puts other marks round two texts than round one, which cannot be read; give a tokenizer as its model's paper has it"
        )
    return (first, between, last), 1 if second else 0


def _bos_token_id(folder: Path, info: CheckpointInfo, backend: BackendTokenizer) -> int | None:
    """What stood before each text of a causal model's pretraining: the tokenizer's own mark, or config.json's where it is a mark of the tokenizer.

    A tokenizer that somebody trained anew may have a word at the id that config.json has from the library.
    """
    path, said = folder / "tokenizer_config.json", info.hf_config.get("bos_token_id")
    name = read_json_mapping(path).get("bos_token") if path.is_file() else None
    name = name.get("content") if isinstance(name, dict) else name
    marks = {
        number for number, token in backend.get_added_tokens_decoder().items() if token.special
    }
    number = backend.token_to_id(name) if isinstance(name, str) else said
    return number if isinstance(number, int) and number in marks else None


def _unk_token_id(backend: BackendTokenizer) -> int | None:
    """The piece for all that the vocabulary lacks, if it has one."""
    model = json.loads(backend.to_str())["model"]
    name, number = model.get("unk_token"), model.get("unk_id")
    return (
        backend.token_to_id(name)
        if isinstance(name, str)
        else number
        if isinstance(number, int)
        else None
    )


def _mask_token_id(folder: Path, info: CheckpointInfo, backend: BackendTokenizer) -> int | None:
    """The id of the masked word; none for a causal model."""
    if info.causal:
        return None
    path = folder / "tokenizer_config.json"
    said = read_json_mapping(path).get("mask_token") if path.is_file() else None
    name = said.get("content") if isinstance(said, dict) else said or info.model_type.mask_token
    found = backend.token_to_id(name) if isinstance(name, str) else None
    if found is None:
        raise InputError(
            f"{folder / 'tokenizer.json'}: its masked word {name!r} is missing, which a {info.hf_config['model_type']} has; save it again"
        )
    return found
