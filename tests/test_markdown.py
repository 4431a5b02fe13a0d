"""Sections -> Markdown."""

from lineage.report import markdown


def test_markdown_shows_html_of_a_label_as_text() -> None:
    text = markdown.escape_cell("<img src=x onerror=alert(1)> | a\nb")
    assert text == "&lt;img src=x onerror=alert(1)> \\| a b"
