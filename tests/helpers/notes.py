"""Notes of rows, in words."""

from lineage.report.notes import format_notes
from lineage.results import notes_from_json


def format_reason(text: str) -> str:
    """Return the column `reason` of a row in words."""
    return format_notes(notes_from_json(text))
