//! Switches: to the space that is loaded, back from being lazy, and to and fro between two.

use shootdown::Platform;

use super::measure;
use crate::arch::{Rights, paging, probe};
use crate::memory::{self, FRAME};
use crate::paging::Space;
use crate::port::{self, Kernel, quietly};

fn switch(space: &Space) {
    // SAFETY: interrupts are off, this CPU is online, and whoever calls keeps the space in place
    // until it has left it.
    quietly(|irqs| unsafe { shootdown::switch_to(irqs.pin(), &space.shot) });
}

/// Pages that are touched after each switch of the longer ping-pong: more than an L1 TLB holds,
/// fewer than an L2's.
const PAGES: u64 = 512;

fn touch(pages: u64) {
    for page in 0..pages {
        let read = probe::read(paging::SPACE + page * FRAME);
        debug_assert!(read.is_ok(), "a page that was mapped can't be read");
    }
}

pub fn run() {
    let spaces = [Space::new(), Space::new()];
    let frame = memory::allocate().expect("there are frames");
    for space in &spaces {
        for page in 0..PAGES {
            // One frame for all: a TLB holds them apart.
            let at = paging::SPACE + page * FRAME;
            space.tree.set(at, 0, paging::leaf(frame, 0, Rights::READ));
        }
    }
    let [here, there] = &spaces;
    switch(here);
    measure(format_args!("switch-same"), || switch(here), || ());
    measure(
        format_args!("switch-lazy-and-back"),
        || {
            port::turn_lazy();
            switch(here);
        },
        || (),
    );
    // Back in `here` before each. With tags the entries of both are kept, without they are gone.
    measure(format_args!("switch-other"), || switch(there), || switch(here));
    for pages in [0, PAGES] {
        measure(
            format_args!("ping-pong-{pages}-pages"),
            || {
                switch(there);
                touch(pages);
                switch(here);
                touch(pages);
            },
            || (),
        );
    }
    port::leave();
    spaces.iter().for_each(|space| space.end(&Kernel::pin()));
    memory::free(frame);
}
