//! The tables of this repository: every mutant can be woven into the source, and changes it.

use std::collections::BTreeSet;
use std::path::Path;

use shootdown_weave::{Table, Tree, What};

/// `above`: crates whose mutants are in the library's table.
fn check(library: &str, above: &[&str], at_least: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = Table::read(&root.join("verify/mutants").join(library)).unwrap();
    let source = |library: &str| Tree::read(&root.join("crates").join(library).join("src"));
    let mut tree = source(library).unwrap();
    for above in above {
        tree.add_tree(above, &source(above).unwrap()).unwrap();
    }
    assert!(table.mutants().len() >= at_least, "{library}: {} mutants", table.mutants().len());
    for mutant in table.mutants() {
        assert!(
            mutant.what.len() > 15 && mutant.what.ends_with('.'),
            "{}: {}",
            mutant.name,
            mutant.what
        );
        for edit in &mutant.edits {
            let What::Text { before, after } = &edit.what else {
                unreachable!("tables have texts")
            };
            assert_ne!(before.trim(), after.trim(), "{} changes nothing", mutant.name);
        }
    }
    if let Err(error) = tree.weave(&table.changes()) {
        panic!("{error}");
    }
}

#[test]
fn every_mutant_of_the_core_changes_it() {
    check("shootdown", &[], 370);
}

#[test]
fn every_mutant_of_the_libraries_of_devices_changes_them() {
    check("shootdown-dma", &["shootdown-vfio"], 190);
}

/// `--mutant NAME` and a failing schedule's code name a mutant without its library.
#[test]
fn no_two_mutants_have_one_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../verify/mutants");
    let mut names = BTreeSet::new();
    for library in ["shootdown", "shootdown-dma"] {
        for mutant in Table::read(&root.join(library)).unwrap().mutants() {
            assert!(names.insert(mutant.name.clone()), "there are two of {}", mutant.name);
        }
    }
}
