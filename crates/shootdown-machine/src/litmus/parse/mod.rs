//! Reader of our own test format (see the book's page on it).
//!
//! A test is read in one pass: a name is declared before it is used.

pub(crate) mod barriers;
mod condition;
mod device;
pub(crate) mod names;
pub(crate) mod program;
pub(crate) mod tokens;

use std::collections::BTreeSet;

use names::{ENTRIES, Names, empty_table};
use program::Draft;
use tokens::Tokens;

use super::condition::Condition;
use super::device::{Device, Iommu};
use super::error::{ParseError, Problem};
use super::program::Place;
use super::test::{Arch, Case, Expectation, Faults, Features, Page, Program, Test, Word};

/// Most programs of a test.
pub(crate) const MAX_PROGRAMS: usize = 4;

impl Test {
    /// Reads a test; `file` is what errors call it.
    ///
    /// # Errors
    /// [`ParseError`] names the line and what to do.
    pub fn parse(file: &str, text: &str) -> Result<Self, ParseError> {
        let mut reader = Reader::default();
        for (at, line) in text.lines().enumerate() {
            // Names and words of the file are shown to the user.
            if line.contains(|c: char| c.is_control() && c != '\t') {
                let problem = Problem::new("a control character", "take it out: a test is text");
                return Err(problem.at(file, at + 1));
            }
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                reader.line(line, at + 1).map_err(|(line, problem)| problem.at(file, line))?;
            }
        }
        reader.finish().map_err(|(line, problem)| problem.at(file, line))
    }
}

#[derive(Default)]
struct Reader {
    name: Option<String>,
    arch: Option<Arch>,
    source: Option<String>,
    cases: Vec<Case>,
    unsupported: Option<String>,
    uncertain: Option<String>,
    faults: Faults,
    levels: Option<u8>,
    names: Option<Names>,
    cpus: Vec<Program>,
    iommu: Iommu,
    devices: Vec<Device>,
    /// The program that is being read is a device's.
    of_device: bool,
    draft: Option<Draft>,
    goal: Option<Condition>,
    witnesses: Vec<Condition>,
}

const HEADER: [&str; 17] = [
    "test",
    "arch",
    "source",
    "verdict",
    "unsupported",
    "uncertain",
    "faults",
    "levels",
    "var",
    "frame",
    "table",
    "entry",
    "map",
    "page",
    "iommu",
    "cpu",
    "device",
];

impl Reader {
    fn line(&mut self, line: &str, at: usize) -> Result<(), (usize, Problem)> {
        let keyword = Tokens::new(line).peek().unwrap_or_default();
        let ends_program = matches!(keyword, "cpu" | "device" | "exists" | "witness");
        if let (Some(draft), Some(names), false) = (&mut self.draft, &self.names, ends_program) {
            return draft.line(names, line, at).map_err(|problem| (at, problem));
        }
        self.end_program()?;
        self.outside(keyword, line).map_err(|problem| (at, problem))
    }

    fn outside(&mut self, keyword: &str, line: &str) -> Result<(), Problem> {
        let mut tokens = Tokens::new(line);
        if !HEADER.contains(&keyword) && !matches!(keyword, "exists" | "witness") {
            return Err(Problem::new(
                format!("`{keyword}` begins no line"),
                format!("begin with one of {}, exists, witness", HEADER.join(", ")),
            ));
        }
        tokens.next()?;
        match keyword {
            "exists" | "witness" => return self.question(keyword == "exists", tokens.rest()),
            "test" | "source" | "unsupported" | "uncertain" => {
                return self.text(keyword, tokens.rest());
            }
            _ => self.header(keyword, &mut tokens)?,
        }
        tokens.finish()
    }

    fn text(&mut self, keyword: &str, text: &str) -> Result<(), Problem> {
        if text.is_empty() {
            return Err(Problem::new(format!("`{keyword}` says nothing"), "write it on the line"));
        }
        let place = match keyword {
            "test" => &mut self.name,
            "source" => &mut self.source,
            "unsupported" => &mut self.unsupported,
            _ => &mut self.uncertain,
        };
        if place.is_some() {
            return Err(Problem::new(format!("`{keyword}` twice"), "keep one"));
        }
        *place = Some(text.to_owned());
        Ok(())
    }

