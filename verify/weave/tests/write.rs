//! Where a woven copy is written, nothing of an older one stays.

use std::fs;
use std::path::PathBuf;

use shootdown_weave::Tree;

/// A folder of this test's own, empty.
fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("shootdown-weave-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

#[test]
fn a_file_that_was_moved_is_not_found_at_both_places() {
    let folder = folder();
    let before = Tree::from_files([("lib.rs", "mod tags;"), ("tags/slots.rs", "// slots")]);
    before.write(&folder).expect("it can be written");
    let after = Tree::from_files([("lib.rs", "mod tags;"), ("tags/slots/mod.rs", "// slots")]);
    after.write(&folder).expect("it can be written");
    assert!(!folder.join("tags/slots.rs").exists());
    assert!(folder.join("tags/slots/mod.rs").exists() && folder.join("lib.rs").exists());
    fs::remove_dir_all(&folder).expect("it is there");
}
