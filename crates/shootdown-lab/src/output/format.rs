//! The two forms of output, and how a figure is written in a table.

use clap::ValueEnum;

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Format {
    /// For reading.
    #[default]
    Table,
    /// For programs: one document a line.
    Json,
}

/// A figure with four significant digits, and thousands set apart.
#[must_use]
pub fn figure(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "-".to_owned();
    }
    if size >= 1e4 || value.fract() == 0.0 {
        return grouped(value);
    }
    let digits = match size {
        s if s >= 1000.0 => 0,
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
        assert_eq!(figure(0.0), "0");
        assert_eq!(figure(33.0), "33");
    }
}