    fn header(&mut self, keyword: &str, tokens: &mut Tokens<'_>) -> Result<(), Problem> {
        match keyword {
            "arch" => {
                let name = tokens.rest();
                while tokens.next().ok().flatten().is_some() {}
                let found = Arch::ALL.into_iter().find(|arch| arch.name() == name);
                self.arch = Some(found.ok_or_else(|| {
                    Problem::new(
                        format!("no architecture `{name}`"),
                        "write x86-64, aarch64 or riscv64",
                    )
                })?);
                *tokens = Tokens::new("");
            }
            "verdict" => self.verdict(tokens)?,
            "faults" => {
                self.faults = match tokens.need("`stop` or `skip`")? {
                    "stop" => Faults::Stop,
                    "skip" => Faults::Skip,
                    other => {
                        let problem = format!("faults do not `{other}`");
                        return Err(Problem::new(problem, "write `stop` or `skip`"));
                    }
                };
            }
            "levels" => {
                let levels = tokens.number("a number of levels")? as u8;
                if !(1..=3).contains(&levels) || self.names.is_some() {
                    let help = "write 1, 2 or 3, before the first table, frame, page or variable";
                    return Err(Problem::new("no such tree", help));
                }
                self.levels = Some(levels);
            }
            "cpu" => self.cpu(tokens)?,
            "iommu" => self.iommu = device::iommu(tokens)?,
            "device" => self.device(tokens)?,
            _ => self.declaration(keyword, tokens)?,
        }
        Ok(())
    }

    fn verdict(&mut self, tokens: &mut Tokens<'_>) -> Result<(), Problem> {
        let expected = match tokens.need("a verdict")? {
            "allowed" => Expectation::Allowed,
            "forbidden" => Expectation::Forbidden,
            "required" => Expectation::Required,
            other => {
                let help = "write allowed, forbidden or required";
                return Err(Problem::new(format!("no verdict `{other}`"), help));
            }
        };
        let mut features = Features::default();
        if tokens.take("with") {
            while let Some(name) = tokens.next()? {
                let place = features.named(name).ok_or_else(|| {
                    let help = format!("know {}", Features::NAMES.join(", "));
                    Problem::new(format!("no feature `{name}`"), help)
                })?;
                *place = true;
            }
        }
        if self.cases.iter().any(|case| case.features == features) {
            return Err(Problem::new("two verdicts for one machine", "keep one"));
        }
        self.cases.push(Case { features, expected });
        Ok(())
    }

    fn names(&mut self) -> Result<&mut Names, Problem> {
        let arch = self.arch.ok_or_else(|| {
            Problem::new("no architecture yet", "write `arch` before tables and programs")
        })?;
        let levels = self.levels.unwrap_or(1);
        Ok(self.names.get_or_insert_with(|| Names::new(arch, levels)))
    }

    fn declaration(&mut self, keyword: &str, tokens: &mut Tokens<'_>) -> Result<(), Problem> {
        let names = self.names()?;
        if keyword == "entry" {
            let place = names.place(tokens)?;
            tokens.expect("=")?;
            let value = names.value(tokens)?;
            let Place::Entry { table, index } = place else {
                return Err(Problem::new(
                    "`entry` names no table",
                    "write TABLE[INDEX] or pte(PAGE)",
                ));
            };
            names.tables[usize::from(table)].entries[usize::from(index)] = value;
            return Ok(());
        }
        let name = names.declare(tokens.need("a name")?)?;
        match keyword {
            "var" | "frame" => {
                let initial =
                    if tokens.take("=") { names.value(tokens)? } else { Default::default() };
                let word = Word { name, initial };
                let list = if keyword == "var" { &mut names.vars } else { &mut names.frames };
                list.push(word);
            }
            "table" => names.tables.push(empty_table(&name)),
            "map" => {
                tokens.expect("->")?;
                let value = names.value(tokens)?;
                let taken: BTreeSet<u32> = names.pages.iter().map(|page| page.page).collect();
                let free = (0..ENTRIES as u32).find(|page| !taken.contains(page));
                let page = free.ok_or_else(|| {
                    Problem::new(
                        "the first table is full",
                        "place the page with `page` and `entry`",
                    )
                })?;
                names.pages.push(Page { name, page });
                let place = names.entry_of(names.pages.len() - 1, 0)?;
                if let Place::Entry { table, index } = place {
                    names.tables[usize::from(table)].entries[usize::from(index)] = value;
                }
            }
            _ => {
                tokens.expect("=")?;
                let path = tokens.need("indices from the root, such as 0.1")?;
                let page = page_number(path, names.levels)?;
                names.pages.push(Page { name, page });
            }
        }
        Ok(())
    }

