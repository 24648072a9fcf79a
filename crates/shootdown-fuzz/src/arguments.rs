//! The command line: any arguments are understood or refused, and every refusal is for the user's
//! eyes.

use std::ffi::OsString;

use shootdown_lab::{cli, experiments, machines, names};

/// The bytes are arguments, one a line. Nothing is run.
pub fn command_line(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let words: Vec<&str> = text.lines().collect();
    let _ = cli::parse(words.iter().map(OsString::from));
    for word in words {
        let list: Vec<String> = word.split(',').map(str::to_owned).collect();
        sentence(word, names::policy(word).err());
        sentence(word, names::policies(&list).err());
        sentence(word, experiments::find(word).err());
        // A path would be opened.
        if !word.contains('/') && !word.to_lowercase().ends_with(".toml") {
            sentence(word, machines::find(word).err());
        }
    }
}

/// A refusal is one line: what the user typed must not smuggle line ends or control codes into it.
fn sentence(word: &str, refusal: Option<shootdown_lab::LabError>) {
    let Some(error) = refusal else { return };
    let said = error.to_string();
    assert_eq!(error.exit_code(), 2, "{said}");
    assert!(!said.chars().any(char::is_control), "`{word:?}` is answered with {said:?}");
}
