//! Machine profiles as the command line names them.

use std::path::Path;

use shootdown_machine::{Profile, ProfileError};

use crate::LabError;
use crate::names::unknown;

/// The built-in profile of that name, or the profile in the file of that path (recognized by its
/// `.toml` or a path separator).
///
/// # Errors
/// [`LabError::BadInput`]: unknown name (with the nearest), unreadable or unusable file (with its path).
pub fn find(name: &str) -> Result<Profile, LabError> {
    let is_path = name.contains(std::path::MAIN_SEPARATOR)
        || Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("toml"));
    let found = if is_path { Profile::load(Path::new(name)) } else { Profile::named(name) };
    found.map_err(|error| match error {
        ProfileError::Unknown { name, .. } => unknown("machine", &name, Profile::names()),
        other => LabError::bad(one_line(&other.to_string())),
    })
}

/// The built-in profiles: name and one line.
#[must_use]
pub fn all() -> Vec<(String, String)> {
    Profile::names()
        .filter_map(|name| Profile::named(name).ok())
        .map(|profile| (profile.name, profile.description))
        .collect()
}

/// Checks a CPU count the user gave against what a machine can have.
///
/// # Errors
/// [`LabError::BadInput`] when it is below `least` or above what the machine simulates.
pub fn check_cpus(cpus: u32, least: u32) -> Result<u32, LabError> {
    if cpus < least || cpus > shootdown_machine::MAX_CPUS {
        return Err(LabError::bad(format!(
            "--cpus {cpus} is out of range; give {least} to {}",
            shootdown_machine::MAX_CPUS
        )));
    }
    Ok(cpus)
}

/// Syntax errors of a profile come with a picture of the line; the sentence is made of its parts.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ")
}
