//! The names a test has declared, and the places and values that lines make of them.

use super::tokens::{Tokens, number};
use crate::hostile::{Descriptor, Frame, TableId};
use crate::litmus::error::Problem;
use crate::litmus::program::{Place, Reg};
use crate::litmus::test::{Arch, Page, Table, Test, Word};
use crate::litmus::value::Value;

/// Everything that has a name.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub arch: Arch,
    pub levels: u8,
    pub vars: Vec<Word>,
    pub frames: Vec<Word>,
    pub tables: Vec<Table>,
    pub pages: Vec<Page>,
}

pub(super) const ENTRIES: usize = 1 << Test::INDEX_BITS;

impl Names {
    /// The tables that every test has: one per level, linked by their first entries.
    pub fn new(arch: Arch, levels: u8) -> Self {
        let names: &[&str] = match levels {
            1 => &["root"],
            2 => &["root", "leaf"],
            _ => &["root", "mid", "leaf"],
        };
        let mut tables: Vec<Table> = names.iter().map(|name| empty_table(name)).collect();
        for (below, table) in (1..names.len()).zip(&mut tables) {
            table.entries[0] = Value::descriptor(Descriptor::table(TableId(below as u16)));
        }
        Self { arch, levels, vars: vec![], frames: vec![], tables, pages: vec![] }
    }

    pub fn table(&self, name: &str) -> Option<usize> {
        self.tables.iter().position(|table| table.name == name)
    }

    /// `root TABLE`, or the first table.
    pub fn root(&self, tokens: &mut Tokens<'_>) -> Result<usize, Problem> {
        if !tokens.take("root") {
            return Ok(0);
        }
        let name = tokens.need("a table")?;
        self.table(name).ok_or_else(|| {
            Problem::new(format!("there is no table `{name}`"), "declare it with `table`")
        })
    }

    pub fn frame(&self, name: &str) -> Option<usize> {
        self.frames.iter().position(|frame| frame.name == name)
    }

    pub fn var(&self, name: &str) -> Option<usize> {
        self.vars.iter().position(|var| var.name == name)
    }

    pub fn page(&self, name: &str) -> Option<usize> {
        self.pages.iter().position(|page| page.name == name)
    }

    /// Is the name free?
    pub fn declare(&self, name: &str) -> Result<String, Problem> {
        let taken = self.table(name).is_some()
            || self.frame(name).is_some()
            || self.var(name).is_some()
            || self.page(name).is_some();
        if taken {
            return Err(Problem::new(
                format!("`{name}` is declared twice"),
                "give every table, frame, variable and page a name of its own",
            ));
        }
        if register(name).is_some() || !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(Problem::new(
                format!("`{name}` cannot be a name"),
                "begin with a letter, and leave r0 to r63 to registers",
            ));
        }
        Ok(name.to_owned())
    }

    /// `NAME`, `TABLE[INDEX]`, `pte(PAGE)` or `pte(PAGE, LEVEL)`.
    pub fn place(&self, tokens: &mut Tokens<'_>) -> Result<Place, Problem> {
        let name = tokens.need("a page, a variable or a table's entry")?;
        if name == "pte" {
            tokens.expect("(")?;
            let page = self.known_page(tokens.need("a page")?)?;
            let level = if tokens.take(",") { tokens.number("a level")? as u8 } else { 0 };
            tokens.expect(")")?;
            return self.entry_of(page, level);
        }
        if let Some(table) = self.table(name) {
            tokens.expect("[")?;
            let index = tokens.number("an index")? as usize;
            tokens.expect("]")?;
            return Self::entry(table, index);
        }
        if let Some(var) = self.var(name) {
            return Ok(Place::Var(var as u8));
        }
        self.known_page(name).map(|page| Place::Page(page as u8))
    }

    pub fn entry(table: usize, index: usize) -> Result<Place, Problem> {
        if index >= ENTRIES {
            return Err(Problem::new(
                format!("a table has no entry {index}"),
                format!("use an index below {ENTRIES}"),
            ));
        }
        Ok(Place::Entry { table: table as u8, index: index as u8 })
    }

    pub fn known_page(&self, name: &str) -> Result<usize, Problem> {
        self.page(name).ok_or_else(|| {
            Problem::new(
                format!("`{name}` is not declared"),
                "declare it with `map`, `page` or `var`",
            )
        })
    }

    /// The entry of `level` through which a walk from the first table reaches the page at the
    /// start.
    pub fn entry_of(&self, page: usize, level: u8) -> Result<Place, Problem> {
        let number = self.pages[page].page;
        let mut table = 0;
        for at in (0..self.levels).rev() {
            let index =
                (number >> (u32::from(at) * u32::from(Test::INDEX_BITS))) as usize % ENTRIES;
            if at == level {
                return Self::entry(table, index);
            }
            let below = self.tables[table].entries[index].as_walked();
            if !below.present() || below.has(Descriptor::LEAF) {
                break;
            }
            table = usize::from(below.next().0);
        }
        Err(Problem::new(
            format!("no table at level {level} for this page at the start"),
            "name the entry as TABLE[INDEX]",
        ))
    }

    /// A number or a descriptor: `invalid`, `table NAME`, or `FRAME` and its attributes.
    pub fn value(&self, tokens: &mut Tokens<'_>) -> Result<Value, Problem> {
        let token = tokens.need("a value")?;
        if let Some(number) = number(token) {
            return Ok(Value::number(number));
        }
        let descriptor = match token {
            "invalid" => Descriptor::ABSENT,
            "table" => {
                let name = tokens.need("a table")?;
                let table = self.table(name).ok_or_else(|| {
                    Problem::new(format!("there is no table `{name}`"), "declare it with `table`")
                })?;
                Descriptor::table(TableId(table as u16))
            }
            name => {
                let frame = self.frame(name).ok_or_else(|| {
                    Problem::new(
                        format!("`{name}` is no value"),
                        "write a number, `invalid`, `table NAME` or a declared frame",
                    )
                })?;
                self.leaf(frame)
            }
        };
        self.attributes(descriptor, tokens).map(Value::descriptor)
    }

    /// A page that everything may be done with, and that is used and dirty already.
    pub fn leaf(&self, frame: usize) -> Descriptor {
        let leaf = Descriptor::user_rw(Frame(frame as u32));
        if self.arch == Arch::Aarch64 { leaf.without(Descriptor::DIRTY) } else { leaf }
    }

    fn attributes(
        &self,
        mut of: Descriptor,
        tokens: &mut Tokens<'_>,
    ) -> Result<Descriptor, Problem> {
        while let Some(word) = tokens.peek() {
            let arm = self.arch == Arch::Aarch64;
            of = match word {
                "invalid" => of.without(Descriptor::PRESENT),
                "ro" => of.without(Descriptor::WRITE),
                "noaf" => of.without(Descriptor::ACCESSED),
                "clean" if arm => of.without(Descriptor::WRITE),
                "clean" => of.without(Descriptor::DIRTY),
                "dbm" if arm => of.with(Descriptor::DBM),
                "global" => of.with(Descriptor::GLOBAL),
                _ => break,
            };
            tokens.next()?;
        }
        Ok(of)
    }
}

pub(crate) fn empty_table(name: &str) -> Table {
    let entries = vec![Value::descriptor(Descriptor::ABSENT); ENTRIES];
    Table { name: name.to_owned(), entries }
}

/// `r0` to `r63`.
pub(super) fn register(token: &str) -> Option<Reg> {
    let digits = token.strip_prefix('r')?;
    if digits.is_empty() || digits.len() > 2 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|n| *n < 64)
}
