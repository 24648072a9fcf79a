//! Scenes about what units complain of, and who hears of it.

use std::sync::Mutex;
use std::vec::Vec;

use super::{DEVICE, DOMAIN, TURNS, range};
use crate::invalidate::model::Model;
use crate::invalidate::{Command, Engine, Promotion, QueueError, Ticket, Token, Unit};

/// A unit that has something to complain of: each error once, to whoever asks.
struct Complaining<'a> {
    unit: &'a Model,
    errors: Mutex<Vec<QueueError>>,
}

// SAFETY: the promises are the model's.
unsafe impl Unit for &Complaining<'_> {
    fn submit(&self, commands: &[Command]) -> Result<Ticket, QueueError> {
        self.unit.submit(commands)
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        let error = self.errors.lock().unwrap().pop();
        error.map_or_else(|| self.unit.completed(), Err)
    }
}

/// Whoever finds an error and goes on, `poll` tells it: once, though it may have happened twice
/// meanwhile.
#[test]
pub(crate) fn errors_are_told_once_by_poll() {
    use QueueError::{DeviceTimeout, Refused};
    let model = Model::new(1);
    let unit = Complaining { unit: &model, errors: Mutex::default() };
    let engine = Engine::new(1, [(&unit, DOMAIN[0])], Promotion::DEFAULT).unwrap();
    let step = &mut || {
        model.step();
        true
    };
    let complain = |errors: &[QueueError]| *unit.errors.lock().unwrap() = errors.to_vec();
    let heard = |who: &str, errors: &[QueueError]| {
        assert!(unit.errors.lock().unwrap().is_empty(), "{who} has not asked");
        let told: Vec<_> = (0..4).map_while(|_| engine.poll().err()).collect();
        assert_eq!(told, errors, "found by {who}");
    };
    complain(&[Refused]);
    let attachment = engine.attach(0, DEVICE, true).unwrap();
    engine.welcome(&attachment, step).unwrap();
    heard("who comes", &[Refused]);

    complain(&[DeviceTimeout]);
    let token = engine.invalidate(0, range(5, 1), true);
    assert!(!engine.is_complete(token));
    heard("who asks", &[DeviceTimeout]);

    complain(&[Refused, DeviceTimeout, Refused]);
    engine.wait(token, step).unwrap();
    heard("who waits", &[Refused, DeviceTimeout]);

    complain(&[Refused]);
    engine.detach(attachment, step).map_err(|(error, _)| error).unwrap();
    heard("who leaves", &[Refused]);

    let _attachment = engine.attach(0, DEVICE, false).unwrap();
    let _ = engine.flush_all();
    complain(&[DeviceTimeout, Refused]);
    assert_eq!([engine.poll(), engine.poll()], [Err(Refused), Err(DeviceTimeout)]);
    heard("poll", &[]);
}

/// A unit that completes one submission, and is stuck then.
struct Ending(Mutex<u64>);

// SAFETY: it caches nothing.
unsafe impl Unit for &Ending {
    fn submit(&self, _: &[Command]) -> Result<Ticket, QueueError> {
        let mut submitted = self.0.lock().unwrap();
        *submitted += 1;
        if *submitted > 2 { Err(QueueError::Stuck) } else { Ok(Ticket(*submitted)) }
    }

    fn completed(&self) -> Result<Ticket, QueueError> {
        let told = core::mem::replace(&mut *self.0.lock().unwrap(), 9);
        if told > 2 { Err(QueueError::Stuck) } else { Ok(Ticket(1)) }
    }
}

/// What was complete before is complete, for whoever waited for it too.
#[test]
pub(crate) fn what_is_complete_stays_so_when_the_unit_ends() {
    let unit = Ending(Mutex::new(0));
    let engine = Engine::new(1, [(&unit, DOMAIN[0])], Promotion::DEFAULT).unwrap();
    let _attachment = engine.attach(0, DEVICE, false).unwrap();
    let [first, second] = [5, 9].map(|page| engine.invalidate(0, range(page, 1), true));
    let relax = &mut || false;
    assert_eq!(engine.wait(first, relax), Ok(()));
    assert_eq!(engine.wait(second, relax), Err(QueueError::Stuck));
    assert!(engine.is_complete(first) && !engine.is_complete(second));
}

