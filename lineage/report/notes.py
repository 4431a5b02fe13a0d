"""Put the notes on results in words."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from lineage.results import Note, NoteKind

UNSUPPORTED = {
    "sentence_probability": "no language model: it gives a sentence no probability",
    "translator": "it has no decoder to write a translation with",
    "summarizer": "it has no decoder to write a summary with",
    "continuation": "it cannot write on from a text: it does not predict each token from those before",
}
NO_MAJORITY = {
    "word_vectors": "there are no labels, so none is the commonest",
    "translator": "translations are not labels, so none is the commonest",
    "summarizer": "summaries are not labels, so none is the commonest",
}
UNKNOWN_WORDS_EFFECT = {
    "mean_cosine": "each was given the mean cosine of the others",
    "wrong": "none of them is right",
}
TRUNCATION_EFFECT = {"cut": "cut", "read_in_parts": "read in parts"}


def format_notes(notes: Iterable[Note]) -> str:
    """Return notes in words, separated by semicolons."""
    return "; ".join(format_note(note) for note in notes)


def format_note(note: Note) -> str:
    """Return one note in words."""
    return _FORMATTERS[note.kind](note.value)


def _format_trial(value: Any) -> str:
    """Return `trial 1 (of 3, from 0): learning_rate 0.02, epochs 12`."""
    settings = [
        name if number is True else f"{name} {number:g}"
        for name, number in value["settings"].items()
    ]
    return f"trial {value['number']} (of {value['of']}, from 0): {', '.join(settings)}"


def _format_member(value: Any) -> str:
    return f"{value['model']}: {format_notes(Note(**note) for note in value['notes'])}"


def _format_constant_cosines(value: Any) -> str:
    if isinstance(value, list):
        groups = f"group {', '.join(map(repr, value))}"
    else:
        groups = f"{value['count']} of its {value['of']} groups"
    return (
        f"every pair of {groups} has the same cosine, as where hardly any of its words is known: "
        "no correlation exists"
    )


def _format_truncated(value: Any) -> str:
    percent = "under 1%" if value["share"] < 0.005 else f"{value['share']:.0%}"
    return (
        f"{percent} of the texts were longer than {value['max_positions']} tokens, and "
        f"{TRUNCATION_EFFECT[value['effect']]}"
    )


def _format_unknown_words(value: Any) -> str:
    return (
        f"{value['count']} of {value['of']} {value['items']} have a word that the model does not "
        f"know; {UNKNOWN_WORDS_EFFECT[value['effect']]}"
    )


def _format_unfinished(nouns: str, value: Any) -> str:
    return (
        f"{value['share']:.1%} of the {nouns} had not ended after "
        f"{value['max_new_tokens']} tokens, and were cut"
    )


_FORMATTERS: dict[NoteKind, Callable[[Any], str]] = {
    "error": str,
    "failed_trial": lambda value: f"{_format_trial(value)}: {value['error']}",
    "failed_model": lambda value: f"{value['model']}: {value['error']}",
    "member": _format_member,
    "no_split": lambda split: f"the task has no {split} split",
    "unsupported": UNSUPPORTED.__getitem__,
    "no_training_labels": lambda _: "there are no training labels to fit a classifier to",
    "no_majority": NO_MAJORITY.__getitem__,
    "undefined_metric": lambda metric: (
        f"{metric.replace('_', ' ')} is not defined where all labels are the same, or all predictions"
    ),
    "constant_cosines": _format_constant_cosines,
    "no_clean_items": lambda _: "all of its items are contaminated",
    "undefined_on_clean_items": lambda metric: f"the items that are left have no {metric}",
    "trial": _format_trial,
    "not_converged": lambda count: (
        f"the fit had not converged within {count} iterations; a stronger penalty (a higher l2, a "
        "lower tfidf_C) needs fewer"
    ),
    "truncated": _format_truncated,
    "answers_cut_off": lambda value: (
        f"{value['count']} of {value['of']} questions have no answer within max_words, and are "
        "scored all the same"
    ),
    "unreadable_words": lambda count: (
        f"{count} words have no token that is read: zeros stand for them"
    ),
    "unknown_words": _format_unknown_words,
    "bleu_signature": str,
    "rouge_signature": str,
    "unfinished_translations": partial(_format_unfinished, "translations"),
    "unfinished_summaries": partial(_format_unfinished, "summaries"),
    "no_improvement": lambda _: "adaptation did not lower it on held-out target text",
    "not_lossless": lambda _: "not lossless: the tokenizer cannot restore every text",
}
