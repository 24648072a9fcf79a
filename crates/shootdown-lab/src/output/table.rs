//! The table form: one line per row, published beside simulated, sources as footnotes.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};

use super::{Document, figure};

/// An empty table in the house style.
pub(crate) fn plain() -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED.with_rounded_corners())
        .set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// The document as a table with a title line and footnotes.
pub(super) fn render(document: &Document) -> String {
    let published = document.rows.iter().any(|r| r.published.is_some());
    let mut table = plain();
    let mut head = vec!["workload", "policy", "cpus", "metric", "value"];
    if published {
        head.extend(["published", "off by", "src"]);
    }
    head.push("unit");
    table.set_header(&head);

    let mut sources: Vec<&str> = Vec::new();
    let mut last = "";
    for row in &document.rows {
        let workload = if row.workload == last { "" } else { &row.workload };
        last = &row.workload;
        let mut line = vec![
            workload.to_owned(),
            row.policy.clone(),
            row.cpus.to_string(),
            row.metric.clone(),
            figure(row.value),
        ];
        if published {
            line.push(row.published.map_or(String::new(), figure));
            line.push(row.deviation().map_or(String::new(), |d| format!("{d:+.1} %")));
            line.push(row.source.as_deref().map_or(String::new(), |s| {
                let at = sources.iter().position(|known| *known == s).unwrap_or_else(|| {
                    sources.push(s);
                    sources.len() - 1
                });
                format!("[{}]", at + 1)
            }));
        }
        line.push(row.unit.clone());
        table.add_row(line);
    }
    let numbers = if published { 2..7 } else { 2..5 };
    for index in numbers.filter(|i| *i != 3) {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }

    let mut out = format!(
        "{} on {} (seed {})\n{table}",
        document.experiment, document.machine, document.seed
    );
    for (i, source) in sources.iter().enumerate() {
        out.push_str(&format!("\n[{}] {source}", i + 1));
    }
    out
}
