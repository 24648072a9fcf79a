//! What the CPUs of the model kernel share, and what each has for itself.
//!
//! Everything that CPUs share is an atomic of the library's facade (so that it is traced), a page
//! table, or constant after boot; the rest are ghosts, which only the oracle reads.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use shootdown::layout;
use shootdown::sync::{AtomicBool, AtomicU32, Ordering};
use shootdown::{AddressSpace, CpuId, poll};

use super::epoch::Walkers;
use super::lazy_unmap::Lazy;
use super::library::name_parts;
use super::{Config, KernelMutant, Port};
use crate::hostile::{Frame, TableId};
use crate::hunt::{MAX_CPUS, hw};

/// A lock whose waiters serve others, as every lock must that is held over a flush.
#[derive(Debug)]
pub(super) struct Lock(AtomicBool);

impl Lock {
    const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub fn lock<P: Port>(&self, kernel: &Kernel<P>, pin: &P::Pin) {
        // ORDERING: Acquire, with the Release in `unlock`
        while self.0.swap(true, Ordering::Acquire) {
            while self.0.load(Ordering::Relaxed) {
                if !kernel.breaks(KernelMutant::DeafSpin) {
                    let _ = poll::<P>(pin);
                }
                // After the look at what others want: it sleeps until any of what was read changes.
                hw::relax();
            }
        }
    }

    pub fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A space, and what the kernel keeps beside it. When it is retired, its successor moves into the
/// same room.
pub(super) struct Room<P: Port> {
    pub lock: Lock,
    /// CPUs and operations that use the space, or [`Room::DEAD`].
    users: AtomicU32,
    /// The successor has moved in.
    successor: AtomicU32,
    /// The driver's area is still linked.
    pub linked: AtomicBool,
    /// What was unmapped lazily.
    pub lazy: Lazy<P>,
    spaces: [UnsafeCell<MaybeUninit<AddressSpace<P>>>; 2],
    /// How often its tag is pinned, and which that is. With the lock held.
    pub pins: Cell<u8>,
    pub pinned: Cell<Option<shootdown::Tag>>,
    /// Frames of the pages that are mapped at the start.
    pub frames: [Cell<Frame>; 8],
}

impl<P: Port> Room<P> {
    const DEAD: u32 = 1 << 31;

    fn new() -> Self {
        Self {
            lock: Lock::new(),
            users: AtomicU32::new(0),
            successor: AtomicU32::new(0),
            linked: AtomicBool::new(true),
            lazy: Lazy::new(),
            spaces: [const { UnsafeCell::new(MaybeUninit::uninit()) }; 2],
            pins: Cell::new(0),
            pinned: Cell::new(None),
            frames: [const { Cell::new(Frame(0)) }; 8],
        }
    }

    fn put(&self, which: usize, space: AddressSpace<P>) {
        // SAFETY: nobody uses this place yet: at boot no CPU runs, and the successor's place is
        // looked at only after `successor` was raised.
        unsafe { (*self.spaces[which].get()).write(space) };
    }

    fn get(&self, which: usize) -> &'static AddressSpace<P> {
        // SAFETY: `put` came before, and nothing is taken out; shared memory stays for the whole
        // run.
        unsafe { &*self.spaces[which].get().cast::<AddressSpace<P>>() }
    }
}

/// What one CPU has for itself. Its handlers see it too.
pub(super) struct Mine<P: Port> {
    /// The program's space.
    pub current: Cell<Option<(u8, &'static AddressSpace<P>)>>,
    /// User mode, with its half of split tables loaded; the kernel half's root and tag.
    pub user_mode: Cell<Option<(TableId, shootdown::Tag)>>,
    pub offline: Cell<bool>,
    /// User mode, of an isolated CPU.
    pub isolated: Cell<bool>,
    /// Ghost: of how many changes that each CPU sees to by itself the library had been told when
    /// this CPU last came by.
    pub aged: Cell<usize>,
    /// Ghost: functions of calls that ran here.
    pub calls: Cell<u32>,
}

/// The kernel.
pub(super) struct Kernel<P: Port> {
    pub config: Config,
    pub traits: Traits,
    pub rooms: [Room<P>; Config::MAX_SPACES],
    pub kernel_lock: Lock,
    pub kernel_root: TableId,
    /// Walks without a lock that are under way.
    pub walkers: Walkers,
    /// Spaces that have the shared table.
    pub sharers: AtomicU32,
    /// Of how many changes the library was told that each CPU sees to by itself.
    pub aged: AtomicU32,
    pub cpus: [Mine<P>; MAX_CPUS],
}

/// What a program does anywhere, so that the kernel need not be ready for what it never does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Traits {
    /// Spaces that are retired: their users are counted.
    pub retired: u8,
    /// Tables are walked without a lock.
    pub walks: bool,
    /// Tables are freed after an epoch, and walks are counted.
    pub epochs: bool,
    /// CPUs go offline.
    pub hotplug: bool,
    /// Accessed bits are cleared, or pages are unmapped lazily.
    pub ages: bool,
}

thread_local! {
    static KERNEL: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
}

