//! Texts of perf and strace: any text is imported or refused, and what is imported is a sound
//! recording.

use std::collections::BTreeSet;
use std::path::Path;

use shootdown_lab::recording::RecordingError;
use shootdown_lab::recording::import::{self, Source};
use shootdown_lab::recording::model::{Header, Tid, What};

use crate::recording::{rewritten, understood};

/// The text of `perf script`.
pub fn perf(data: &[u8]) {
    import(data, Source::PerfScript, None);
    import(data, Source::PerfScript, Some(Tid(100)));
}

/// The text of `strace -f -ttt`.
pub fn strace(data: &[u8]) {
    import(data, Source::Strace, None);
}

fn import(text: &[u8], source: Source, root: Option<Tid>) {
    let imported = match import::stream(text, Path::new("input.txt"), source, root) {
        Ok(imported) => imported,
        Err(error) => {
            let said = error.to_string();
            assert!(said.starts_with("input.txt: "), "the file is named: {said}");
            let of_text = matches!(
                error,
                RecordingError::Text { .. }
                    | RecordingError::Empty { .. }
                    | RecordingError::TooLong { .. }
            );
            assert!(of_text, "a text in memory has no other faults: {said}");
            return;
        }
    };
    let mut declared = BTreeSet::new();
    for event in &imported.events {
        if let What::Task { .. } = event.what {
            declared.insert(event.tid);
        }
        let named = match event.what {
            What::Switch { next, .. } => Some(next),
            What::Wakeup { task } | What::Migrate { task, .. } => Some(task),
            What::Fork { child, .. } => Some(child),
            _ => None,
        };
        for tid in named.into_iter().chain([event.tid]) {
            assert!(declared.contains(&tid), "I4: thread {tid} is declared before {event:?}");
        }
        assert!(event.cpu.0 < imported.cpus, "{} of {}", event.cpu, imported.cpus);
    }
    rewritten(&Header::default(), &imported.events, &imported.trailer);
    understood(&imported.events);
}
