//! The outline of a herd file: header, initial state, columns of instructions, final condition.

use super::Skip;

/// A file cut into its parts, comments gone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outline {
    pub name: String,
    /// `Key=Value` lines between the name and the initial state.
    pub header: Vec<(String, String)>,
    /// The items of the initial state.
    pub init: Vec<String>,
    /// Per thread, its cells in order.
    pub threads: Vec<Vec<String>>,
    /// Per thread, the cells of its fault handler (the column `P0.F`).
    pub handlers: Vec<Option<Vec<String>>>,
    /// Everything from the quantifier on.
    pub condition: String,
}

/// Header lines that say nothing about the run.
const REMARKS: [&str; 13] = [
    "hash",
    "cycle",
    "relax",
    "safe",
    "generator",
    "prefetch",
    "com",
    "orig",
    "author",
    "date",
    "origin",
    "stable",
    "info",
];

impl Outline {
    pub fn of(text: &str) -> Result<Self, Skip> {
        // Names and words of the file are shown to the user.
        if text.contains(|c: char| c.is_control() && !c.is_ascii_whitespace()) {
            return Err(Skip::syntax("a control character"));
        }
        let text = without_comments(text)?;
        let open = text.find('{').ok_or_else(|| Skip::syntax("no initial state in braces"))?;
        let (head, rest) = text.split_at(open);
        let close = rest.find('}').ok_or_else(|| Skip::syntax("the initial state has no end"))?;
        let init = rest[1..close].split(';').map(str::trim).filter(|item| !item.is_empty());
        let init = init.map(str::to_owned).collect();
        let (name, header) = header(head)?;
        let body = &rest[close + 1..];
        let start = quantifier(body).ok_or_else(|| Skip::syntax("no final condition"))?;
        let (code, condition) = body.split_at(start);
        let condition = condition.trim().to_owned();
        let (threads, handlers) = threads(code)?;
        Ok(Self { name, header, init, threads, handlers, condition })
    }
}

fn without_comments(text: &str) -> Result<String, Skip> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("(*") {
        plain.push_str(&rest[..start]);
        let end = rest[start..].find("*)").ok_or_else(|| Skip::syntax("a comment has no end"))?;
        plain.push(' ');
        rest = &rest[start + end + 2..];
    }
    plain.push_str(rest);
    Ok(plain)
}

fn header(head: &str) -> Result<(String, Vec<(String, String)>), Skip> {
    let mut lines = head.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().ok_or_else(|| Skip::syntax("the file is empty"))?;
    let mut words = first.split_whitespace();
    if words.next() != Some("AArch64") {
        return Err(Skip::feature("not an AArch64 test"));
    }
    let name = words.next().ok_or_else(|| Skip::syntax("the test has no name"))?.to_owned();
    let mut keys = Vec::new();
    for line in lines {
        if line.starts_with('"') {
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            return Err(Skip::syntax(&format!("`{line}` in the header")));
        };
        let key = key.trim().to_ascii_lowercase();
        if !REMARKS.contains(&key.as_str()) {
            keys.push((key, value.trim().to_owned()));
        }
    }
    Ok((name, keys))
}

/// Where the condition (or what belongs to it) begins: at the start of a line.
fn quantifier(body: &str) -> Option<usize> {
    let mut at = 0;
    for line in body.split_inclusive('\n') {
        let start = at + line.len() - line.trim_start().len();
        let word = line.trim_start();
        let begins = ["exists", "~exists", "forall", "locations", "filter", "not exists"];
        let known = begins.iter().any(|b| {
            word.strip_prefix(b).is_some_and(|rest| {
                rest.is_empty() || rest.starts_with(|c: char| !c.is_alphanumeric())
            })
        });
        if known {
            return Some(start);
        }
        at += line.len();
    }
    None
}

type Columns = (Vec<Vec<String>>, Vec<Option<Vec<String>>>);

fn threads(code: &str) -> Result<Columns, Skip> {
    let mut rows = code.split(';').map(|row| row.split('|').map(str::trim));
    let head: Vec<&str> = rows.next().map(Iterator::collect).unwrap_or_default();
    // For each column its thread, and whether it is the thread's handler.
    let mut columns = Vec::new();
    let mut count = 0;
    for cell in &head {
        if *cell == format!("P{count}") {
            columns.push((count, false));
            count += 1;
        } else if let Some(thread) = (0..count).find(|n| *cell == format!("P{n}.F")) {
            columns.push((thread, true));
        } else {
            return Err(Skip::feature(&format!("thread `{cell}`")));
        }
    }
    let mut threads = vec![Vec::new(); count];
    let mut handlers = vec![None; count];
    for (thread, _) in columns.iter().filter(|(_, handler)| *handler) {
        handlers[*thread] = Some(Vec::new());
    }
    for row in rows {
        let cells: Vec<&str> = row.collect();
        if cells.len() > head.len() {
            return Err(Skip::syntax("more columns than threads"));
        }
        for ((thread, handler), cell) in columns.iter().zip(cells) {
            let column = match &mut handlers[*thread] {
                Some(column) if *handler => column,
                _ => &mut threads[*thread],
            };
            if !cell.is_empty() {
                column.push(cell.to_owned());
            }
        }
    }
    Ok((threads, handlers))
}
