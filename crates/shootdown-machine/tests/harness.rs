//! The example of the harness: a port that keeps its promises, and one with each of its bugs.

#[allow(dead_code)] // its `main`
#[path = "../examples/hunt_your_port.rs"]
mod hunt_your_port;

use hunt_your_port::answer;

fn line(text: &str) -> &str {
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("to see it again: ").unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn a_port_that_keeps_its_promises_ends_with_0() {
    let (text, code) = answer(&[]);
    assert!(text.ends_with("every promise was kept"), "{text}");
    assert_eq!(code, 0);
}

#[test]
fn each_bug_ends_with_1_a_timeline_and_a_line_that_replays() {
    for (bug, promise) in
        [("lost-kick", "progress"), ("leaf-only", "table-reuse"), ("keeps-tag", "table-reuse")]
    {
        let (text, code) = answer(&[bug]);
        assert_eq!(code, 1, "{bug}: {text}");
        assert!(text.contains("step  CPU 0"), "{bug}: {text}");
        assert!(text.contains(&format!("broken promise \"{promise}\"")), "{bug}: {text}");
        let (drawn, code) = answer(&[bug, line(&text)]);
        assert_eq!(code, 1, "{bug}: {drawn}");
        assert!(text.contains(&drawn), "{bug}: {drawn}");
    }
}

#[test]
fn the_schedule_of_a_bug_means_nothing_to_a_correct_port() {
    let (text, _) = answer(&["lost-kick"]);
    assert_eq!(answer(&["none", line(&text)]).1, 0);
}

#[test]
fn bad_input_ends_with_2() {
    assert_eq!(answer(&["typo"]).1, 2);
    assert_eq!(answer(&["none", "not a line"]).1, 2);
}
