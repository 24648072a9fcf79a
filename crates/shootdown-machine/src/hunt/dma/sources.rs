//! Where addresses come from: any of the library's allocators.

use shootdown_dma::IovaRange;
use shootdown_dma::iova::arena::{self, Arena, Flush};
use shootdown_dma::iova::magazine::{self, Magazines};
use shootdown_dma::iova::ring::Ring;
use shootdown_dma::iova::space::Space;
use shootdown_dma::iova::tree::Tree;
use shootdown_dma::iova::{AllocError, Allocate, FreeError, Want};

use super::Config;
use super::config::{END, Source};

/// What a domain gives back it has had invalidated: nothing is left to an arena to flush.
pub struct Flushed;

// SAFETY: nothing is retired, so nothing is cached that is to be forgotten.
unsafe impl Flush for Flushed {
    fn flush(&self) {}
}

/// One of them.
#[allow(clippy::large_enum_variant)] // there is one of each domain
pub enum Addresses {
    Tree(Tree),
    Magazines(Magazines<Tree>),
    Arena(Arena<Flushed>),
    Ring(Ring<Tree>),
}

impl Addresses {
    pub fn new(config: &Config, cpus: usize) -> Self {
        // Nothing is handed out between the small space and the window.
        let window = config.window_pages();
        let between = [IovaRange::new(END, window - END).expect("pages")];
        let small = Space::below(END).from(END - config.pages);
        let tree = || {
            if config.window {
                let space = Space::below(2 * window).from(END - config.pages).without(&between);
                Tree::new(&space).expect("a space")
            } else {
                Tree::new(&small).expect("a space")
            }
        };
        match config.from {
            Source::Tree | Source::Identity => Self::Tree(tree()),
            Source::Magazines => {
                let limits = magazine::Config::for_cpus(cpus).depot(1);
                let limits = match config.promise() {
                    Some(pinned) => limits.pinned(pinned),
                    None => limits,
                };
                Self::Magazines(Magazines::new(tree(), &limits).expect("memory"))
            }
            Source::Arena => {
                let layout = arena::Layout::pools(2).large_above(u64::MAX);
                Self::Arena(Arena::new(&small, &layout, Flushed).expect("a page for each pool"))
            }
            Source::Ring => {
                let pages = (config.pages / 2).next_power_of_two().max(1);
                let want = Want::pages(pages).expect("pages");
                Self::Ring(Ring::new(tree(), 0, &want).expect("half of the space"))
            }
        }
    }
}

// SAFETY: each is an allocator of its own.
unsafe impl Allocate for Addresses {
    fn alloc(&self, cpu: usize, want: &Want) -> Result<IovaRange, AllocError> {
        match self {
            Self::Tree(a) => a.alloc(cpu, want),
            Self::Magazines(a) => a.alloc(cpu, want),
            Self::Arena(a) => a.alloc(cpu, want),
            Self::Ring(a) => a.alloc(cpu, want),
        }
    }

    fn free(&self, cpu: usize, range: IovaRange) -> Result<(), FreeError> {
        match self {
            Self::Tree(a) => a.free(cpu, range),
            Self::Magazines(a) => a.free(cpu, range),
            Self::Arena(a) => a.free(cpu, range),
            Self::Ring(a) => a.free(cpu, range),
        }
    }

    fn free_all(
        &self,
        cpu: usize,
        ranges: impl Iterator<Item = IovaRange>,
        refused: impl FnMut(IovaRange, FreeError),
    ) {
        match self {
            Self::Tree(a) => a.free_all(cpu, ranges, refused),
            Self::Magazines(a) => a.free_all(cpu, ranges, refused),
            Self::Arena(a) => a.free_all(cpu, ranges, refused),
            Self::Ring(a) => a.free_all(cpu, ranges, refused),
        }
    }

    fn drain(&self, cpu: usize) {
        match self {
            Self::Tree(a) => a.drain(cpu),
            Self::Magazines(a) => a.drain(cpu),
            Self::Arena(a) => a.drain(cpu),
            Self::Ring(a) => a.drain(cpu),
        }
    }
}
