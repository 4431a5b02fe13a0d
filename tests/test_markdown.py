"""Sections -> Markdown."""

from lineage.report.markdown import render_page
from lineage.report.section import Figures, Paragraph, Section


def test_a_folded_part_has_no_heading_and_an_empty_section_is_left_out() -> None:
    folded = Section("Details", [Paragraph("inside")], is_folded=True)
    hidden = Section("Charts", [Figures(["<svg/>"])])
    text = render_page([Section("Title", [folded], subtitle="of it", is_page=True), hidden])
    assert text == "# Title (of it)\n\ninside\n"
