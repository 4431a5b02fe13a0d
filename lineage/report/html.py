"""Sections -> one HTML page that needs no other file."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib import resources

from lineage.report.section import (
    Block,
    Cell,
    Column,
    Facts,
    Figure,
    Figures,
    Paragraph,
    Piece,
    Row,
    Section,
    Table,
    as_cell,
    as_column,
    as_figure,
    as_row,
)

STRONG_MARKUP = re.compile(r"\*\*(.+?)\*\*")
CODE_MARKUP = re.compile(r"`(.+?)`")
LINK_MARKUP = re.compile(r"\[(.+?)\]\((#[\w-]+)\)")
FILTER = (
    '<p class="filters" hidden><label>Show lines with <input type="search" '
    'placeholder="words, such as elmo sentiment better" size="40"></label> '
    '<span class="muted" aria-live="polite"></span></p>'
)


def render_page(sections: Sequence[Section], *, study: str) -> str:
    """Return the page; `study` is the line above its title."""
    links = "".join(
        f'<a href="#{section.anchor}">{escape(section.link)}</a>'
        for section in sections
        if section.link
    )
    parts = {
        "switch_style": "".join(_switch_style(section.switch) for section in sections),
        "links": links,
        "study": escape(study),
        "sections": "\n".join(_lines(sections)),
    }
    page = (resources.files("lineage.report") / "page.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        page = page.replace(f"<!-- {name} -->", text)
    return page


def _switch_style(label_counts: Iterable[str]) -> str:
    """Return the style that shows the parts of the chosen number of labels."""
    rules = [
        f"main:has(#labels-{one}:checked) "
        f'[data-labels]:not([data-labels~="{one}"], [data-labels="none"]) {{ display: none; }}'
        for one in label_counts
    ]
    return f"@media screen {{ {' '.join(rules)} }}" if rules else ""


def _lines(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        if block.only != "markdown":
            yield from _block_lines(block)


def _block_lines(block: Block) -> Iterator[str]:
    match block:
        case Section(is_folded=True):
            yield from _folded_lines(block)
        case Section():
            yield from _section_lines(block)
        case Table(labels=""):
            yield from _table_lines(block)
        case Table():
            yield f"<div{_attributes(data_labels=block.labels)}>"
            yield from _table_lines(block)
            yield "</div>"
        case Figures():
            yield from _figure_lines(block)
        case Paragraph():
            yield _paragraph(block)
        case Facts():
            pairs = (
                f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
                for name, value in block.values.items()
            )
            yield f'<dl class="facts">{"".join(pairs)}</dl>'


def _section_lines(section: Section) -> Iterator[str]:
    css = f"{'split ' if section.aside else ''}{section.css}".strip()
    if section.switch:  # outside the section, so that it stays in view on the whole page
        yield _switch(section.switch)
    yield f"<section{_attributes(css, id=section.anchor, aria_label=section.label)}>"
    if section.aside:
        yield '<div class="side">'
    if section.title:
        tag = "h1" if section.is_page else "h2"
        yield f"<{tag}>{_title(section)}{_small(section.subtitle)}</{tag}>"
    if section.aside:
        yield from _lines(section.aside)
        yield "</div><div>"
    yield from _lines(section.blocks)
    if section.aside:
        yield "</div>"
    yield "</section>"


def _title(section: Section) -> str:
    """Return the title, or one for each number of labels of which the switch shows one."""
    if not section.titles:
        return escape(section.title)
    titles = section.titles.items()
    return "".join(f'<span data-labels="{count}">{escape(text)}</span>' for count, text in titles)


def _folded_lines(section: Section) -> Iterator[str]:
    opened = " open" if section.is_open else ""
    title = f"{escape(section.title)}{_small(section.subtitle)}"
    css = section.css
    if section.link:
        title = f"<h2>{title}</h2>"
        css = f"part {css}".strip()
    yield f"<details{_attributes(css)}{opened}>"
    yield f"<summary>{title}</summary>"
    # Browsers open what is folded around the target of a link.
    yield f"<div{_attributes(id=section.anchor)}>"
    yield from _lines(section.blocks)
    yield "</div></details>"


def _switch(names: Mapping[str, str]) -> str:
    """Return a choice among numbers of labels, with the last one chosen."""
    choices = []
    for count, name in names.items():
        checked = " checked" if count == [*names][-1] else ""
        button = f'<input type="radio" name="labels" id="labels-{count}"{checked}>'
        choices.append(f"<label>{button} {escape(name)}</label>")
    listed = "\n".join(choices)
    return f'<fieldset class="switch"><legend>Labels</legend>{listed}</fieldset>'


def _paragraph(paragraph: Paragraph) -> str:
    text = _markup(paragraph.text) if paragraph.has_markup else escape(paragraph.text)
    attributes = _attributes(paragraph.css, data_labels=paragraph.labels)
    return f"<p{attributes}>{text}</p>"


def _markup(text: str) -> str:
    strong = STRONG_MARKUP.sub(r"<b>\1</b>", escape(text, quote=False))
    linked = LINK_MARKUP.sub(r'<a href="\2">\1</a>', strong)
    return CODE_MARKUP.sub(r"<code>\1</code>", linked)


def _figure_lines(figures: Figures) -> Iterator[str]:
    css = f"panels {figures.css}".strip()
    yield f"<div{_attributes(css, data_labels=figures.labels)}>"
    for figure in map(as_figure, figures.figures):
        yield _figure(figure, caption_below=figures.caption_below)
    yield "</div>"


def _figure(figure: Figure, *, caption_below: bool) -> str:
    if not figure.name:
        return figure.svg
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>"
    if caption_below:
        return f'<figure class="finding below">{figure.svg}{caption}</figure>'
    return f'<figure class="finding">{caption}{figure.svg}</figure>'


def _table_lines(table: Table) -> Iterator[str]:
    if table.title:
        yield f'<h3 class="task">{escape(table.title)}{_small(table.subtitle)}</h3>'
    if table.lead:
        yield _paragraph(Paragraph(table.lead, "note"))
    if table.has_filter:
        yield FILTER
    if table.columns:
        box = "box" if table.is_wide else "box fit"
        yield f'<div class="{box}" tabindex="0"><table{_attributes(table.css)}>'
        yield "<thead>"
        yield f"<tr>{''.join(_heading(as_column(one)) for one in table.columns)}</tr>"
        yield "</thead>"
        yield "<tbody>"
        for row in table.rows:
            yield _row(table, as_row(row))
        yield "</tbody></table></div>"
    if table.note:
        yield _paragraph(Paragraph(table.note, "note", has_markup=True))


def _heading(column: Column) -> str:
    attributes = _attributes(column.css.replace("wrap", ""))
    return f"<th{attributes}>{escape(column.name)}{column.svg}{_small(column.note, 'muted')}</th>"


def _row(table: Table, row: Row) -> str:
    attributes = _attributes(row.css, title=row.title, data_labels=row.labels)
    cells = []
    for place, (column, cell) in enumerate(zip(table.columns, row.cells, strict=False)):
        is_name = place == 0 and table.has_row_names
        cells.append(_cell(as_cell(cell), as_column(column), is_name=is_name))
    return f"<tr{attributes}>{''.join(cells)}</tr>"


def _cell(cell: Cell, column: Column, *, is_name: bool) -> str:
    pieces = [escape(cell.text)] if cell.text else []
    pieces += [_piece(piece) for piece in cell.more if piece.only != "markdown"]
    content = cell.svg + " ".join(pieces)
    if is_name:
        span = _format_span(cell.span)
        return (
            f'<th scope="row"{_attributes(cell.css, title=cell.title, colspan=span)}>{content}</th>'
        )
    attributes = _attributes(
        cell.css or column.css, title=cell.title, colspan=_format_span(cell.span)
    )
    heading = f' data-head="{escape(column.short)}"' if column.short else ""
    return f"<td{attributes}{heading}>{content}</td>"


def _piece(piece: Piece) -> str:
    attributes = _attributes(piece.css, title=piece.title)
    text = escape(piece.text)
    if piece.is_strong:
        return f"<b{attributes}>{text}</b>"
    if piece.is_small:
        return f"<small{attributes}>{text}</small>"
    return f"<span{attributes}>{text}</span>" if attributes else text


def _small(text: str, css: str = "") -> str:
    return f" <small{_attributes(css)}>{escape(text)}</small>" if text else ""


def _format_span(span: int) -> str:
    return str(span) if span > 1 else ""


def _attributes(css: str = "", **values: str) -> str:
    """Return the attributes of a tag that are not empty. `aria_label` is `aria-label`."""
    named = {"class": css} | {name.replace("_", "-"): value for name, value in values.items()}
    return "".join(f' {name}="{escape(value)}"' for name, value in named.items() if value)