impl<P: Port> Kernel<P> {
    /// Places a kernel without spaces; the kernel of this run from now on.
    pub fn place(config: Config, traits: Traits, kernel_root: TableId) -> &'static Self {
        let kernel = hw::place(Self {
            config,
            traits,
            rooms: std::array::from_fn(|_| Room::new()),
            kernel_lock: Lock::new(),
            kernel_root,
            walkers: Walkers::new(),
            sharers: AtomicU32::new(u32::from(config.spaces)),
            aged: AtomicU32::new(0),
            cpus: std::array::from_fn(|_| Mine {
                current: Cell::new(None),
                user_mode: Cell::new(None),
                offline: Cell::new(false),
                isolated: Cell::new(false),
                aged: Cell::new(0),
                calls: Cell::new(0),
            }),
        });
        KERNEL.set(kernel.as_ptr().cast());
        // SAFETY: placed just now; it stays for the whole run.
        unsafe { kernel.as_ref() }
    }

    /// The kernel of this run.
    ///
    /// # Panics
    /// When none was placed.
    pub fn get() -> &'static Self {
        let kernel = KERNEL.get();
        assert!(!kernel.is_null(), "a world boots before it runs");
        // SAFETY: `place` of this run's boot stored it, with the same `P`: a world has one port.
        unsafe { &*kernel.cast::<Self>() }
    }

    pub fn breaks(&self, mutant: KernelMutant) -> bool {
        self.config.breaks(mutant)
    }

    pub fn room(&self, space: u8) -> &Room<P> {
        &self.rooms[usize::from(space)]
    }

    /// Moves the first space into a room, at boot.
    pub fn settle(&self, space: u8, root: TableId) {
        let room = self.room(space);
        room.put(0, AddressSpace::new(root));
        room.lazy.begin(room.get(0));
        let letter = char::from(b'a' + space);
        for (which, place) in room.spaces.iter().enumerate() {
            let at = NonNull::from(place).cast::<AddressSpace<P>>();
            let prime = if which == 0 { "" } else { "'" };
            name_parts(at, &format!("space {letter}{prime}"), &layout::space::<P>());
            if self.is_counted(space) {
                hw::is_given_back(at.cast(), size_of::<AddressSpace<P>>());
            }
        }
        let name = |at: NonNull<u8>, len, what: &str| {
            hw::name(at, len, || format!("{what} of space {letter}"));
        };
        name(NonNull::from(&room.lock).cast(), 1, "lock");
        name(NonNull::from(&room.users).cast(), 4, "users");
        name(NonNull::from(&room.successor).cast(), 4, "successor");
        name(NonNull::from(&room.linked).cast(), 1, "area");
    }

    fn is_counted(&self, space: u8) -> bool {
        self.traits.retired & 1 << space != 0
    }

    /// Uses a space until [`Self::put`]; `None` when it is dead.
    pub fn take(&self, space: u8) -> Option<&'static AddressSpace<P>> {
        let room = self.rooms.get(usize::from(space)).filter(|_| space < self.config.spaces)?;
        if !self.is_counted(space) {
            return Some(room.get(0));
        }
        let mut users = room.users.load(Ordering::Relaxed);
        loop {
            if users & Room::<P>::DEAD != 0 {
                return None;
            }
            // ORDERING: Acquire, with the Release in `Kernel::reborn`
            match room.users.compare_exchange(
                users,
                users + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => users = now,
            }
        }
        Some(room.get(room.successor.load(Ordering::Relaxed) as usize))
    }

    /// Uses the space no more.
    pub fn put(&self, space: u8) {
        if self.is_counted(space) {
            // ORDERING: Release, with the Acquire in `Kernel::kill`: what was done with the space
            // is over
            self.room(space).users.fetch_sub(1, Ordering::Release);
        }
    }

    /// Nobody can take the space any more; `None` when somebody uses it, or there is no place for a
    /// successor.
    pub fn kill(&self, space: u8) -> Option<&'static AddressSpace<P>> {
        let room = self.room(space);
        room.users
            .compare_exchange(0, Room::<P>::DEAD, Ordering::AcqRel, Ordering::Relaxed)
            .ok()?;
        // `can_be_reborn` may have read an old value; after the Acquire above this is the newest.
        if room.successor.load(Ordering::Relaxed) != 0 {
            self.revive(space);
            return None;
        }
        Some(room.get(0))
    }

    /// The space was not ended after all.
    pub fn revive(&self, space: u8) {
        self.room(space).users.store(0, Ordering::Release);
    }

    /// Is there a place for a successor?
    pub fn can_be_reborn(&self, space: u8) -> bool {
        self.room(space).successor.load(Ordering::Relaxed) == 0
    }

    /// The successor moves in.
    pub fn reborn(&self, space: u8, root: TableId) {
        let room = self.room(space);
        room.put(1, AddressSpace::new(root));
        room.lazy.begin(room.get(1));
        room.successor.store(1, Ordering::Relaxed);
        room.users.store(0, Ordering::Release);
    }

    /// What the CPU of this number has for itself.
    pub fn mine(&self, cpu: CpuId) -> &Mine<P> {
        &self.cpus[P::place_of(cpu)]
    }
}