    fn cpu(&mut self, tokens: &mut Tokens<'_>) -> Result<(), Problem> {
        let number = tokens.number("a CPU")? as usize;
        if number != self.cpus.len() || number >= MAX_PROGRAMS {
            return Err(Problem::new(
                format!("cpu {number} is not next"),
                format!("number CPUs from 0 in order, at most {MAX_PROGRAMS}"),
            ));
        }
        let names = self.names()?;
        let root = names.root(tokens)?;
        let mut tag = barriers::DEFAULT_TAG;
        if tokens.take("tag") {
            tag = tokens.number("a tag")? as u16;
        }
        self.cpus.push(Program {
            root,
            tag,
            code: vec![],
            user: true,
            managed: None,
            registers: vec![],
        });
        self.of_device = false;
        self.draft = Some(Draft::default());
        Ok(())
    }

    fn device(&mut self, tokens: &mut Tokens<'_>) -> Result<(), Problem> {
        let count = self.devices.len();
        let device = device::head(self.names()?, count, tokens)?;
        self.devices.push(device);
        self.of_device = true;
        self.draft = Some(Draft::default());
        Ok(())
    }

    fn end_program(&mut self) -> Result<(), (usize, Problem)> {
        if let Some(draft) = self.draft.take() {
            let code = draft.finish()?;
            if self.of_device {
                device::may_do(&code)?;
                self.devices.last_mut().expect("a draft belongs to a device").code = code;
                return Ok(());
            }
            self.cpus.last_mut().expect("a draft belongs to a CPU").code = code;
        }
        Ok(())
    }

    fn question(&mut self, goal: bool, text: &str) -> Result<(), Problem> {
        let names = self.names.as_ref().ok_or_else(|| {
            Problem::new("a question before the test", "write it after the programs")
        })?;
        let condition = condition::parse(names, &self.cpus, &self.devices, text)?;
        if !goal {
            self.witnesses.push(condition);
        } else if self.goal.replace(condition).is_some() {
            return Err(Problem::new("`exists` twice", "join both with & or |"));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Test, (usize, Problem)> {
        self.end_program()?;
        let missing = |what: &str| {
            (0, Problem::new(format!("no `{what}` line"), format!("add a line `{what} …`")))
        };
        let names = self.names.ok_or_else(|| missing("map"))?;
        if self.cases.is_empty() {
            return Err(missing("verdict"));
        }
        let forbids = self.cases.iter().any(|case| case.expected == Expectation::Forbidden);
        if forbids && self.witnesses.is_empty() && self.unsupported.is_none() {
            let help =
                "say with `witness` what must be reachable, or the verdict could hold of nothing";
            return Err((0, Problem::new("a forbidden outcome without a witness", help)));
        }
        for (number, cpu) in self.cpus.iter().enumerate() {
            for instruction in &cpu.code {
                if let super::program::Op::Interrupt { cpu: target } = instruction.op
                    && (usize::from(target) >= self.cpus.len() || usize::from(target) == number)
                {
                    let help = "interrupt another CPU of the test";
                    return Err((instruction.line, Problem::new("no such CPU", help)));
                }
                device::names_one(&instruction.op, &self.devices)
                    .map_err(|problem| (instruction.line, problem))?;
            }
        }
        Ok(Test {
            name: self.name.ok_or_else(|| missing("test"))?,
            arch: names.arch,
            source: self.source.ok_or_else(|| missing("source"))?,
            cases: self.cases,
            unsupported: self.unsupported,
            uncertain: self.uncertain,
            faults: self.faults,
            levels: names.levels,
            vars: names.vars,
            frames: names.frames,
            tables: names.tables,
            pages: names.pages,
            cpus: self.cpus,
            iommu: self.iommu,
            devices: self.devices,
            goal: self.goal.ok_or_else(|| missing("exists"))?,
            witnesses: self.witnesses,
        })
    }
}

fn page_number(path: &str, levels: u8) -> Result<u32, Problem> {
    let wrong = || {
        let help = format!("write {levels} indices below {ENTRIES} with dots between them");
        Problem::new(format!("`{path}` places no page"), help)
    };
    let mut page = 0;
    let mut count = 0;
    for part in path.split('.') {
        let index: u32 = part.parse().map_err(|_| wrong())?;
        if index as usize >= ENTRIES {
            return Err(wrong());
        }
        page = page << Test::INDEX_BITS | index;
        count += 1;
    }
    if count == levels { Ok(page) } else { Err(wrong()) }
}
