//! Rows arranged for reading: policies side by side, or a sweep of CPUs, and what was published
//! below.
//!
//! A workload that ran with one number of CPUs becomes one section: policies are columns, metrics
//! are lines. A workload that ran with several becomes one section for each metric: numbers of CPUs
//! are columns, policies are lines.

use super::{Document, Row};

/// A table with a heading.
#[derive(PartialEq, Debug)]
pub(super) struct Section {
    /// What ran, and what all figures in it have in common.
    pub title: String,
    /// What the lines are.
    pub corner: &'static str,
    /// What the columns are.
    pub head: Vec<String>,
    pub lines: Vec<Line>,
}

/// A line of a table.
#[derive(PartialEq, Debug)]
pub(super) struct Line {
    pub label: String,
    /// One for each column.
    pub cells: Vec<Cell>,
}

/// A figure as it is shown.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Cell {
    /// Not measured, or not published.
    Empty,
    /// The figure; the best of those that compete; relative to the first policy.
    Figure { value: f64, best: bool, over: Option<f64> },
    /// A published figure.
    Published(f64),
    /// How far the figure above is from the published one, in percent.
    Off(f64),
}

/// Which of two figures is the better one. `None` where a reader has to judge.
fn lower_is_better(row: &Row) -> Option<bool> {
    match row.unit.as_str() {
        "ns" | "us" | "ms" | "us per call" | "interrupts" | "walks" => Some(true),
        "events" | "GB/s" => Some(false),
        _ => None,
    }
}

/// The sections of a document, and its sources, which are numbered from 1.
pub(super) fn sections(document: &Document, all: bool) -> (Vec<Section>, Vec<&str>) {
    let shown: Vec<&Row> = document.rows.iter().filter(|row| all || document.leads(row)).collect();
    let mut sources = Vec::new();
    let mut sections = Vec::new();
    for workload in distinct(shown.iter().map(|row| row.workload.as_str())) {
        let rows: Vec<&Row> = shown.iter().copied().filter(|r| r.workload == workload).collect();
        let cpus = distinct(rows.iter().map(|row| row.cpus));
        if let [one] = cpus[..] {
            sections.push(by_policy(workload, one, &rows, &mut sources));
            continue;
        }
        for (metric, unit) in metrics(&rows) {
            let rows: Vec<&Row> =
                rows.iter().copied().filter(|r| r.metric == metric && r.unit == unit).collect();
            let title = format!("{workload}: {}", label(metric, unit));
            sections.push(by_cpus(title, &rows, &mut sources));
        }
    }
    (sections, sources)
}

/// Policies are columns.
fn by_policy<'a>(
    workload: &str,
    cpus: u32,
    rows: &[&'a Row],
    sources: &mut Vec<&'a str>,
) -> Section {
    let policies = distinct(rows.iter().map(|row| row.policy.as_str()));
    let mut lines = Vec::new();
    for (metric, unit) in metrics(rows) {
        let found: Vec<Option<&Row>> = policies
            .iter()
            .map(|policy| {
                let is = |r: &&&Row| r.policy == *policy && r.metric == metric && r.unit == unit;
                rows.iter().find(is).copied()
            })
            .collect();
        let best = best(&found);
        let first = found[0].map(|row| row.value).filter(|v| *v > 0.0);
        let cells = found.iter().enumerate().map(|(i, row)| {
            let Some(row) = row else { return Cell::Empty };
            let over = first.filter(|_| i > 0 && lower_is_better(row).is_some());
            let over = over.map(|first| row.value / first);
            Cell::Figure { value: row.value, best: best == Some(row.value), over }
        });
        lines.push(Line { label: label(metric, unit), cells: cells.collect() });
        published(&found, &mut lines, sources);
    }
    let title = match cpus {
        0 => workload.to_owned(),
        1 => format!("{workload}, 1 CPU"),
        n => format!("{workload}, {n} CPUs"),
    };
    Section { title, corner: "", head: policies.into_iter().map(str::to_owned).collect(), lines }
}

/// Numbers of CPUs are columns.
fn by_cpus<'a>(title: String, rows: &[&'a Row], sources: &mut Vec<&'a str>) -> Section {
    let mut cpus = distinct(rows.iter().map(|row| row.cpus));
    cpus.sort_unstable();
    let policies = distinct(rows.iter().map(|row| row.policy.as_str()));
    let of = |policy: &str, cpus: u32| {
        rows.iter().find(|r| r.policy == policy && r.cpus == cpus).copied()
    };
    let best: Vec<Option<f64>> = cpus
        .iter()
        .map(|n| best(&policies.iter().map(|policy| of(policy, *n)).collect::<Vec<_>>()))
        .collect();
    let mut lines = Vec::new();
    for policy in &policies {
        let found: Vec<Option<&Row>> = cpus.iter().map(|n| of(policy, *n)).collect();
        let cells = found.iter().zip(&best).map(|(row, best)| match row {
            Some(row) => {
                Cell::Figure { value: row.value, best: *best == Some(row.value), over: None }
            }
            None => Cell::Empty,
        });
        lines.push(Line { label: (*policy).to_owned(), cells: cells.collect() });
        published(&found, &mut lines, sources);
    }
    Section { title, corner: "CPUs", head: cpus.iter().map(u32::to_string).collect(), lines }
}

