//! What nobody maps there again: addresses that go back to their owner, and domains that end.

use super::*;

/// Under any policy the caller may use its addresses for something else.
pub(crate) fn what_is_the_callers_is_waited_for() {
    for policy in [Policy::Strict, Policy::Held, Policy::Lazy] {
        let world = World::default();
        let domain = domain(&world, Config::new(1).policy(policy));
        let range = IovaRange::new(77, 2).unwrap();
        domain.put_at(range, buffer(0), Rights::Read).unwrap();
        domain.take_at(range).unwrap();
        let unit = world.unit();
        assert!(unit.completed == unit.told.len() as u64 && unit.completed > 0, "{policy}");
        drop(unit);
        assert!(domain.owes() == (0, 0) && world.refs(buffer(0).0 >> PAGE_SHIFT) == 0, "{policy}");
        finish(domain);
    }
}

/// What is still mapped is forgotten.
pub(crate) fn who_ends_leaves_nothing_cached() {
    let world = World::default();
    let domain = domain(&world, Config::new(1));
    domain.put(buffer(0), 100, Rights::Write).unwrap();
    let before = world.commands().len();
    finish(domain);
    let after = world.commands().split_off(before);
    let all = |c: &Command| matches!(c, Command::Domain(ID) | Command::All);
    assert!(after.iter().any(all), "{after:?}");
    let unit = world.unit();
    assert_eq!(unit.completed, unit.told.len() as u64, "and that was waited for");
}

/// What was unmapped and not told of goes back.
pub(crate) fn who_ends_owes_nothing() {
    let world = World::default();
    let domain = domain(&world, Config::new(1).policy(Policy::Held));
    let at = domain.put(buffer(0), 100, Rights::Write).unwrap();
    domain.take(at, 100).unwrap();
    let page = buffer(0).0 >> PAGE_SHIFT;
    assert_eq!(world.refs(page), 1, "it is owed");
    finish(domain);
    assert_eq!((world.refs(page), world.tables.load(Ordering::Relaxed)), (0, 0));
}

mod as_it_is {
    macro_rules! scenes {
        ($($scene:ident)*) => {
            $(#[test] fn $scene() { super::$scene(); })*
        };
    }
    scenes! {
        what_is_the_callers_is_waited_for who_ends_leaves_nothing_cached who_ends_owes_nothing
    }
}
