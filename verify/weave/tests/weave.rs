//! What a woven copy looks like, and that it does what its changes say: it is compiled and run.

use std::path::{Path, PathBuf};
use std::process::Command;

use shootdown_weave::{Change, Changed, Edit, Error, Part, Replacement, Switch, Tree, Woven};

const ROOT: &str = r#"//! A library.
#![allow(dead_code)]

pub mod inner;

/// Documented.
pub fn double(x: u32) -> u32 {
    // A comment.
    let y = x * 2;
    if y > 10 {
        return 10;
    }
    y
}

pub const fn seven() -> u32 {
    7
}

pub fn below(limit: u32) -> impl Iterator<Item = u32> {
    (0..limit).filter(|n| n % 2 == 0)
}
"#;

const INNER: &str = r#"pub struct Cell(pub u32);

impl Cell {
    pub fn take(&mut self) -> u32 {
        let Some(rest) = self.0.checked_sub(1) else { return 0 };
        self.0 = rest;
        rest
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.0 = 0;
    }
}

pub trait Named {
    fn name(&self) -> &'static str {
        "nobody"
    }
}

impl Named for Cell {}
"#;

const MUTANT: &str = r#"
use std::cell::Cell;
std::thread_local! {
    static SELECTED: Cell<u32> = const { Cell::new(0) };
    static REACHED: Cell<bool> = const { Cell::new(false) };
}
pub fn selected() -> u32 { SELECTED.get() }
pub fn reach() { REACHED.set(true) }
pub fn reached() -> bool { REACHED.get() }
pub fn set(id: u32) { SELECTED.set(id); REACHED.set(false) }
"#;

fn tree() -> Tree {
    Tree::from_files([("lib.rs", ROOT), ("inner.rs", INNER)])
}