/// Below a line, what was published, and how far off the figures are.
fn published<'a>(found: &[Option<&'a Row>], lines: &mut Vec<Line>, sources: &mut Vec<&'a str>) {
    let figures: Vec<Option<f64>> =
        found.iter().map(|row| row.and_then(|row| row.published)).collect();
    if figures.iter().all(Option::is_none) {
        return;
    }
    let named = distinct(found.iter().flatten().filter_map(|row| row.source.as_deref()));
    let marks = named.into_iter().map(|source| {
        let at = sources.iter().position(|known| *known == source).unwrap_or_else(|| {
            sources.push(source);
            sources.len() - 1
        });
        format!(" [{}]", at + 1)
    });
    let label = format!("  published{}", marks.collect::<String>());
    let cells = figures.iter().map(|figure| figure.map_or(Cell::Empty, Cell::Published));
    lines.push(Line { label, cells: cells.collect() });
    let off = |row: &Option<&Row>| row.and_then(Row::deviation).map_or(Cell::Empty, Cell::Off);
    lines.push(Line { label: "  off by".to_owned(), cells: found.iter().map(off).collect() });
}

/// A metric with its unit. A count has none: its name says what is counted.
fn label(metric: &str, unit: &str) -> String {
    match unit {
        "interrupts" | "operations" | "loads" | "walks" | "requests" | "flushes" | "events" => {
            metric.to_owned()
        }
        _ => format!("{metric}, {unit}"),
    }
}

/// Takes part in a comparison; a bound that no policy can reach does not.
fn competes(row: &Row) -> bool {
    row.policy != "omniscient"
}

/// The best of several figures; none where there is no choice.
fn best(found: &[Option<&Row>]) -> Option<f64> {
    let rows: Vec<&Row> = found.iter().flatten().copied().filter(|row| competes(row)).collect();
    let [first, rest @ ..] = &rows[..] else { return None };
    let lower = lower_is_better(first)?;
    if rest.iter().all(|row| row.value.total_cmp(&first.value).is_eq()) {
        return None;
    }
    let values = rows.iter().map(|row| row.value);
    if lower { values.min_by(f64::total_cmp) } else { values.max_by(f64::total_cmp) }
}

fn metrics<'a>(rows: &[&'a Row]) -> Vec<(&'a str, &'a str)> {
    distinct(rows.iter().map(|row| (row.metric.as_str(), row.unit.as_str())))
}

/// Each once, in the order of appearance.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: &str, cpus: u32, metric: &str, value: f64) -> Row {
        Row::new(policy, "work", cpus, metric, "us", value)
    }

    fn document(rows: Vec<Row>) -> Document {
        let mut document = Document::new("test", "zen4", 1);
        document.rows = rows;
        document
    }

    #[test]
    fn with_one_number_of_cpus_policies_are_columns_and_the_best_is_marked() {
        let document = document(vec![
            row("a", 2, "wait", 8.0),
            row("b", 2, "wait", 2.0),
            row("b", 2, "x", 1.0),
        ]);
        let (sections, sources) = sections(&document, true);
        assert_eq!(sections.len(), 1);
        assert_eq!(sections[0].title, "work, 2 CPUs");
        assert_eq!(sections[0].head, ["a", "b"]);
        assert_eq!(
            sections[0].lines[0].cells,
            [
                Cell::Figure { value: 8.0, best: false, over: None },
                Cell::Figure { value: 2.0, best: true, over: Some(0.25) }
            ]
        );
        assert_eq!(sections[0].lines[1].cells[0], Cell::Empty, "a has no x");
        assert!(sources.is_empty());
    }

    #[test]
    fn a_sweep_has_its_numbers_of_cpus_as_columns_and_published_figures_below() {
        let document = document(vec![
            row("a", 4, "wait", 9.0).published(10.0, "a paper"),
            row("a", 1, "wait", 3.0),
            row("b", 1, "wait", 2.0),
        ]);
        let (sections, sources) = sections(&document, true);
        assert_eq!(sections[0].head, ["1", "4"]);
        let labels: Vec<&str> = sections[0].lines.iter().map(|line| line.label.as_str()).collect();
        assert_eq!(labels, ["a", "  published [1]", "  off by", "b"]);
        assert_eq!(sections[0].lines[1].cells, [Cell::Empty, Cell::Published(10.0)]);
        assert_eq!(sections[0].lines[2].cells[1], Cell::Off(-10.0));
        assert_eq!(sources, ["a paper"]);
        let best = |line: usize, column: usize| {
            matches!(sections[0].lines[line].cells[column], Cell::Figure { best: true, .. })
        };
        assert!(best(3, 0) && !best(0, 0));
        assert!(!best(0, 1), "nobody competes there");
    }

    #[test]
    fn without_all_only_what_leads_is_shown() {
        let mut document = document(vec![row("a", 2, "wait", 8.0), row("a", 2, "detail", 2.0)]);
        document.lead(&["wait"]);
        assert_eq!(sections(&document, false).0[0].lines.len(), 1);
        assert_eq!(sections(&document, true).0[0].lines.len(), 2);
    }
}