/// A unit that is stuck takes nothing, so that nothing is under way that could fail.
#[test]
pub(crate) fn a_unit_that_takes_nothing_is_told_of() {
    let unit = Ending(Mutex::new(2));
    for whole in [false, true] {
        let engine = Engine::new(1, [(&unit, DOMAIN[0])], Promotion::DEFAULT).unwrap();
        let _attachment = engine.attach(0, DEVICE, false).unwrap();
        let token =
            if whole { engine.flush_all() } else { engine.invalidate(0, range(5, 1), true) };
        assert!(!engine.is_submitted(token));
        assert_eq!([engine.poll(), engine.poll()], [Err(QueueError::Stuck); 2], "it lasts");
        let mut turns = 0;
        let outcome = engine.wait(token, &mut || {
            turns += 1;
            turns < TURNS
        });
        assert_eq!(outcome, Err(QueueError::Stuck), "there is no use in waiting");
        assert!(!engine.is_complete(token));
    }
}

/// A domain at whose place in memory there was another one before is not that one.
#[test]
pub(crate) fn who_comes_to_the_same_place_is_another() {
    let unit = Model::new(1);
    let step = &mut || {
        unit.step();
        true
    };
    // Those who come next get the places of those who went.
    let made = || Engine::new(1, [(&unit, DOMAIN[0])], Promotion::DEFAULT).unwrap();
    let mut stale = Vec::new();
    for _ in 0..64 {
        let engine = made();
        let attachment = engine.attach(0, DEVICE, false).unwrap();
        for attachment in &stale {
            assert_eq!(engine.announce(attachment, step), Err(QueueError::NotListed));
        }
        stale.push(attachment);
    }
    let engine = made();
    let attachment = engine.attach(0, DEVICE, false).unwrap();
    for stale in stale {
        let error = engine.detach(stale, step).map_err(|(error, _)| error);
        assert_eq!(error, Err(QueueError::NotListed));
    }
    // The unit is told as long as the device is there.
    unit.attach(DEVICE, DOMAIN[0], false);
    unit.map(DOMAIN[0], 5, 50);
    assert_eq!(unit.access(DEVICE, 5), Some(50));
    unit.unmap(DOMAIN[0], 5);
    engine.wait(engine.invalidate(0, range(5, 1), true), step).unwrap();
    assert_eq!(unit.access(DEVICE, 5), None);
    unit.detach(DEVICE);
    engine.detach(attachment, step).map_err(|(error, _)| error).unwrap();
}

/// A token of another domain is never complete here, whatever its numbers are here.
#[test]
pub(crate) fn a_token_of_another_domain_is_not_ours() {
    let unit = Model::new(1);
    let step = &mut || {
        unit.step();
        true
    };
    let made = |cpus| Engine::new(cpus, [(&unit, DOMAIN[0])], Promotion::DEFAULT).unwrap();
    let (theirs, ours) = (made(8), made(1));
    let _attachments = [&theirs, &ours].map(|engine| engine.attach(0, DEVICE, false).unwrap());
    // A batch of our first lane is complete; and of these one has its number, the others' lanes
    // don't exist here.
    ours.wait(ours.invalidate(0, range(5, 1), true), step).unwrap();
    let note = |cpu| theirs.note(cpu, range(5, 1), true);
    for token in [note(0), note(7), theirs.flush_all()] {
        ours.submit(token);
        assert!(!ours.is_complete(token) && !ours.is_submitted(token), "{token:?}");
        assert_eq!(ours.wait(token, step), Err(QueueError::NotListed));
        theirs.wait(token, step).unwrap();
        assert!(!ours.is_complete(token));
    }
    assert!(ours.is_complete(Token::DONE) && ours.is_submitted(Token::DONE));
    assert_eq!(ours.wait(Token::DONE, step), Ok(()));
}
