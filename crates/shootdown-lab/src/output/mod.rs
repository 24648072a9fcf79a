//! Results: rows, the document they form, and how it is printed.
//!
//! A row is one figure: what was measured ([`Row::metric`] in [`Row::unit`]), under which policy,
//! on which workload with how many CPUs, beside the published figure where there is one and where
//! that comes from. The JSON form is a contract (schema 1); the table form is for reading and may
//! change.

mod format;
mod pivot;
mod table;

use std::io::{self, Write};

use serde::Serialize;

pub use format::{Colors, Format, View, WIDEST, figure, wrapped};

/// The version of the JSON form.
pub const SCHEMA: u32 = 1;

/// One figure.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Under which policy (or variant of one).
    pub policy: String,
    /// What ran.
    pub workload: String,
    /// How many CPUs took part.
    pub cpus: u32,
    /// What was measured.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The simulated (or, for native benches, measured) figure.
    pub value: f64,
    /// The published figure.
    pub published: Option<f64>,
    /// Where the published figure comes from.
    pub source: Option<String>,
}

impl Row {
    /// A row without a published figure.
    #[must_use]
    pub fn new(
        policy: &str,
        workload: &str,
        cpus: u32,
        metric: &str,
        unit: &str,
        value: f64,
    ) -> Self {
        Self {
            policy: policy.to_owned(),
            workload: workload.to_owned(),
            cpus,
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            value,
            published: None,
            source: None,
        }
    }

    /// Puts the published figure and its source beside the value.
    #[must_use]
    pub fn published(mut self, figure: f64, source: &str) -> Self {
        self.published = Some(figure);
        self.source = Some(source.to_owned());
        self
    }

    /// How far the value is from the published one, in percent of the published one.
    #[must_use]
    pub fn deviation(&self) -> Option<f64> {
        self.published.filter(|p| *p != 0.0).map(|p| (self.value - p) / p * 100.0)
    }
}

/// The results of one experiment (or replay) on one machine.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Which experiment.
    pub experiment: String,
    /// On which machine profile.
    pub machine: String,
    /// The seed of the run.
    pub seed: u64,
    /// The figures.
    pub rows: Vec<Row>,
    /// The metrics that a table leads with; all where there are none.
    #[serde(skip)]
    leads: &'static [&'static str],
}

impl Document {
    /// A document without rows.
    #[must_use]
    pub fn new(experiment: &str, machine: &str, seed: u64) -> Self {
        Self {
            schema: SCHEMA,
            experiment: experiment.to_owned(),
            machine: machine.to_owned(),
            seed,
            rows: Vec::new(),
            leads: &[],
        }
    }

    /// The metrics that a table shows when not every figure is asked for.
    pub fn lead(&mut self, metrics: &'static [&'static str]) {
        self.leads = metrics;
    }

    /// Does a table show this row when not every figure is asked for?
    fn leads(&self, row: &Row) -> bool {
        self.leads.is_empty() || self.leads.contains(&row.metric.as_str())
    }

    /// Adds a row.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The value of the one row that matches; for checks and tests.
    #[must_use]
    pub fn value(&self, policy: &str, workload: &str, cpus: u32, metric: &str) -> Option<f64> {
        self.rows
            .iter()
            .find(|r| {
                r.policy == policy && r.workload == workload && r.cpus == cpus && r.metric == metric
            })
            .map(|r| r.value)
    }

    /// The document as text in the given form, without a trailing newline. JSON is one line, so
    /// that several documents can follow each other as JSON lines. CSV has its header first.
    ///
    /// # Panics
    /// Never: rows hold only strings and numbers.
    #[must_use]
    pub fn render(&self, format: Format, view: &View) -> String {
        match format {
            Format::Json => {
                serde_json::to_string(self).expect("rows hold only strings and numbers")
            }
            Format::Csv => self.csv(),
            Format::Markdown => table::markdown(self),
            Format::Table => table::render(self, view),
        }
    }

    fn csv(&self) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            experiment: &'a str,
            machine: &'a str,
            seed: u64,
            policy: &'a str,
            workload: &'a str,
            cpus: u32,
            metric: &'a str,
            unit: &'a str,
            value: f64,
            published: Option<f64>,
            source: Option<&'a str>,
        }
        let mut lines = csv::Writer::from_writer(Vec::new());
        for row in &self.rows {
            let line = Line {
                experiment: &self.experiment,
                machine: &self.machine,
                seed: self.seed,
                policy: &row.policy,
                workload: &row.workload,
                cpus: row.cpus,
                metric: &row.metric,
                unit: &row.unit,
                value: row.value,
                published: row.published,
                source: row.source.as_deref(),
            };
            lines.serialize(line).expect("memory takes every line");
        }
        let text = lines.into_inner().expect("memory takes every line");
        String::from_utf8(text).expect("rows are text").trim_end().to_owned()
    }
}

/// Prints a line of results. A reader that went away (`| head`) ends the process quietly: nobody is
/// left to read. Any other error (a full disk) is said, and the exit code is 2.
pub fn emit(text: &str) {
    let mut out = io::stdout().lock();
    let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) else { return };
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    eprintln!("shootdown: the results can't be written to standard output: {error}");
    std::process::exit(2);
}
