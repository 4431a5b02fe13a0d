"""The two ways in which a run ends early for a reason that its user can read."""

import re
import unicodedata

MAX_SHOWN_WIDTH = 20  # letters of a value
UNSPACED_SCRIPTS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"
)  # Thai, Lao, Burmese and Khmer
MAX_NAME_WORDS = 4  # five in a row would be half a sentence


class InputError(ValueError):
    """Bad configuration or bad input. The message says what is wrong, where, and what to do; exit code 2, no traceback."""


class EvaluationError(RuntimeError):
    """A cell of the comparison that fails for good (a non-finite loss, an empty subset): a row with its reason, exit code 0.

    Out of memory, a full disk or a kill are not of this kind: they leave nothing behind, so that a later run tries again.
    """


def shorten_value(value: object) -> str:
    """As much of a user's value as a message shows, which may turn out to be private text: 20 letters, of scripts with wide ones 4.

    Twenty letters of Chinese are a sentence.
    """
    text, width_left = " ".join(str(value).splitlines()), MAX_SHOWN_WIDTH  # a message is one line
    for place, letter in enumerate(text):
        width_left -= display_width(letter)
        if width_left < 0:
            return f"{text[:place]}..."
    return text


def is_short_name(text: str, *, is_label: bool = False) -> bool:
    """Whether a group, or a label, may be told whole: what a message shows too, or a few words in a script with spaces between words.

    A label is one of few, and each stands for many items: in wide letters it may be twice as long, eight letters of Chinese.
    """
    narrow = (
        display_width(text) == len(text)
        or (is_label and display_width(text) <= 2 * MAX_SHOWN_WIDTH)
    ) and not UNSPACED_SCRIPTS.search(text)
    return display_width(text) <= MAX_SHOWN_WIDTH or (
        narrow and len(text.split()) <= MAX_NAME_WORDS
    )


def display_width(text: str) -> int:
    """How much a text may say, in letters: a wide one says as much as five."""
    return sum(5 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