fn change(id: u32, edits: impl Into<Vec<Edit>>) -> Change {
    Change { id, name: format!("change-{id}"), edits: edits.into() }
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Compiles a tree with a `main` beside it, and runs it.
fn run(name: &str, mut tree: Tree, main: &str) {
    let folder = scratch(name);
    tree.add_module("mutant", MUTANT);
    tree.bare("lib.rs").unwrap();
    tree.write(&folder.join("src")).unwrap();
    let root = folder.join("src/lib.rs");
    std::fs::write(folder.join("main.rs"), format!("include!({root:?});\nfn main() {{ {main} }}"))
        .unwrap();
    let rustc = std::env::var("RUSTC").unwrap_or("rustc".into());
    let built = Command::new(rustc)
        .args(["--edition=2024", "-Adead_code", "main.rs", "-o", "main"])
        .current_dir(&folder)
        .status()
        .unwrap();
    assert!(built.success(), "the woven copy does not compile: {}", folder.display());
    assert!(Command::new(folder.join("main")).status().unwrap().success());
}

#[test]
fn each_change_is_behind_its_number() {
    let changes = [
        change(1, [Edit::text("lib.rs", "double", "x * 2", "x * 3")]),
        change(2, [Edit::text("lib.rs", "double", "if y > 10 { return 10; }", "")]),
        // Several functions in several files, a `const fn` among them.
        change(
            3,
            [
                Edit::text("lib.rs", "seven", "7", "8"),
                Edit::text("inner.rs", "Cell::take", "self.0 = rest;", ""),
                Edit::text("inner.rs", "Named::name", "\"nobody\"", "\"somebody\""),
            ],
        ),
        // A declaration that what follows uses, and two edits of one function.
        change(
            4,
            [
                Edit::text("lib.rs", "double", "let y = x * 2;", "let y = x; let z = 1;"),
                Edit::text("lib.rs", "double", "y > 10", "y + z > 9"),
            ],
        ),
        change(5, [Edit::text("lib.rs", "below", "n % 2 == 0", "n % 2 == 1")]),
        change(6, [Edit::text("inner.rs", "<Cell as Drop>::drop", "self.0 = 0", "self.0 = 1")]),
    ];
    let woven = tree().weave(&changes).unwrap();
    run(
        "each",
        woven,
        r#"
        use inner::{Cell, Named};
        let all = |id| {
            mutant::set(id);
            let mut cell = Cell(5);
            let took = (cell.take(), cell.take());
            let name = cell.name();
            (double(4), double(9), seven(), took, name, below(4).collect::<Vec<_>>())
        };
        let plain = (8, 10, 7, (4, 3), "nobody", vec![0, 2]);
        assert_eq!(all(0), plain);
        assert!(!mutant::reached());
        assert_eq!(all(1), (10, 10, 7, (4, 3), "nobody", vec![0, 2]));
        assert!(mutant::reached());
        assert_eq!(all(2), (8, 18, 7, (4, 3), "nobody", vec![0, 2]));
        assert_eq!(all(3), (8, 10, 8, (4, 4), "somebody", vec![0, 2]));
        assert_eq!(all(4), (4, 10, 7, (4, 3), "nobody", vec![0, 2]));
        assert_eq!(all(5), (8, 10, 7, (4, 3), "nobody", vec![1, 3]));
        assert_eq!(all(6), plain);
        assert_eq!(all(99), plain);
        "#,
    );
}

const PLACES: &str = r#"//! Every kind of place.
pub fn places(x: u32, list: &[u32]) -> u32 {
    let Some(first) = list.first().copied() else { return 1 };
    let odd = |n: &u32| n % 2 == 1;
    let mut sum = 0;
    for n in list.iter().filter(|n| odd(n)) {
        if *n > 2 && x > 3 {
            sum += n;
        }
        sum += 1;
        sum %= 1000;
    }
    match first {
        0 if x > 9 => 100,
        0 => sum,
        _ => sum + first,
    }
}
"#;

#[test]
fn a_choice_stands_where_the_edit_is() {
    let edit = |before: &str, after: &str| Edit::text("lib.rs", "places", before, after);
    let changes = [
        change(1, [edit("list.first().copied()", "list.last().copied()")]),
        change(2, [edit("n % 2 == 1", "n % 2 == 0")]),
        change(3, [edit("x > 3", "x > 5")]),
        change(4, [edit("sum += n;", "")]),
        // More than the operand: `&&` binds before `||`.
        change(12, [edit("x > 3", "x > 33 || *n == 1")]),
        change(5, [edit("x > 9", "x < 9")]),
        change(6, [edit("0 => sum,", "0 => 7,")]),
        // First and second statement, second and third: they cross.
        change(7, [edit("if *n > 2 && x > 3 { sum += n; } sum += 1;", "sum += 2 * n + 2;")]),
        change(8, [edit("sum += 1; sum %= 1000;", "sum += 2;")]),
        // A declaration for all that follows, and two edits that need nothing of each other.
        change(9, [edit("let mut sum = 0;", "let mut sum = 5; let list = &list[1..];")]),
        change(10, [edit("sum += 1;", "sum += 3;"), edit("sum + first", "sum - first")]),
        change(11, [edit("let odd = |n: &u32| n % 2 == 1;", "let odd = |n: &u32| n % 2 == 2;")]),
    ];
    let woven = Tree::from_files([("lib.rs", PLACES)]).weave(&changes).unwrap();
    let text = woven.file(Path::new("lib.rs")).unwrap();
    assert_eq!(
        text.matches("list.iter()").count(),
        1,
        "a copy of a whole body where none is needed"
    );
    run(
        "places",
        woven,
        r#"
        let all = |id| {
            mutant::set(id);
            (places(4, &[1, 3, 5]), places(4, &[0, 3]), places(10, &[0, 3]), places(4, &[]))
        };
        assert_eq!(all(0), (12, 4, 100, 1));
        assert_eq!(all(1), (16, 7, 7, 1));
        assert_eq!(all(2), (1, 1, 100, 1));
        assert_eq!(all(3), (4, 1, 100, 1));
        assert_eq!(all(4), (4, 1, 100, 1));
        assert_eq!(all(5), (12, 100, 4, 1));
        assert_eq!(all(6), (12, 7, 100, 1));
        assert_eq!(all(7), (25, 8, 100, 1));
        assert_eq!(all(8), (15, 5, 100, 1));
        assert_eq!(all(9), (16, 9, 100, 1));
        assert_eq!(all(10), (16, 6, 100, 1));
        assert_eq!(all(11), (1, 0, 100, 1));
        assert_eq!(all(12), (5, 1, 100, 1));
        "#,
    );
}

#[test]
fn a_change_is_reached_where_its_statement_is_come_by() {
    let changes = [change(1, [Edit::text("lib.rs", "double", "return 10", "return 11")])];
    run(
        "reached",
        tree().weave(&changes).unwrap(),
        "mutant::set(1); assert_eq!(double(2), 4); assert!(!mutant::reached());
        assert_eq!(double(9), 11); assert!(mutant::reached());",
    );
}

#[test]
fn lines_stay_where_they_are() {
    let changes = [
        change(1, [Edit::text("lib.rs", "double", "x * 2", "x\n*\n3")]),
        change(2, [Edit::text("lib.rs", "seven", "7", "8")]),
    ];
    let woven = tree().weave(&changes).unwrap();
    let woven = woven.file(Path::new("lib.rs")).unwrap();
    let line = |text: &str, of: &str| text.lines().position(|l| l.contains(of)).unwrap();
    for of in ["A comment", "return 10;", "seven()", "below("] {
        assert_eq!(line(ROOT, of), line(woven, of));
    }
}

#[test]
fn a_range_of_bytes_is_replaced() {
    let start = ROOT.find("> 10").unwrap();
    let changes = [change(7, [Edit::span("lib.rs", "double", start..start + 1, "<")])];
    run(
        "bytes",
        tree().weave(&changes).unwrap(),
        "mutant::set(7); assert_eq!(double(2), 10); assert!(mutant::reached());",
    );
}

#[test]
fn what_is_inserted_copies_nothing() {
    let start = PLACES.find("if *n > 2").unwrap();
    let insert = |text: &str| [Edit::span("lib.rs", "places", start..start, text)];
    let changes = [change(1, insert("return sum;")), change(2, insert("sum += 4; "))];
    let woven = Tree::from_files([("lib.rs", PLACES)]).weave(&changes).unwrap();
    assert_eq!(woven.file(Path::new("lib.rs")).unwrap().matches("> 2").count(), 1);
    let main = "let all = |id| { mutant::set(id); places(4, &[1, 3, 5]) };
        assert_eq!((all(0), all(1), all(2)), (12, 0, 24));";
    run("inserted", woven, main);
}

#[test]
fn parts_of_a_text_are_known() {
    let replace = |id, from: &str, to: &str| {
        let start = PLACES.find(from).unwrap();
        let range = start..start + from.len();
        Changed { id, replacements: vec![Replacement { range, text: to.into() }] }
    };
    let changes = [
        replace(3, "x > 3", "x > 33"),
        replace(4, "sum += n;", "sum += 44;"),
        replace(5, "if *n > 2 && x > 3 {\n            sum += n;\n        }", "sum = 55;"),
        replace(6, "sum += n;", "sum += 66;"),
    ];
    let words = Switch { ask: &|choice| format!("asked({choice})"), reach: "" };
    let woven = Woven::new(PLACES, &changes, 10, &words).unwrap().unwrap();
    let part = |of: &str| woven.part(woven.text.find(of).unwrap());
    let choices: Vec<_> = woven.choices().map(|(n, ids)| (n, ids.to_vec())).collect();
    assert_eq!(choices, [(10, vec![5]), (11, vec![3]), (12, vec![4, 6])]);
    assert_eq!(part("33"), Some(Part::Change(3)));
    assert_eq!(part("44"), Some(Part::Change(4)));
    assert_eq!(part("55"), Some(Part::Change(5)));
    assert_eq!(part("66"), Some(Part::Change(6)));
    assert_eq!(part("sum += n"), Some(Part::Original(12)));
    assert_eq!(part("*n > 2"), Some(Part::Original(10)));
    assert_eq!(part("let mut sum"), None);
    for asked in ["asked(10)", "asked(11)", "asked(12)"] {
        assert_eq!(woven.text.matches(asked).count(), 1);
    }
}

#[test]
fn another_library_s_modules_join_the_tree() {
    let mut all = tree();
    let above = Tree::from_files([("lib.rs", "//! Above.\npub mod above;"), ("above.rs", "")]);
    all.add_tree("other", &above).unwrap();
    assert_eq!(all.file(Path::new("lib.rs")), tree().file(Path::new("lib.rs")));
    all.bare("other.rs").unwrap();
    assert_eq!(all.file(Path::new("other.rs")).map(str::trim), Some("pub mod above;"));
    assert!(all.file(Path::new("above.rs")).is_some());
    let again = all.add_tree("another", &above).unwrap_err();
    assert!(matches!(&again, Error::Twice { file } if file == Path::new("above.rs")), "{again}");
}

#[test]
fn what_is_not_there_once_stops_the_build() {
    let weave = |edit: Edit| tree().weave(&[change(1, [edit])]).unwrap_err();
    assert!(matches!(weave(Edit::text("no.rs", "double", "x", "y")), Error::NoFile { .. }));
    assert!(matches!(weave(Edit::text("lib.rs", "triple", "x", "y")), Error::NoFunction { .. }));
    let twice = weave(Edit::text("lib.rs", "double", "10", "11"));
    assert!(matches!(twice, Error::NotOnce { times: 2, .. }), "{twice}");
    let never = weave(Edit::text("lib.rs", "double", "seven", "eight"));
    assert!(matches!(never, Error::NotOnce { times: 0, .. }), "{never}");
    let nothing = weave(Edit::text("lib.rs", "double", "", "x"));
    assert!(matches!(nothing, Error::NotOnce { times: 0, .. }), "{nothing}");
    assert!(matches!(weave(Edit::span("lib.rs", "double", 0..3, "x")), Error::Outside { .. }));
    let broken = weave(Edit::text("lib.rs", "double", "x * 2", "x *"));
    assert!(matches!(broken, Error::Broken { .. }), "{broken}");
    for word in ["change-1", "lib.rs", "double"] {
        assert!(broken.to_string().contains(word) && twice.to_string().contains(word));
    }

    let overlap = [
        Edit::text("lib.rs", "double", "x * 2", "x"),
        Edit::text("lib.rs", "double", "* 2", "* 3"),
    ];
    let error = tree().weave(&[change(1, overlap)]).unwrap_err();
    assert!(matches!(error, Error::Overlap { .. }), "{error}");
    let edit = || [Edit::text("lib.rs", "seven", "7", "8")];
    let error = tree().weave(&[change(1, edit()), change(1, edit())]).unwrap_err();
    assert!(matches!(error, Error::Number { id: 1, .. }), "{error}");
    assert!(matches!(tree().weave(&[change(0, edit())]), Err(Error::Number { id: 0, .. })));
}
