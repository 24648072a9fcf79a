//! `shootdown replay`.

use std::path::PathBuf;

use clap::Args;

use super::Shared;
use crate::names::{self, Contestant, Named};
use crate::output::{Format, emit, wrapped};
use crate::progress::Progress;
use crate::replay::report::{self, Report};
use crate::replay::spread::spread;
use crate::replay::{self, Recorded};
use crate::{LabError, machines};

/// Replay a recording under several policies, side by side.
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Replay a recording under several policies, side by side.\n\n\
        Rebuilds threads, address spaces and CPUs from the recording and does the same things on a \
        simulated machine, with an oracle that stops the run if a stale translation is ever used. Prints \
        interrupts, TLB misses, and the time that initiators waited, that responders lost and that all \
        of it took; with --all also invalidations by kind, and switches. With as many CPUs as were recorded, it also says how far \
        the remote flushes under linux-6.15, the policy nearest to a current kernel, are from those the \
        recording contains.",
    after_long_help = "Examples:\n  \
        shootdown replay recordings/go-gc.sdr\n  \
        shootdown replay recordings/go-gc.sdr --machine haswell-ep-48 --cpus 16 --policy linux-6.15,shootdown\n  \
        shootdown replay recordings/sysbench-fileio-mmap.sdr --copies 4 --cpus 8 --format json"
)]
pub struct ReplayArgs {
    /// The recording (an .sdr file, made by `shootdown record` or `shootdown import`).
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Machine to simulate: a profile's name or the path of a profile file.
    #[arg(long, value_name = "PROFILE", default_value = "zen4-vm")]
    pub machine: String,

    /// Policies to compare, separated by commas [default: naive, linux-4.14, linux-6.15,
    /// shootdown; on machines that broadcast: arm64-mainline, sticky, active, trim].
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub policy: Option<Vec<String>>,

    /// CPUs to spread the threads over [default: as recorded].
    #[arg(long, value_name = "N")]
    pub cpus: Option<u32>,

    /// Every figure, and not only those that decide.
    #[arg(long)]
    pub all: bool,

    /// How many copies of the recorded program run at once.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub copies: u32,
}

/// More would not fit into the numbers of threads.
const MOST_COPIES: u32 = 256;

impl ReplayArgs {
    pub(super) fn run(self, shared: &Shared) -> Result<(), LabError> {
        let profile = machines::find(&self.machine)?;
        let policies: Vec<Named> = match &self.policy {
            Some(list) => names::policies(list)?,
            None => {
                let default = report::default_for(&profile);
                default.iter().map(|name| names::policy(name)).collect::<Result<_, _>>()?
            }
        };
        let cpus = self.cpus.map(|n| machines::check_cpus(n, 1)).transpose()?;
        if self.copies == 0 || self.copies > MOST_COPIES {
            return Err(LabError::bad(format!(
                "--copies {} is out of range; give 1 to {MOST_COPIES}",
                self.copies
            )));
        }
        let recorded = Recorded::open(&self.file)?;
        let as_recorded = u32::from(recorded.timeline.cpus);
        let cpus = cpus.unwrap_or(as_recorded);
        let faithful = cpus == as_recorded && self.copies == 1;
        // Without flushes in the recording there is nothing to hold a prediction against.
        let compare = faithful && recorded.timeline.flushes_seen;
        let again;
        let timeline = if faithful {
            &recorded.timeline
        } else {
            again = spread(&recorded.timeline, cpus, self.copies);
            &again
        };

        let name =
            self.file.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let workload = match self.copies {
            1 => name,
            n => format!("{name}, {n} copies"),
        };
        let mut report = Report::new(&profile, &workload, cpus, shared.seed);
        let progress = Progress::new("replay", policies.len() as u64 + u64::from(compare));
        let mut nearest = None;
        for named in &policies {
            progress.at(named.name);
            match named.contestant {
                Contestant::Policy(policy) => {
                    let replayed = replay::run(timeline, &profile, policy, cpus, shared.seed)?;
                    report.policy(named.name, &replayed);
                    if named.name == report::NEAREST {
                        nearest = Some(replayed);
                    }
                }
                Contestant::Omniscient => report.omniscient(timeline, &profile),
            }
            progress.step();
        }
        if compare {
            progress.at("prediction");
            let nearest = match (nearest, report::nearest().contestant) {
                (None, Contestant::Policy(policy)) => {
                    Some(replay::run(timeline, &profile, policy, cpus, shared.seed)?)
                }
                (found, _) => found,
            };
            if let Some(replayed) = &nearest {
                report.prediction(&recorded, &replayed.outcome);
            }
        }
        drop(progress);
        let view = shared.view(self.all);
        emit(&report.document.render(shared.format, &view));
        if let (Format::Table, Some(sentence)) = (shared.format, report.sentence()) {
            emit(&format!("\n{}", wrapped(&sentence, view.width).join("\n")));
        }
        Ok(())
    }
}
