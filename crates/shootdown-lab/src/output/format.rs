//! The forms of output, and how a figure is written in a table.

use std::io::IsTerminal;

use clap::ValueEnum;

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Format {
    /// For reading.
    #[default]
    Table,
    /// For programs: one document a line.
    Json,
    /// For spreadsheets: one figure a line.
    Csv,
    /// For documents: every figure.
    Markdown,
}

/// When to use colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Colors {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How a table is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// Every figure, and not only those that a default run leads with.
    pub all: bool,
    /// Characters that fit beside each other.
    pub width: usize,
    /// Whether to use colours.
    pub color: bool,
}

/// The widest table, also on a wider terminal.
pub const WIDEST: usize = 100;

impl View {
    /// For standard output as it is.
    #[must_use]
    pub fn new(all: bool, colors: Colors) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let color = match colors {
            Colors::Auto => terminal && !refused,
            Colors::Always => true,
            Colors::Never => false,
        };
        let width = comfy_table::Table::new().width().filter(|_| terminal);
        Self { all, width: width.map_or(WIDEST, |w| usize::from(w).min(WIDEST)), color }
    }
}

/// Words in lines of at most so many characters.
#[must_use]
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is one from the start");
        if !last.is_empty() && last.len() + 1 + word.len() > width {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

/// A figure with four significant digits, and thousands set apart.
#[must_use]
pub fn figure(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "-".to_owned();
    }
    if size >= 1e3 || value.fract() == 0.0 {
        return grouped(value);
    }
    let digits = match size {
        s if s >= 100.0 => 1,
        s if s >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn grouped(value: f64) -> String {
    let plain = format!("{value:.0}");
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", plain.as_str()),
    };
    let mut out = String::from(sign);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::figure;

    #[test]
    fn figures_keep_four_digits_and_group_thousands() {
        assert_eq!(figure(1.22), "1.220");
        assert_eq!(figure(17.385), "17.39");
        assert_eq!(figure(6_250_212.0), "6 250 212");
        assert_eq!(figure(-12_345.6), "-12 346");
        assert_eq!(figure(8749.3), "8 749");
        assert_eq!(figure(0.0), "0");
        assert_eq!(figure(33.0), "33");
    }
}
