//! What is mutated, and what is not and why.
//!
//! A file in TOML lists, with a sentence each, the files, functions and statements that are left
//! out. Everything else below a library's `src` is mutated.

use serde::Deserialize;

use crate::Error;

/// Something that is left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeftOut {
    library: Option<String>,
    file: Option<String>,
    function: Option<String>,
    pattern: Option<String>,
    because: String,
}

/// What is left out.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scope {
    #[serde(default)]
    file: Vec<LeftOut>,
    #[serde(default)]
    function: Vec<LeftOut>,
    #[serde(default)]
    text: Vec<LeftOut>,
}

impl Scope {
    /// Reads the list.
    ///
    /// # Errors
    /// [`Error::Scope`] where it is no such list, or something is left out without a reason.
    pub fn new(text: &str) -> Result<Self, Error> {
        let scope: Self = toml::from_str(text).map_err(|e| Error::Scope(e.to_string()))?;
        let needs = |list: &[LeftOut], named: fn(&LeftOut) -> bool, what: &str| match list
            .iter()
            .find(|out| !named(out) || out.because.trim().is_empty())
        {
            Some(out) => Err(Error::Scope(format!("{out:?} has no `{what}` or no reason"))),
            None => Ok(()),
        };
        needs(&scope.file, |out| out.file.is_some() && out.library.is_some(), "library and file")?;
        needs(&scope.function, |out| out.function.is_some(), "function")?;
        needs(&scope.text, |out| out.pattern.is_some(), "pattern")?;
        Ok(scope)
    }

    /// Is the whole file left out? A name that ends with `/` is a folder.
    #[must_use]
    pub fn leaves_out_file(&self, library: &str, file: &str) -> bool {
        self.file.iter().any(|out| {
            let name = out.file.as_deref().unwrap_or_default();
            let matches = if name.ends_with('/') { file.starts_with(name) } else { file == name };
            matches && out.library.as_deref() == Some(library)
        })
    }

    /// Is this function left out? A name that ends with `*` is the beginning of names.
    #[must_use]
    pub fn leaves_out_function(&self, library: &str, file: &str, function: &str) -> bool {
        self.function.iter().any(|out| {
            let name = out.function.as_deref().unwrap_or_default();
            let matches = match name.strip_suffix('*') {
                Some(beginning) => function.starts_with(beginning),
                None => function == name || function.split('~').next() == Some(name),
            };
            matches
                && out.library.as_deref().is_none_or(|of| of == library)
                && out.file.as_deref().is_none_or(|of| of == file)
        })
    }

    /// Is a statement or condition of this text left out?
    #[must_use]
    pub fn leaves_out_text(&self, text: &str) -> bool {
        self.text.iter().filter_map(|out| out.pattern.as_deref()).any(|p| text.contains(p))
    }
}
