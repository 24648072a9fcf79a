//! Texts compared token by token.

use std::ops::Range;
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A token's text, and its bytes.
pub(crate) struct Token {
    text: String,
    range: Range<usize>,
}

/// The tokens of a text, brackets among them.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut all = Vec::new();
    flatten(TokenStream::from_str(text).map_err(|why| why.to_string())?, &mut all);
    Ok(all)
}

/// The tokens that stand in a range of bytes.
pub(crate) fn within<'a>(all: &'a [Token], range: &Range<usize>) -> &'a [Token] {
    let first = all.partition_point(|token| token.range.start < range.start);
    let end = all.partition_point(|token| token.range.end <= range.end);
    &all[first..end.max(first)]
}

/// Where a row of tokens is found in another.
pub(crate) fn find(all: &[Token], wanted: &[Token]) -> Vec<Range<usize>> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let same = |row: &&[Token]| row.iter().zip(wanted).all(|(a, b)| a.text == b.text);
    let place = |row: &[Token]| row[0].range.start..row[row.len() - 1].range.end;
    all.windows(wanted.len()).filter(same).map(place).collect()
}

fn flatten(stream: TokenStream, all: &mut Vec<Token>) {
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                all.push(Token { text: open.into(), range: group.span_open().byte_range() });
                flatten(group.stream(), all);
                all.push(Token { text: close.into(), range: group.span_close().byte_range() });
            }
            tree => all.push(Token { text: tree.to_string(), range: tree.span().byte_range() }),
        }
    }
}
