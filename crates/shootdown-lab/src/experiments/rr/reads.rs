//! Random reads from drives under each design: the table.

use shootdown_machine::Profile;
use shootdown_machine::profile::DeviceCosts;
use shootdown_machine::shootdown_dma::Policy;
use shootdown_machine::shootdown_dma::iova::identity::LeafSize;

use super::design::{Contestant, Design};
use super::work::{Job, Run};
use super::{RATE, SHARE, contestants, warm};
use crate::LabError;
use crate::experiments::Request;
use crate::experiments::run::count;
use crate::output::{Document, Row};
use crate::progress::Progress;

/// Pages of a read, and what it is called.
const SIZES: [(u32, &str); 2] = [(1, "random reads of 4 KiB"), (LARGE, "random reads of 128 KiB")];

/// Reads of so many pages take the machine so long that only every second number of CPUs is tried
/// with them, and fewer of them.
const LARGE: u32 = 32;

const PUBLISHED: &str = "NVIDIA Grace, two sockets, eight drives, reads of 4 KiB: 16.5 million a second passed \
    through, 16.4 lazy, 2.8 strict (NV-Kernels, pull request 182)";

/// Those of the network card, whose queues are a small part here and have pages of their own.
fn readers() -> impl Iterator<Item = Contestant> {
    let is_in = |c: &Contestant| !c.apart && c.design != Design::Window(LeafSize::Huge);
    contestants().into_iter().filter(is_in)
}

/// Runs them.
pub fn table(
    profile: &Profile,
    costs: DeviceCosts,
    request: &Request,
    cpus: &[u32],
    document: &mut Document,
) -> Result<(), LabError> {
    let last = cpus.last().copied();
    let is_tried = |pages: u32, n: u32| {
        pages < LARGE || request.quick || n.ilog2().is_multiple_of(2) || Some(n) == last
    };
    let runs = SIZES.map(|(pages, _)| cpus.iter().filter(|n| is_tried(pages, **n)).count());
    let all = runs.iter().sum::<usize>() * readers().count();
    let progress = Progress::new("rr, reads", all as u64);
    for (pages, workload) in SIZES {
        for n in cpus.iter().copied().filter(|n| is_tried(pages, *n)) {
            let mut off = None;
            for contestant in readers() {
                let name = contestant.name();
                progress.at(format!("{workload}, {n} CPUs, {name}"));
                // At least what a CPU may have owed is done before.
                let [before, counted] = match (request.quick, pages) {
                    (true, _) => [warm(true), 200],
                    (false, LARGE) => [600, 100],
                    (false, _) => [warm(false), 500],
                };
                let all = u64::from(n);
                let transactions = [all * before, (all * counted).max(1000)];
                let (cpus, job, hostile) = (n, Job::Drive { pages }, None);
                let seed = request.seed;
                let run =
                    Run { profile, costs, contestant, cpus, job, transactions, hostile, seed };
                let ran = run.run()?;
                let off = *off.get_or_insert(ran.rate);
                let row = |metric, unit, value| Row::new(&name, workload, n, metric, unit, value);
                document.push(row(RATE, "1/s", ran.rate));
                document.push(row("idle", "% of time", 100.0 * ran.idle));
                if contestant.design != Design::Off {
                    let share = row(SHARE, "%", 100.0 * ran.rate / off);
                    document.push(match published(contestant, pages, n) {
                        Some(value) => share.published(value, PUBLISHED),
                        None => share,
                    });
                    let misses = count(ran.iommu.misses) / count(ran.nvme.pages);
                    document.push(row("IOTLB misses", "per page", misses));
                    let commands = count(ran.iommu.commands) / count(ran.nvme.reads);
                    document.push(row("commands", "per read", commands));
                }
                progress.step();
            }
        }
    }
    Ok(())
}

/// What was published of a machine of the same order: 72 cores for every four drives.
fn published(contestant: Contestant, pages: u32, cpus: u32) -> Option<f64> {
    let is_near = pages == 1 && cpus == 64 && contestant.design == Design::Magazines;
    match contestant.policy {
        Policy::Lazy if is_near => Some(99.4),
        Policy::Strict if is_near => Some(17.0),
        _ => None,
    }
}
