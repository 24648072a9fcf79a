//! The forms of a document that are for reading: a table for terminals, and Markdown.

use std::fmt::Write as _;
use std::ops::Range;

use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{
    Attribute, Cell as Field, CellAlignment, Color, ContentArrangement, ContentLineStyle,
    LineStyle, Table, TableStyle,
};

use super::pivot::{self, Cell, Line, Section};
use super::{Document, View, figure, wrapped};

/// One line, below the head.
const STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction(' '))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .content_lines(ContentLineStyle::none().junction(' '));

/// Lines of a terminal that a default run may fill.
const SCREEN: usize = 48;

/// The document as tables with a title line and footnotes.
pub(super) fn render(document: &Document, view: &View) -> String {
    let (sections, sources) = pivot::sections(document, view.all);
    let title = format!("{} on {}, seed {}", document.experiment, document.machine, document.seed);
    let mut text = title;
    let mut shown = 0;
    for section in &sections {
        let table = tables(section, view);
        let lines = text.lines().count() + table.lines().count();
        if !view.all && shown > 0 && lines > SCREEN {
            break;
        }
        let _ = write!(text, "\n\n{table}");
        shown += 1;
    }
    let mut notes: Vec<String> =
        sources.iter().enumerate().map(|(i, source)| format!("[{}] {source}", i + 1)).collect();
    if text.contains('*') {
        notes.push("* best of those that are compared".to_owned());
    }
    let hidden = document.rows.iter().filter(|row| !view.all && !document.leads(row)).count();
    let left_out = match (sections.len() - shown, hidden) {
        (0, 0) => None,
        (0, figures) => Some(format!("{figures} more figures")),
        (tables, 0) => Some(format!("{tables} more tables")),
        (tables, figures) => Some(format!("{tables} more tables and {figures} more figures")),
    };
    notes.extend(left_out.map(|what| format!("{what} with --all")));
    if !notes.is_empty() {
        let notes: Vec<String> = notes.iter().flat_map(|note| wrapped(note, view.width)).collect();
        let _ = write!(text, "\n\n{}", notes.join("\n"));
    }
    text
}

/// The document in Markdown, whole.
pub(super) fn markdown(document: &Document) -> String {
    let (sections, sources) = pivot::sections(document, true);
    let view = View { all: true, width: usize::MAX, color: false };
    let mut text =
        format!("### {} on {}, seed {}", document.experiment, document.machine, document.seed);
    for section in &sections {
        let mut table = filled(section, 0..section.head.len(), Layout::Full, &view);
        table.load_style(ASCII_MARKDOWN);
        let _ = write!(text, "\n\n{}\n\n{table}", section.title);
    }
    for (i, source) in sources.iter().enumerate() {
        let _ = write!(text, "\n\n[{}] {source}", i + 1);
    }
    text
}

/// A section as a table, or as several below each other where the columns need more room than
/// there is.
fn tables(section: &Section, view: &View) -> String {
    let columns = section.head.len();
    let mut text = section.title.clone();
    let fits = |layout| wide(&filled(section, 0..columns, layout, view)) <= view.width;
    let layout = [Layout::Full, Layout::NarrowHead, Layout::NoRatios]
        .into_iter()
        .find(|layout| fits(*layout))
        .unwrap_or(Layout::NarrowHead);
    let mut from = 0;
    while from < columns {
        let mut to = columns;
        let mut table = filled(section, from..to, layout, view);
        while wide(&table) > view.width && to > from + 1 {
            to -= 1;
            table = filled(section, from..to, layout, view);
        }
        if from > 0 {
            text.push_str("\n(continued)");
        }
        let _ = write!(text, "\n{table}");
        from = to;
    }
    text
}

/// How much room a table takes: as much as there is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Full,
    /// Heads of columns in several lines.
    NarrowHead,
    /// The same, and no ratios beside the figures.
    NoRatios,
}

/// Characters of a column's head that stand in one line when there is little room.
const HEAD: usize = 12;

/// The width of a table without what colours it.
fn wide(table: &Table) -> usize {
    table.lines().map(|line| visible(&line)).max().unwrap_or(0)
}

