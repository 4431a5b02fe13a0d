"""Errors whose reason the user can read, and how much of the user's data a message may show."""

import errno
import re
import traceback
import unicodedata
from collections.abc import Callable, Sequence

OUT_OF_MEMORY = re.compile("out of memory|can't allocate memory|bad_alloc", re.IGNORECASE)
NO_THREAD = "can't start new thread"  # Python's words, in a RuntimeError
MAX_SHOWN_WIDTH = 20  # characters
MAX_SHOWN_NUMBERS = 5  # of rows or lines with the same error
UNSPACED_SCRIPTS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"
)  # Thai, Lao, Burmese, Khmer
MAX_NAME_WORDS = 4  # five in a row may be half a sentence


class InputError(ValueError):
    """Bad configuration or input: exit code 2, without traceback.

    The message names the problem, its place, and the remedy.
    """


class DamagedError(InputError):
    """An output of a stage whose bytes are no longer those that the stage wrote."""

    def __init__(self, path: object) -> None:
        super().__init__(
            f"{path}: it is damaged: its bytes are not those that its stage wrote; run `lineage "
            "run`, which removes it and makes it again"
        )


class EvaluationError(RuntimeError):
    """A result that fails for good, such as a non-finite loss: it becomes a row with its reason.

    Out of memory, a full disk or a kill are different: a later run tries again.
    """


def describe_shortage(error: BaseException) -> str | None:
    """Say what the machine has run out of, and what to do; None if the error has another reason."""
    goes_on = "the same command goes on where it was"
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full; free some space, and {goes_on}"
    if number in (errno.EMFILE, errno.ENFILE):
        return f"too many files are open; raise the limit (`ulimit -n 4096`), and {goes_on}"
    # torch raises RuntimeError for a processor's memory, and a class of its own for a GPU's.
    is_memory = isinstance(error, MemoryError) or number == errno.ENOMEM
    if is_memory or OUT_OF_MEMORY.search(str(error)):
        return (
            "the memory is full; free some, or run one stage at a time with --jobs 1, and "
            f"{goes_on}"
        )
    if str(error) == NO_THREAD:
        return (
            "no further thread can be started; free memory, or raise the limit (`ulimit -u`), and "
            f"{goes_on}"
        )
    return None


def describe_failure(error: BaseException) -> str:
    """Describe an error in Markdown: its sentence, or its type and where it was raised."""
    if isinstance(error, InputError | EvaluationError):
        return str(error)
    message = shorten_value(error)
    lines = ["```", f"{type(error).__name__}: {message}" if message else type(error).__name__]
    lines += [
        f"{frame.filename}:{frame.lineno} in {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    return "\n".join([*lines, "```"])


def shorten_value(value: object) -> str:
    """Shorten a user's value for a message, since it may be private text.

    Twenty characters are shown, or four of a wide script.
    """
    text = " ".join(str(value).splitlines())  # a message is one line
    width_left = MAX_SHOWN_WIDTH
    for position, character in enumerate(text):
        width_left -= display_width(character)
        if width_left < 0:
            return f"{text[:position]}..."
    return text


def list_numbers(numbers: Sequence[int]) -> str:
    """Return the first numbers of rows or lines: `5, 9, 16, 17, 24, ...`."""
    more = ", ..." if len(numbers) > MAX_SHOWN_NUMBERS else ""
    return ", ".join(map(str, numbers[:MAX_SHOWN_NUMBERS])) + more


def is_short_name(text: str, *, is_label: bool = False) -> bool:
    """Return whether a group or label is short enough to be shown in full.

    That is a text that `shorten_value` leaves whole, or a few words in a script with spaces. A
    label stands for many items, so it may have twice as many wide characters.
    """
    width = display_width(text)
    if width <= MAX_SHOWN_WIDTH:
        return True
    if UNSPACED_SCRIPTS.search(text) or len(text.split()) > MAX_NAME_WORDS:
        return False
    has_wide_characters = width != len(text)
    return not has_wide_characters or (is_label and width <= 2 * MAX_SHOWN_WIDTH)


def display_width(text: str) -> int:
    """Measure how much a text can say, in characters: a wide one counts as five."""
    num_wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + 4 * num_wide


class RowError(InputError):
    """The same error in some rows. Its arguments: the place, the rows from 0, and the problem."""

    def __str__(self) -> str:
        _, rows, _ = self.args
        which = "the row" if len(rows) == 1 else "these rows"
        return f"{self.describe()}; correct the data, or remove {which}"

    def describe(self) -> str:
        """Return the message without what to do."""
        where, rows, problem = self.args
        if len(rows) == 1:
            return f"{where}: row {rows[0] + 1}: {problem}"
        shown = list_numbers([row + 1 for row in rows])
        return f"{where}: {len(rows):,} rows ({shown}): {problem}"

    def renumber(self, number: Callable[[int], int]) -> "RowError":
        where, rows, problem = self.args
        return RowError(where, [number(row) for row in rows], problem)


def row_error(row: int, where: str, problem: str) -> RowError:
    """Return an error that names a row of the user's data; the message counts rows from 1."""
    return RowError(where, [row], problem)


def check_rows(valid: Sequence[bool], where: str, problem: str) -> None:
    """Raise one InputError that names all rows that are not valid."""
    if not all(valid):
        raise RowError(where, [row for row, is_valid in enumerate(valid) if not is_valid], problem)
