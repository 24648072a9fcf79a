//! A line cut into words and signs.

use crate::litmus::error::Problem;

/// What is left of a line.
#[derive(Clone, Debug)]
pub(crate) struct Tokens<'a> {
    rest: &'a str,
}

/// Longer signs first.
const SIGNS: [&str; 15] =
    ["==", "!=", "->", "=", "(", ")", "[", "]", ",", "@", "!", "&", "|", "^", ":"];

const fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

impl<'a> Tokens<'a> {
    pub fn new(line: &'a str) -> Self {
        Self { rest: line.trim() }
    }

    /// Everything that has not been taken.
    pub fn rest(&self) -> &'a str {
        self.rest
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next token, left where it is.
    pub fn peek(&self) -> Option<&'a str> {
        self.clone().next().ok().flatten()
    }

    /// The next token; `None` at the end of the line.
    pub fn next(&mut self) -> Result<Option<&'a str>, Problem> {
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let length = if is_word(first) {
            self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len())
        } else if let Some(sign) = SIGNS.iter().find(|sign| self.rest.starts_with(**sign)) {
            sign.len()
        } else {
            let problem = format!("`{first}` means nothing here");
            return Err(Problem::new(problem, "use the words and signs of the format"));
        };
        let (token, rest) = self.rest.split_at(length);
        self.rest = rest.trim_start();
        Ok(Some(token))
    }

    /// The next token, which must be there.
    pub fn need(&mut self, what: &str) -> Result<&'a str, Problem> {
        self.next()?
            .ok_or_else(|| Problem::new("the line ends too early", format!("{what} belongs here")))
    }

    /// Takes the token if it is next.
    pub fn take(&mut self, token: &str) -> bool {
        let mut ahead = self.clone();
        if ahead.next().ok().flatten() == Some(token) {
            *self = ahead;
            return true;
        }
        false
    }

    /// The token must be next.
    pub fn expect(&mut self, token: &str) -> Result<(), Problem> {
        let found = self.need(&format!("`{token}`"))?;
        if found == token {
            return Ok(());
        }
        Err(Problem::new(format!("`{found}` where `{token}` belongs"), format!("write `{token}`")))
    }

    /// A number: decimal, or hexadecimal after `0x`.
    pub fn number(&mut self, what: &str) -> Result<u64, Problem> {
        let token = self.need(what)?;
        number(token).ok_or_else(|| {
            Problem::new(format!("`{token}` is no number"), format!("{what} is a number"))
        })
    }

    /// Nothing may be left.
    pub fn finish(&self) -> Result<(), Problem> {
        if self.is_empty() {
            return Ok(());
        }
        Err(Problem::new(format!("`{}` is too much", self.rest), "end the line before it"))
    }
}

/// A number, if the token is one.
pub(super) fn number(token: &str) -> Option<u64> {
    match token.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => token.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_into_words_and_signs() {
        let mut tokens = Tokens::new("L0: r0 = load.acq x->f[0]!=0x1F");
        let mut found = Vec::new();
        while let Some(token) = tokens.next().unwrap() {
            found.push(token);
        }
        let expected =
            ["L0", ":", "r0", "=", "load.acq", "x", "->", "f", "[", "0", "]", "!=", "0x1F"];
        assert_eq!(found, expected);
        assert_eq!(number("0x1F"), Some(31));
    }

    #[test]
    fn unknown_signs_are_named() {
        let error = Tokens::new("% 1").next().unwrap_err();
        assert!(error.problem.contains('%'));
    }
}