/// Characters of a line that take room on a terminal.
fn visible(line: &str) -> usize {
    let mut count = 0;
    let mut escaped = false;
    for c in line.chars() {
        match (escaped, c) {
            (false, '\u{1b}') => escaped = true,
            (true, 'm') => escaped = false,
            (true, _) => {}
            (false, _) => count += 1,
        }
    }
    count
}

fn filled(section: &Section, columns: Range<usize>, layout: Layout, view: &View) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Disabled);
    if view.color {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    let narrow = |head: &String| wrapped(head, HEAD).join("\n");
    let heads = section.head[columns.clone()].iter();
    let heads = heads.map(|head| if layout == Layout::Full { head.clone() } else { narrow(head) });
    let head = std::iter::once(section.corner.to_owned()).chain(heads);
    table.set_header(head.collect::<Vec<_>>());
    for line in &section.lines {
        table.add_row(fields(line, columns.clone(), layout));
    }
    for index in 1..=columns.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn fields(line: &Line, columns: Range<usize>, layout: Layout) -> Vec<Field> {
    let cells = line.cells[columns].iter().map(|cell| match cell {
        Cell::Empty => Field::new(""),
        Cell::Published(value) => Field::new(figure(*value)),
        Cell::Off(percent) => Field::new(format!("{percent:+.1} %")),
        Cell::Figure { value, best, over } => {
            let over = over.filter(|_| layout != Layout::NoRatios);
            let over = over.map_or(String::new(), |over| format!(" ({over:.2}x)"));
            let mark = if *best { "*" } else { "" };
            let field = Field::new(format!("{}{over}{mark}", figure(*value)));
            if *best { field.fg(Color::Green).add_attribute(Attribute::Bold) } else { field }
        }
    });
    std::iter::once(Field::new(&line.label)).chain(cells).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Row;
    use super::*;

    fn document(policies: usize) -> Document {
        let mut document = Document::new("test", "zen4", 1);
        for i in 0..policies {
            #[expect(clippy::cast_precision_loss, reason = "few")]
            let value = 1000.0 * (policies - i) as f64;
            document.push(Row::new(&format!("policy-{i}"), "work", 2, "total", "us", value));
        }
        document
    }

    const VIEW: View = View { all: false, width: 100, color: false };

    #[test]
    fn columns_that_do_not_fit_go_below() {
        let text = render(&document(12), &VIEW);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(text.contains("(continued)"), "{text}");
        let shown = |i| text.contains(&format!("policy-{i} "));
        assert!((0..12).all(shown), "{text}");
        assert!(!render(&document(3), &VIEW).contains("(continued)"));
    }

    #[test]
    fn the_best_is_marked_and_coloured_only_where_that_is_asked_for() {
        let text = render(&document(2), &VIEW);
        assert!(text.contains("1 000 (0.50x)*"), "{text}");
        assert!(!text.contains('\u{1b}'));
        let colourful = render(&document(2), &View { color: true, ..VIEW });
        assert!(colourful.contains('\u{1b}'));
        let bare: String = colourful.lines().map(|line| visible(line).to_string()).collect();
        assert_eq!(bare, text.lines().map(|l| l.chars().count().to_string()).collect::<String>());
    }

    #[test]
    fn a_screen_is_not_overrun_and_what_is_left_out_is_said() {
        let mut document = document(2);
        for i in 0..60 {
            document.push(Row::new("policy-0", &format!("work {i}"), 2, "total", "us", 1.0));
        }
        let text = render(&document, &VIEW);
        assert!(text.lines().count() <= SCREEN + 4, "{text}");
        assert!(text.contains("more tables with --all"), "{text}");
        let whole = render(&document, &View { all: true, ..VIEW });
        assert!(whole.contains("work 59") && !whole.contains("--all"));
    }

    #[test]
    fn markdown_has_every_figure() {
        let text = markdown(&document(2));
        assert!(text.starts_with("### test on zen4"));
        assert!(text.contains("| total, us"), "{text}");
    }
}
