//! What a space owes when flushes fail at the same time.

#[path = "mock/mod.rs"]
#[allow(dead_code)] // shared with other tests, the examples and benches, which use other parts
mod mock;

use mock::*;
use shootdown::{FlushError, KickError, Policy, Request, Stride, VaRange};

fn page(page: u64) -> Request {
    Request::pages(VaRange::new(page << 12, 1, Stride::Page4K).unwrap())
}

/// CPU 0's flush (generation 1) reaches CPU 2 and not CPU 1. Before it says so, CPU 1's flush (generation 2) fails to
/// reach CPU 2. The space owes the newer of the two, although the older one was noted last.
#[test]
fn of_two_failed_flushes_the_newer_is_owed_whichever_is_noted_last() {
    boot(3, &Policy::SHOOTDOWN, &PCID);
    let space = new_space();
    for cpu in 0..3 {
        for at in [5, 6] {
            map(space, at, 10 * at);
        }
        switch(cpu, space);
        assert_eq!(on_cpu(cpu, |_| (access(5), access(6))), (Some(50), Some(60)));
    }
    *world().after_kick.borrow_mut() = Some(Box::new(move || {
        world().unreachable.set(1 << 2);
        unmap(space, 6);
        let failed = on_cpu(1, |pin| space.flush(pin, page(6))).unwrap_err();
        assert!(matches!(failed, FlushError::Kick(KickError::Unreachable(_))), "{failed}");
        world().unreachable.set(0);
    }));
    world().unreachable.set(1 << 1);
    unmap(space, 5);
    let failed = on_cpu(0, |pin| space.flush(pin, page(5))).unwrap_err();
    assert!(matches!(failed, FlushError::Kick(KickError::Unreachable(_))), "{failed}");
    on_cpu(0, |pin| space.pay_owed(pin)).expect("everybody can be reached now");
    assert!(!space.is_pending());
    for cpu in 0..3 {
        assert_eq!(on_cpu(cpu, |_| (access(5), access(6))), (None, None), "cpu{cpu}");
    }
}
