//! The recordings of this repository are sound, small, and say what their rebuild says.

use std::path::PathBuf;

use shootdown_lab::recording::Reader;
use shootdown_lab::recording::timeline::Timeline;

/// The most a recording may take.
const LIMIT: u64 = 1_000_000;

fn recordings() -> Vec<PathBuf> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recordings");
    let mut found: Vec<_> = std::fs::read_dir(directory)
        .expect("the directory is there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "sdr"))
        .collect();
    found.sort();
    found
}

#[test]
fn there_are_five_small_sound_ones() {
    let all = recordings();
    assert!(all.len() >= 6);
    for path in all {
        let size = std::fs::metadata(&path).expect("there").len();
        assert!(size < LIMIT, "{}: {size} bytes", path.display());
        let (header, events, trailer) =
            Reader::open(&path).and_then(Reader::read_all).expect("sound");
        assert_eq!(trailer.lost, 0, "{}", path.display());
        assert_eq!(trailer.exit_status, Some(0), "{}", path.display());
        assert!(!header.kernel.is_empty() && header.cpus == 2 && !events.is_empty());
    }
}

/// The schedule alone, without a machine, explains the recorded remote flushes where a program's
/// own threads cause them. (Short processes that are born on one CPU and end on another are asked
/// for by kernels that clear their CPU sets lazily, and have no running target.)
#[test]
fn the_rebuilt_schedule_explains_the_remote_flushes() {
    for path in recordings() {
        let (_, events, trailer) = Reader::open(&path).and_then(Reader::read_all).expect("sound");
        let timeline = Timeline::of(&events);
        let (met, recorded) = (timeline.met_running(), timeline.truth.remote_flushes);
        let counted = trailer.tlb_interrupts.expect("recorded on x86").iter().sum::<u64>();
        let missed = counted.abs_diff(recorded + trailer.foreign_remote_flushes);
        assert!(missed * 100 <= counted + 200, "{}: {missed} of {counted}", path.display());
        if recorded > 100 {
            assert!(
                met.abs_diff(recorded) * 100 < recorded * 15,
                "{}: {met} of {recorded}",
                path.display()
            );
        }
    }
}
