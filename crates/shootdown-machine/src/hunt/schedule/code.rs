//! A schedule as one short line of letters and digits, and back.
//!
//! ```text
//! 1 r4 h2q ... 7k3m0d
//! | |          |
//! | |          checksum of the choices: 6 characters
//! | one number per choice that is not 0
//! version
//! ```
//!
//! (without the spaces). A number holds how many zeros come before the choice, and the choice: `2 *
//! zeros` for the choice 1, and `2 * zeros + 1`, followed by a number `choice - 2`, for others.
//! Zeros at the end are not written: a replay takes 0 beyond the end. Numbers are written five bits
//! to a character, lowest first: four of the number, and one that says whether more follow.
//!
//! The 32 characters are Crockford's: no `i`, `l`, `o` and `u`, which are mistaken for others;
//! capital letters are read too, and `i`, `l` as 1, `o` as 0.

use super::rng::mix;

/// Of the numbers 0 to 31.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// The first character: another meaning of the rest would get another one.
const VERSION: char = '1';
/// Characters of the checksum: one line with a mistake in a thousand million is taken for another
/// schedule.
const CHECK: usize = 6;
/// The most choices: far more than any run takes, and a bound on what a line can ask for.
const LONGEST: u64 = 1 << 22;

/// A line that is no schedule. Places are counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodeError {
    /// Not long enough for a version and a checksum.
    #[error(
        "the schedule has {0} characters, and the shortest has 7: copy the whole line that the failing run printed"
    )]
    Short(usize),
    /// It begins with something else than a known version.
    #[error(
        "the schedule begins with {0:?}, and this version reads those that begin with '1': use the version of the program that printed it"
    )]
    Version(char),
    /// A character that is never written.
    #[error(
        "character {at} of the schedule is {found:?}, which no schedule has: use digits and letters other than u, without spaces"
    )]
    Character {
        /// Its place.
        at: usize,
        /// What it is.
        found: char,
    },
    /// The checksum is that of another schedule.
    #[error(
        "the checksum, from character {at} on, does not match: a character is wrong or missing; copy the line again"
    )]
    Checksum {
        /// Where the checksum begins.
        at: usize,
    },
    /// A number goes on where the checksum begins.
    #[error(
        "the number at character {at} has no end: something is missing before the last six characters; copy the line again"
    )]
    Cut {
        /// Where the number begins.
        at: usize,
    },
    /// A number that no run could have led to.
    #[error(
        "the number at character {at} is too large for a schedule (4 million choices of up to 65535): copy the line again"
    )]
    Large {
        /// Where the number begins.
        at: usize,
    },
}

/// 30 bits that depend on every choice, and on its place. (The finalizer maps 0 to 0: without the
/// count of the places, zeros after that would change nothing.)
fn checksum(choices: &[u16]) -> u64 {
    let sum = (1u64..).zip(choices).fold(1, |sum, (place, choice)| {
        mix(mix(sum ^ place << 16 ^ u64::from(*choice)).wrapping_add(place))
    });
    mix(sum) >> 34
}

/// Writes a schedule as a line.
#[must_use]
pub fn encode(choices: &[u16]) -> String {
    let length = choices.iter().rposition(|c| *c != 0).map_or(0, |last| last + 1);
    let choices = &choices[..length];
    let mut line = String::from(VERSION);
    let mut zeros = 0u64;
    for choice in choices {
        match choice {
            0 => zeros += 1,
            1 => number(&mut line, zeros * 2),
            _ => {
                number(&mut line, zeros * 2 + 1);
                number(&mut line, u64::from(choice - 2));
            }
        }
        if *choice != 0 {
            zeros = 0;
        }
    }
    let sum = checksum(choices);
    for i in 0..CHECK {
        line.push(character(sum >> (5 * i)));
    }
    line
}

fn character(bits: u64) -> char {
    char::from(ALPHABET[(bits & 31) as usize])
}

fn number(line: &mut String, mut number: u64) {
    while number > 15 {
        line.push(character(number & 15 | 16));
        number >>= 4;
    }
    line.push(character(number));
}

/// Reads a line that [`encode`] wrote. Space around it does not matter.
///
/// # Errors
///
/// What is wrong, where, and what to do.
pub fn decode(line: &str) -> Result<Vec<u16>, CodeError> {
    let line = line.trim();
    let count = line.chars().count();
    if count < 1 + CHECK {
        return Err(CodeError::Short(count));
    }
    if let Some(version) = line.chars().next().filter(|c| *c != VERSION) {
        return Err(CodeError::Version(version));
    }
    let mut symbols = Vec::with_capacity(count);
    for (i, found) in line.chars().enumerate() {
        symbols.push(value(found).ok_or(CodeError::Character { at: i + 1, found })?);
    }
    let check = symbols.split_off(count - CHECK);
    let mut numbers = Numbers { symbols: &symbols, at: 1 };
    let mut choices = Vec::new();
    while numbers.at < symbols.len() {
        let at = numbers.at + 1;
        let head = numbers.next()?;
        let length = (choices.len() as u64).saturating_add(head / 2);
        if length >= LONGEST {
            return Err(CodeError::Large { at });
        }
        choices.resize(length as usize, 0);
        choices.push(if head % 2 == 0 {
            1
        } else {
            let at = numbers.at + 1;
            let above = numbers.next()?;
            u16::try_from(above.saturating_add(2)).map_err(|_| CodeError::Large { at })?
        });
    }
    let sum = check.iter().rev().fold(0, |sum, s| sum << 5 | u64::from(*s));
    if sum != checksum(&choices) {
        return Err(CodeError::Checksum { at: count - CHECK + 1 });
    }
    Ok(choices)
}

fn value(found: char) -> Option<u8> {
    let plain = match found.to_ascii_lowercase() {
        'i' | 'l' => '1',
        'o' => '0',
        other => other,
    };
    ALPHABET.iter().position(|c| char::from(*c) == plain).map(|i| i as u8)
}

/// Reads numbers one after the other.
struct Numbers<'a> {
    symbols: &'a [u8],
    at: usize,
}

impl Numbers<'_> {
    fn next(&mut self) -> Result<u64, CodeError> {
        let begin = self.at + 1;
        let mut number = 0u64;
        let mut shift = 0;
        loop {
            let symbol = *self.symbols.get(self.at).ok_or(CodeError::Cut { at: begin })?;
            self.at += 1;
            if shift > 28 {
                return Err(CodeError::Large { at: begin });
            }
            number |= u64::from(symbol & 15) << shift;
            shift += 4;
            if symbol < 16 {
                return Ok(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn trimmed(mut choices: Vec<u16>) -> Vec<u16> {
        while choices.last() == Some(&0) {
            choices.pop();
        }
        choices
    }

    /// Mostly zeros and small numbers, as real schedules are.
    fn schedules() -> impl Strategy<Value = Vec<u16>> {
        let choice = prop_oneof![20 => Just(0u16), 5 => Just(1), 2 => 0..6u16, 1 => any::<u16>()];
        proptest::collection::vec(choice, 0..300)
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(choices in schedules()) {
            let line = encode(&choices);
            prop_assert!(line.bytes().all(|b| b.is_ascii_alphanumeric()));
            prop_assert_eq!(decode(&line), Ok(trimmed(choices.clone())));
            prop_assert_eq!(decode(&format!("  {}\n", line.to_uppercase())), Ok(trimmed(choices)));
        }

        #[test]
        fn any_one_wrong_character_is_noticed(choices in schedules(), at: prop::sample::Index, to in 0..32usize) {
            let line = encode(&choices);
            let mut bytes = line.clone().into_bytes();
            let at = at.index(bytes.len());
            prop_assume!(bytes[at] != ALPHABET[to]);
            bytes[at] = ALPHABET[to];
            let read = decode(std::str::from_utf8(&bytes).unwrap());
            // A mistake within the number of a zero that is not needed cannot happen: numbers are shortest.
            prop_assert!(read.is_err() || read == Ok(trimmed(choices)), "{:?}", read);
        }

        #[test]
        fn nothing_makes_it_panic(line in "\\PC{0,40}") {
            let _ = decode(&line);
            let _ = decode(&format!("1{line}000000"));
        }

        #[test]
        fn nothing_of_the_alphabet_makes_it_panic(line in "1[0-9a-z]{6,60}") {
            let _ = decode(&line);
        }
    }

    #[test]
    fn a_short_schedule_is_a_short_line() {
        let mut choices = vec![0; 100];
        for (at, choice) in [(3, 1), (20, 2), (21, 1), (60, 1)] {
            choices[at] = choice;
        }
        let line = encode(&choices);
        assert!(line.len() <= 16, "{line}");
        assert_eq!(encode(&[]).len(), 7);
        assert_eq!(encode(&[0, 0, 0]), encode(&[]));
    }

    #[test]
    fn an_error_names_the_place_and_the_remedy() {
        let line = encode(&[0, 1, 5, 0, 0, 9]);
        assert_eq!(decode("1ab"), Err(CodeError::Short(3)));
        assert_eq!(decode(""), Err(CodeError::Short(0)));
        assert_eq!(decode(&line.replacen('1', "9", 1)), Err(CodeError::Version('9')));
        let bad = format!("{}*{}", &line[..2], &line[2..]);
        assert_eq!(decode(&bad), Err(CodeError::Character { at: 3, found: '*' }));
        assert!(decode(&bad).unwrap_err().to_string().contains("character 3"));
        let cut = format!("1z{}", &line[line.len() - 6..]);
        assert_eq!(decode(&cut), Err(CodeError::Cut { at: 2 }));
        assert_eq!(decode("1zzzzzzzzz000000"), Err(CodeError::Large { at: 2 }));
        assert_eq!(decode("1zzzzzz2000000"), Err(CodeError::Large { at: 2 }));
        assert_eq!(decode("11zzzz1000000"), Err(CodeError::Large { at: 3 }));
        let short = format!("{}{}", &line[..3], &line[4..]);
        assert!(decode(&short).is_err());
        let swapped = encode(&[0, 1, 5, 0, 9]);
        let mixed = format!("{}{}", &line[..line.len() - 6], &swapped[swapped.len() - 6..]);
        assert_eq!(decode(&mixed), Err(CodeError::Checksum { at: line.len() - 5 }));
    }
}
