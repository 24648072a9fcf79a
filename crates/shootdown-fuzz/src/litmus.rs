//! Litmus tests, ours and herd's: any text is a test or an error in one sentence, and a test that
//! was read can be run.

use shootdown_machine::litmus::{Arch, Options, Outcome, Test, Verdict, check_herd, run};

/// Enough to take some steps of every instruction.
const OPTIONS: Options = Options { max_states: 300, ..Options::WHOLE };

/// The bytes are a file of our format.
pub fn text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let test = match Test::parse("input.lit", text) {
        Ok(test) => test,
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("input.lit:"), "the file is named: {said}");
            assert!(error.line <= text.lines().count(), "a line that there is not: {said}");
            one_line(&said);
            return;
        }
    };
    assert_eq!(
        Test::parse("other.lit", text).as_ref(),
        Ok(&test),
        "reading is a function of the text"
    );
    assert!(Arch::ALL.contains(&test.arch()) && !test.cases().is_empty());
    judge(&run(&test, &OPTIONS));
}

/// The line that ends the verdicts and begins the test.
const BETWEEN: &str = "====\n";

/// The bytes are a file of verdicts, a line of `=`, and a file of herd's.
pub fn herd(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (kinds, text) = text.split_once(BETWEEN).unwrap_or(("", text));
    judge(&check_herd("input.litmus", text, kinds, &OPTIONS));
}

/// L1 and L3 of the litmus tests.
fn judge(verdict: &Verdict) {
    match &verdict.outcome {
        Outcome::Unsupported(reason) | Outcome::Unknown(reason) => {
            assert!(!verdict.pass, "passes without an answer: {verdict:?}");
            assert!(!reason.is_empty());
            one_line(reason);
        }
        _ => assert!(verdict.states > 0, "an answer without a look: {verdict:?}"),
    }
}

fn one_line(said: &str) {
    let control = |c: char| c.is_control() && c != '\t';
    assert!(!said.contains(control), "control characters in {said:?}");
}
