"""Training a variant's own tokenizer on its corpus, with the `tokenizers` library."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from tokenizers import (
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers import (
    Tokenizer as BackendTokenizer,
)

from lineage.data.language import is_spaceless, split_words, to_lowercase, word_pattern
from lineage.errors import InputError
from lineage.tokenizers.normalization import NORMALIZERS
from lineage.tokenizers.tokenizer import (
    SPECIAL_TOKENS,
    Tokenizer,
    TokenizerConfig,
    TokenizerSettings,
    TokenizerType,
)

END_OF_WORD_SUFFIX = "</w>"
DOTS_PATTERN = r"\.{2,}|\b(?:[^\W\d_]\.){2,}"  # dots in a row, and U.S.


def train_tokenizer(
    texts: Sequence[str],
    settings: TokenizerSettings,
    *,
    tokenizer_type: TokenizerType,
    language: str,
) -> Tokenizer:
    """Train a variant's tokenizer on the corpus's training texts. The same texts give the same ids, in any process.

    Raises InputError where no word is frequent enough.
    """
    if settings.normalizer:
        texts = [NORMALIZERS[settings.normalizer](text).text for text in texts]
    if tokenizer_type == "word":
        tokenizer = _train_words(texts, settings, language)
    elif tokenizer_type == "byte_bpe":
        tokenizer = _train_byte_bpe(texts, settings)
    else:
        tokenizer = (
            _train_bpe(texts, settings, language)
            if tokenizer_type == "bpe"
            else _train_wordpiece(texts, settings, language)
        )
    return Tokenizer(
        tokenizer,
        TokenizerConfig(
            tokenizer_type,
            language,
            settings.max_word_bytes,
            settings.direction,
            settings.normalizer,
        ),
    )


def _train_words(
    texts: Sequence[str], settings: TokenizerSettings, language: str
) -> BackendTokenizer:
    """The most frequent words; equal counts in alphabetical order."""
    counts = Counter(
        chain.from_iterable(
            split_words(to_lowercase(text) if settings.lowercase else text, language)
            for text in texts
        )
    )
    if max(counts.values(), default=0) < settings.min_frequency:
        raise InputError(
            f"tokenizer.minimum_count: no word of the corpus is there {settings.min_frequency:,} times; lower it"
        )
    frequent = sorted(
        (w for w, n in counts.items() if n >= settings.min_frequency), key=lambda w: (-counts[w], w)
    )
    entries = [
        *SPECIAL_TOKENS["word"],
        *frequent[: settings.vocab_size - len(SPECIAL_TOKENS["word"])],
    ]
    tokenizer = BackendTokenizer(
        models.WordLevel({word: i for i, word in enumerate(entries)}, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Lowercase() if settings.lowercase else None
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(word_pattern(language)), "removed", invert=True
    )
    return tokenizer


def _train_byte_bpe(texts: Sequence[str], settings: TokenizerSettings) -> BackendTokenizer:
    """Byte-level BPE as in GPT-2: every text can be written and read back."""
    tokenizer = BackendTokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Lowercase() if settings.lowercase else None
    # A leading space makes a text's first word the same piece as anywhere else.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=max(2, settings.min_frequency),
        special_tokens=list(SPECIAL_TOKENS["byte_bpe"]),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _train_bpe(
    texts: Sequence[str], settings: TokenizerSettings, language: str
) -> BackendTokenizer:
    """BPE of characters with </w> at a word's end, as GPT-1's. Rare characters are unknown.

    Mended text (`normalise: ftfy`) keeps its accents and is cut into words by rules of our own in the place of spaCy's (don't is do n't; 3.5, U.S.
    and ... stay whole); other text as transformers' OpenAIGPTTokenizer does where it finds no ftfy: BERT's words, without accents.

    Like WordPiece's, the trainer numbers the characters that end a word (a</w>) in an order that differs between processes.
    """
    draft = _build_bpe({"<unk>": 0}, [], settings, language)
    alone, inside = _select_alphabet(
        texts,
        draft,
        max_entries=settings.vocab_size * (3 if is_spaceless(language) else 1) // 4,
        entries_per_standalone=2,
    )
    characters, marks = sorted([*alone, *inside]), list(SPECIAL_TOKENS["bpe"])
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=max(2, settings.min_frequency),
        special_tokens=[*marks, *(f"{character}{END_OF_WORD_SUFFIX}" for character in characters)],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        end_of_word_suffix=END_OF_WORD_SUFFIX,
        show_progress=False,
    )
    draft.train_from_iterator(texts, trainer)
    merges = [tuple(pair) for pair in json.loads(draft.to_str())["model"]["merges"]]
    tokenizer = _build_bpe(draft.get_vocab(), merges, settings, language)
    tokenizer.add_special_tokens(marks)
    return tokenizer


def _build_bpe(
    vocab: dict[str, int], merges: list[tuple[str, str]], settings: TokenizerSettings, language: str
) -> BackendTokenizer:
    tokenizer = BackendTokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", end_of_word_suffix=END_OF_WORD_SUFFIX)
    )
    if settings.normalizer:
        tokenizer.normalizer = normalizers.BertNormalizer(
            clean_text=False,
            handle_chinese_chars=False,
            strip_accents=False,
            lowercase=settings.lowercase,
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Split(
            Regex(f"{DOTS_PATTERN}|{word_pattern(language)}"), "removed", invert=True
        )
    else:
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix=END_OF_WORD_SUFFIX)
    return tokenizer


def _train_wordpiece(
    texts: Sequence[str], settings: TokenizerSettings, language: str
) -> BackendTokenizer:
    """WordPiece with BERT's normaliser, which isolates Chinese characters. Rare characters are unknown: see `_alphabet`.

    The trainer numbers the characters that go on a word (##a) in the order of a hash map, which differs between processes, and breaks ties by
    number. As special tokens, sorted, they have their numbers before; a tokenizer made anew from the vocabulary then holds them as plain entries.
    """
    draft = _build_wordpiece({"[UNK]": 0}, settings)
    alone, inside = _select_alphabet(
        texts, draft, max_entries=settings.vocab_size * (3 if is_spaceless(language) else 1) // 4
    )
    marks = list(SPECIAL_TOKENS["wordpiece"])
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=max(2, settings.min_frequency),
        special_tokens=[*marks, *(f"##{character}" for character in inside)],
        initial_alphabet=sorted([*alone, *inside]),
        limit_alphabet=len(alone) + len(inside),
        show_progress=False,
    )
    draft.train_from_iterator(texts, trainer)
    tokenizer = _build_wordpiece(draft.get_vocab(), settings)
    tokenizer.add_special_tokens(marks)
    return tokenizer


def _select_alphabet(
    texts: Sequence[str],
    draft: BackendTokenizer,
    *,
    max_entries: int,
    entries_per_standalone: int = 1,
) -> tuple[list[str], list[str]]:
    """The most frequent characters that `room` entries hold: those that are words of their own (Chinese), and those that also go on a word.

    The former take `own_entries` each, the latter two. Without a limit the strange characters of a few documents would fill the vocabulary.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(draft.normalizer.normalize_str(text))
    found: dict[bool, list[str]] = {True: [], False: []}
    for character in sorted(counts.keys() - {" ", "\n"}, key=lambda c: (-counts[c], c)):
        own = draft.normalizer.normalize_str(f"a{character}a") != f"a{character}a"
        max_entries -= entries_per_standalone if own else 2
        if max_entries < 0:
            break
        found[own].append(character)
    return sorted(found[True]), sorted(found[False])


def _build_wordpiece(vocab: dict[str, int], settings: TokenizerSettings) -> BackendTokenizer:
    tokenizer = BackendTokenizer(
        models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer
