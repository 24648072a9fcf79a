//! The table of mutants: the one place where they are declared, a section for each part.
//!
//! A row is: what is missing, in one sentence; the variant; its name in print; the part; file and function of the step;
//! and what kills it (see `mod.rs`).

use super::Part;

/// What kills a mutant.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
#[allow(dead_code)] // a kind of which there is none yet
pub(super) enum Killer {
    /// A function of this crate.
    Scene(fn()),
    /// File and function of a test in `tests/`.
    Elsewhere(&'static str, &'static str),
    /// Nothing breaks, for this reason.
    Nobody(&'static str),
}

#[cfg(test)]
#[allow(unused_macros)] // a kind of which there is none yet
macro_rules! killer {
    (scene($path:path)) => {
        Killer::Scene($path)
    };
    (loom($file:literal $test:literal)) => {
        Killer::Elsewhere($file, $test)
    };
    (test($file:literal $test:literal)) => {
        Killer::Elsewhere($file, $test)
    };
    (unless($because:literal)) => {
        Killer::Nobody($because)
    };
}

/// The same in words, for those who can't run it.
macro_rules! witness {
    (scene($path:path)) => {
        (concat!("the unit test `", stringify!($path), "` of shootdown-dma"), None::<&str>)
    };
    (loom($file:literal $test:literal)) => {
        (concat!("the model checker: `", $test, "` in tests/", $file), None::<&str>)
    };
    (test($file:literal $test:literal)) => {
        (concat!("`", $test, "` in tests/", $file, " of shootdown-dma"), None::<&str>)
    };
    (unless($because:literal)) => {
        ("", Some($because))
    };
}

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+
        $variant:ident $name:literal $part:ident $place:literal by $kind:ident $how:tt;)*) => {
        /// One removed or weakened step.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Mutant {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl Mutant {
            /// Every mutant, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its name in print.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The mutant of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|m| m.name() == name)
            }

            /// What is missing.
            #[must_use]
            pub fn sentence(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+),)* }.trim_start()
            }

            /// The part it is in.
            #[must_use]
            pub const fn part(self) -> Part {
                match self { $(Self::$variant => Part::$part,)* }
            }

            /// File (in `src/`) and function of the step.
            #[must_use]
            pub const fn place(self) -> &'static str {
                match self { $(Self::$variant => $place,)* }
            }

            /// The test that kills it, in words.
            #[must_use]
            pub const fn killed_by(self) -> &'static str {
                match self { $(Self::$variant => witness!($kind $how).0,)* }
            }

            /// Why nothing breaks without the step, if nothing does.
            #[must_use]
            pub const fn equivalent(self) -> Option<&'static str> {
                match self { $(Self::$variant => witness!($kind $how).1,)* }
            }

            /// What kills it.
            #[cfg(test)]
            pub(super) const fn killer(self) -> Killer {
                match self { $(Self::$variant => killer!($kind $how),)* }
            }
        }
    };
}

mutants! {
    // ---- iova

    /// The tree places ranges above the limit.
    TreeLimitIgnored "tree-limit-ignored" Iova "iova/tree/gap.rs: place"
        by scene(crate::iova::tree::gap::tests::places_are_the_highest_that_are_right);
    /// The tree places ranges across boundaries.
    TreeBoundaryIgnored "tree-boundary-ignored" Iova "iova/tree/gap.rs: place"
        by scene(crate::iova::tree::gap::tests::places_are_the_highest_that_are_right);
    /// Live ranges that abut from below stay nodes of their own.
    TreeRunsUnmerged "tree-runs-unmerged" Iova "iova/tree/runs.rs: occupy"
        by scene(crate::iova::tree::tests::runs_merge);
    /// What a subtree's greatest gap is stays as it was when a gap has changed.
    TreeGreatestStale "tree-greatest-stale" Iova "iova/tree/runs.rs: set_gap"
        by scene(crate::iova::tree::tests::agrees_with_a_bitmap);
    /// A range is taken back though its end is not live.
    TreeFreeUnchecked "tree-free-unchecked" Iova "iova/tree/runs.rs: is_live"
        by scene(crate::iova::tree::tests::agrees_with_a_bitmap);
    /// Requests that are aligned in an unusual way are given up when no gap is generous.
    TreeScanSkipped "tree-scan-skipped" Iova "iova/tree/mod.rs: find"
        by scene(crate::iova::tree::tests::agrees_with_a_bitmap);
    /// A run of ranges goes on below its gap.
    RunBeyondGap "run-beyond-gap" Iova "iova/tree/mod.rs: alloc_run"
        by scene(crate::iova::tree::tests::agrees_with_a_bitmap);
    /// The ranges of a run abut though there are to be guard pages.
    RunUnguarded "run-unguarded" Iova "iova/tree/mod.rs: alloc_run"
        by scene(crate::iova::tree::tests::agrees_with_a_bitmap);
    /// Nobody reserves the holes of the space.
    HolesForgotten "holes-forgotten" Iova "iova/space.rs: holes"
        by scene(crate::iova::tree::tests::holes_stay_free);
    /// A block is popped though it is above the limit.
    PopIgnoresLimit "pop-ignores-limit" Iova "iova/magazine/round.rs: pop"
        by scene(crate::iova::magazine::tests::agrees_with_intervals);
    /// A block is put into a magazine twice.
    MagazinePushesTwice "magazine-pushes-twice" Iova "iova/magazine/mod.rs: exchange"
        by scene(crate::iova::magazine::tests::agrees_with_intervals);
    /// A block that is handed out when magazines are filled is put into them too.
    MagazineSuppliedTwice "magazine-supplied-twice" Iova "iova/magazine/inner.rs: supply"
        by scene(crate::iova::magazine::tests::agrees_with_intervals);
    /// What is exhausted is not looked for in the caches of other CPUs.
    MagazinesNotFlushed "magazines-not-flushed" Iova "iova/magazine/inner.rs: uncached"
        by scene(crate::iova::magazine::tests::what_others_have_cached_is_found);
    /// A range that the CPU holds in its magazines is taken back again.
    DoubleFreeUnseen "double-free-unseen" Iova "iova/magazine/mod.rs: put"
        by scene(crate::iova::magazine::tests::freed_twice_in_a_row_is_refused);
    /// A depot takes every magazine it is brought.
    DepotUnbounded "depot-unbounded" Iova "iova/magazine/depot.rs: has_room"
        by scene(crate::iova::magazine::tests::caches_are_bounded);
    /// A depot keeps what nobody needs.
    DepotNeverTrims "depot-never-trims" Iova "iova/magazine/depot.rs: lend_surplus"
        by scene(crate::iova::magazine::tests::what_a_burst_leaves_goes_back);
    /// The checked allocator passes a free on without looking.
    CheckedFreeUnseen "checked-free-unseen" Iova "iova/checked.rs: free"
        by scene(crate::iova::checked::tests::finds_what_magazines_do_not);
    /// The checked allocator takes a part of what it has handed out.
    PartUnseen "part-unseen" Iova "iova/checked.rs: forget"
        by scene(crate::iova::checked::tests::finds_parts);
    /// Who drops a ring says that it is CPU 0.
    RingDroppedOnZero "ring-dropped-on-zero" Iova "iova/ring.rs: drop"
        by scene(crate::iova::named::a_ring_is_dropped_in_nobodys_name);
    /// Who empties another CPU's magazines says that it is that CPU.
    EmptiedInAnothersName "emptied-in-anothers-name" Iova "iova/magazine/inner.rs: empty"
        by scene(crate::iova::named::magazines_are_emptied_in_nobodys_name);
    /// What a CPU that goes offline has cached is lost.
    DrainLoses "drain-loses" Iova "iova/magazine/mod.rs: drain"
        by scene(crate::iova::named::magazines_are_emptied_in_nobodys_name);
    /// A pool hands out what is not aligned as it was asked for.
    PoolUnaligned "pool-unaligned" Iova "iova/arena/bits.rs: find"
        by scene(crate::iova::arena::tests::agrees_with_bitmaps);
    /// A pool hands out what is above the limit.
    PoolUnlimited "pool-unlimited" Iova "iova/arena/bits.rs: find"
        by scene(crate::iova::arena::tests::agrees_with_bitmaps);
    /// What a pool holds back is freed when the flush begins.
    FreedBeforeFlush "freed-before-flush" Iova "iova/arena/mod.rs: sweep"
        by loom("loom_iova.rs" "a_pool_wraps_under_two_cpus");
    /// A flush that is complete frees what a later one is to free.
    PoolEpochIgnored "pool-epoch-ignored" Iova "iova/arena/bits.rs: complete"
        by loom("loom_iova.rs" "a_pool_wraps_under_two_cpus");
    /// A flush that is complete frees what was retired after it had begun.
    RetiredTooLateFreed "retired-too-late-freed" Iova "iova/arena/bits.rs: complete"
        by loom("loom_iova.rs" "a_pool_wraps_under_two_cpus");
    /// All pools share one flag that says a flush is needed, which whoever flushes lowers first.
    PoolsShareOneFlag "pools-share-one-flag" Iova "iova/arena/mod.rs: sweep"
        by loom("loom_iova.rs" "two_pools_wrap");
    /// Zones for reading, writing and both are one.
    IdentityRightsShared "identity-rights-shared" Iova "iova/identity.rs: encode"
        by scene(crate::iova::identity::tests::decodes_what_was_encoded);
    /// Leaves of all sizes share zones.
    IdentitySizesShared "identity-sizes-shared" Iova "iova/identity.rs: encode"
        by scene(crate::iova::identity::tests::decodes_what_was_encoded);
    /// Pages beyond the end of a zone get addresses in the next.
    IdentityZoneOverrun "identity-zone-overrun" Iova "iova/identity.rs: encode"
        by scene(crate::iova::identity::tests::decodes_what_was_encoded);
    /// Identity addresses are given to devices that can't emit them.
    IdentityLimitIgnored "identity-limit-ignored" Iova "iova/identity.rs: encode"
        by scene(crate::iova::identity::tests::masks_are_kept);
    /// Identity addresses that are not translated are given out.
    IdentityHolesIgnored "identity-holes-ignored" Iova "iova/identity.rs: encode"
        by scene(crate::iova::identity::tests::decodes_what_was_encoded);
    /// A ring hands out what has not come back.
    RingOverrun "ring-overrun" Iova "iova/ring.rs: alloc"
        by scene(crate::iova::ring::tests::agrees_with_a_bitmap);
    /// A ring takes back what is not allocated.
    RingFreeUnchecked "ring-free-unchecked" Iova "iova/ring.rs: free"
        by scene(crate::iova::ring::tests::agrees_with_a_bitmap);
    /// What was done under the lock is not released with it.
    SpinReleaseRelaxed "spin-release-relaxed" Iova "iova/spin.rs: drop"
        by loom("loom_iova.rs" "one_at_a_time");
    /// What was done under the lock before is not acquired with it.
    SpinAcquireRelaxed "spin-acquire-relaxed" Iova "iova/spin.rs: with"
        by loom("loom_iova.rs" "one_at_a_time");

    // ---- table

    /// A walk is posted without ordering against whoever frees tables.
    WalkUnordered "walk-unordered" Table "table/seat.rs: begin"
        by loom("loom_table.rs" "walkers_are_waited_for");
    /// Whoever frees tables asks the seats without ordering.
    SeatsReadRelaxed "seats-read-relaxed" Table "table/seat.rs: ask"
        by loom("loom_table.rs" "walkers_are_waited_for");
    /// A table is freed though somebody is walking who may have found it.
    WalkNotAwaited "walk-not-awaited" Table "table/seat.rs: has_walked"
        by loom("loom_table.rs" "walkers_are_waited_for");
    /// A table is freed though a walker remembers it.
    HeldTableFreed "held-table-freed" Table "table/seat.rs: holds"
        by scene(crate::table::tests::scenes::tables_that_are_remembered_are_kept);
    /// Whoever frees tables looks at the first place of each seat only.
    PlacesOverlooked "places-overlooked" Table "table/seat.rs: holds"
        by scene(crate::table::tests::scenes::tables_that_are_remembered_are_kept);
    /// A sweep that has looked at all below a table begins there again.
    SweepBeginsAnew "sweep-begins-anew" Table "table/reclaim.rs: sweep_below"
        by scene(crate::table::tests::scenes::sweeps_come_everywhere);
    /// The second place for the same leaf tables is filled, and not looked into.
    OneWayRemembered "one-way-remembered" Table "table/seat.rs: place"
        by scene(crate::table::tests::scenes::nobody_walks_who_comes_back);
    /// That a seat has let go of a table is stored without Release (S5).
    HeldRelaxed "held-relaxed" Table "table/seat.rs: keep"
        by loom("loom_table.rs" "what_a_seat_lets_go_of_is_freed_after");
    /// A table of several pages is freed though a walker remembers one of them that is not the first.
    PageHeldFreed "page-held-freed" Table "table/seat.rs: holds"
        by scene(crate::table::tests::scenes::tables_of_which_a_page_is_remembered_are_kept);
    /// A new table is linked before its zeroes were written back.
    ParentBeforeChild "parent-before-child" Table "table/mod.rs: new_table"
        by scene(crate::table::tests::scenes::entries_are_in_memory_when_map_returns);
    /// A table is relied on that somebody else has linked, and not yet written back.
    ParentTrusted "parent-trusted" Table "table/walk.rs: down"
        by scene(crate::table::tests::scenes::nobody_relies_on_what_is_not_written_back);
    /// A table is remembered that was only looked at, and whose entry nobody has written back yet.
    PeekedTrusted "peeked-trusted" Table "table/walk.rs: peek"
        by scene(crate::table::tests::scenes::nobody_relies_on_what_is_not_written_back);
    /// A page is shared whose entry the first user has not yet written back.
    SharedLeafTrusted "shared-leaf-trusted" Table "table/identity.rs: acquire"
        by scene(crate::table::tests::scenes::nobody_relies_on_what_is_not_written_back);
    /// Entries are stored, and not written back.
    LeafNotWrittenBack "leaf-not-written-back" Table "table/mod.rs: show"
        by scene(crate::table::tests::scenes::entries_are_in_memory_when_map_returns);
    /// A range that could not be mapped to its end stays mapped as far as it was.
    UndoSkipped "undo-skipped" Table "table/range.rs: undo"
        by scene(crate::table::tests::scenes::a_failed_map_leaves_nothing);
    /// Nobody is told of the pages that were mapped for a moment.
    UndoneNotReported "undone-not-reported" Table "table/range.rs: undo"
        by scene(crate::table::tests::scenes::a_failed_map_leaves_nothing);
    /// Unmapping says that only leaf entries have changed, though a table went away.
    LeafOnlyAlways "leaf-only-always" Table "table/range.rs: unmap"
        by scene(crate::table::tests::scenes::walk_caches_forget_tables_that_go_away);
    /// The first entry of a range is stored without regard for tombstones.
    AnchorStored "anchor-stored" Table "table/range.rs: map_in_one_table"
        by loom("loom_table.rs" "what_is_mapped_stays_reachable");
    /// A page is shared by who asks for other rights than it is mapped with.
    RightsIgnored "rights-ignored" Table "table/identity.rs: acquire"
        by scene(crate::table::tests::scenes::nonsense_is_refused);
    /// A page that others use is unmapped as if it were owned.
    CountedUnmapped "counted-unmapped" Table "table/unit.rs: is_whole"
        by scene(crate::table::tests::scenes::nonsense_is_refused);
    /// A part of a mapping, or more than one, is unmapped by whoever asks for it.
    LengthIgnored "length-ignored" Table "table/unit.rs: is_whole"
        by scene(crate::table::tests::units::only_whole_mappings_are_unmapped);
    /// A range that begins inside a superpage unmaps it.
    CutUnnoticed "cut-unnoticed" Table "table/unit.rs: check_mapped"
        by scene(crate::table::tests::scenes::superpages_are_chosen_where_they_fit);
    /// A range that begins or ends inside a leaf of several entries unmaps those that it has.
    BlockCut "block-cut" Table "table/unit.rs: check_blocks"
        by scene(crate::table::tests::units::leaves_of_several_entries_are_not_cut);
    /// A superpage is made though its memory is not aligned to it.
    PhysUnaligned "phys-unaligned" Table "table/range.rs: level_for"
        by scene(crate::table::tests::scenes::superpages_are_chosen_where_they_fit);
    /// A use count goes from its largest value to 0.
    CountWraps "count-wraps" Table "table/identity.rs: acquire"
        by scene(crate::table::tests::scenes::counts_do_not_wrap);
    /// When a count spills, the uses that the entry had counted are not counted beside it.
    SpilledAlone "spilled-alone" Table "table/spill.rs: join"
        by scene(crate::table::tests::scenes::counts_go_on_beside_the_entry);
    /// Who joins a spilled page looks at its entry without a fence (S1).
    JoinUnfenced "join-unfenced" Table "table/spill.rs: join"
        by loom("loom_table.rs" "spilled_uses_are_counted");
    /// Who is about to empty a spilled entry looks at the side word without a fence (S2).
    CloseUnfenced "close-unfenced" Table "table/spill.rs: drop_tokens"
        by loom("loom_table.rs" "spilled_uses_are_counted");
    /// A spilled entry is emptied without another look at the side word.
    CloseUnchecked "close-unchecked" Table "table/spill.rs: drop_tokens"
        by loom("loom_table.rs" "spilled_uses_are_counted");
    /// Who joins a page whose entry is about to be emptied does not call that off.
    ClosingJoined "closing-joined" Table "table/spill.rs: join"
        by loom("loom_table.rs" "spilled_uses_are_counted");
    /// Who lets go of a spilled page looks for its side table without Acquire (S5).
    PartUnordered "part-unordered" Table "table/spill.rs: part"
        by loom("loom_table.rs" "spilled_uses_are_counted");
    /// A side word that is as large as before is taken for unchanged.
    ChangeUncounted "change-uncounted" Table "table/spill.rs: drop_tokens"
        by loom("loom_table.rs" "a_spill_beside_the_last_of_one_before");
    /// One entry of a table that is taken out gets no tombstone.
    TombstoneSkipped "tombstone-skipped" Table "table/reclaim.rs: entomb"
        by loom("loom_table.rs" "what_is_mapped_stays_reachable");
    /// A table is taken out though an entry was found live.
    LiveEntryEntombed "live-entry-entombed" Table "table/reclaim.rs: entomb"
        by loom("loom_table.rs" "what_is_mapped_stays_reachable");
    /// Tombstones are taken away by plain stores, over what was mapped there.
    RollbackStores "rollback-stores" Table "table/reclaim.rs: detach"
        by loom("loom_table.rs" "what_is_mapped_stays_reachable");
    /// A table is taken out though somebody who maps there has called it off.
    CallOffIgnored "call-off-ignored" Table "table/reclaim.rs: unlink"
        by loom("loom_table.rs" "what_is_mapped_stays_reachable");
    /// Something is mapped over a tombstone without having called off what that is from.
    TombTaken "tomb-taken" Table "table/range.rs: map_in_one_table"
        by loom("loom_table.rs" "what_is_mapped_stays_reachable");
    /// The tombstones of a table that is put back are taken away by plain stores, over what was mapped there.
    RevivalStores "revival-stores" Table "table/reclaim.rs: put_back"
        by loom("loom_table.rs" "a_table_is_put_back_or_freed");
    /// A table that is unmapped as a whole is taken out with its entries empty.
    DeadTableOpen "dead-table-open" Table "table/reclaim.rs: clear_and_detach"
        by scene(crate::table::tests::scenes::dead_tables_take_nothing);
    /// A table that was put back is taken out again though an invalidation is still owed for the first time.
    PendingIgnored "pending-ignored" Table "table/reclaim.rs: detach"
        by scene(crate::table::tests::scenes::a_table_put_back_is_not_freed);
    /// A table is freed though it was put back.
    RevivalOverlooked "revival-overlooked" Table "table/free.rs: finish"
        by scene(crate::table::tests::scenes::a_table_put_back_is_not_freed);

    // ---- invalidate

    /// A block has half the size it should have.
    BlockTooSmall "block-too-small" Invalidate "invalidate/cover.rs: spanning"
        by scene(crate::invalidate::cover::tests::blocks_hold_the_range_and_less_than_twice_as_much);
    /// A block begins where the range does, whatever its size.
    BlockUnaligned "block-unaligned" Invalidate "invalidate/cover.rs: spanning"
        by scene(crate::invalidate::vtd::tests::pages_are_covered);
    /// Of two blocks only the first is told.
    SecondBlockForgotten "second-block-forgotten" Invalidate "invalidate/cover.rs: cover"
        by scene(crate::invalidate::amd::tests::pages_are_covered);
    /// The second piece of a range begins too early.
    PieceMisplaced "piece-misplaced" Invalidate "invalidate/smmu.rs: pieces"
        by scene(crate::invalidate::smmu::tests::pages_are_covered);
    /// A range of one granule is told in the form that some parts get wrong.
    LonelyGranule "lonely-granule" Invalidate "invalidate/smmu.rs: pieces"
        by scene(crate::invalidate::smmu::tests::pages_are_covered);
    /// A range in the cache of a device is told in pages of 4 KiB, whatever the domain's are.
    DeviceUnscaled "device-unscaled" Invalidate "invalidate/smmu.rs: device_range"
        by scene(crate::invalidate::smmu::tests::devices_are_covered_at_every_granule);
    /// A range is told with the code of 4 KiB, whatever the granule is.
    GranuleMistaken "granule-mistaken" Invalidate "invalidate/smmu.rs: encode"
        by scene(crate::invalidate::smmu::tests::pages_are_covered);
    /// A device that is listed in another domain is taken off the list.
    SeatOfAnother "seat-of-another" Invalidate "invalidate/attach.rs: member"
        by test("bad_input.rs" "what_is_another_domains_is_refused");
    /// When two spans become one, it is as long as the first.
    NeighbourForgotten "neighbour-forgotten" Invalidate "invalidate/ladder.rs: join_neighbours"
        by scene(crate::invalidate::ladder::tests::rungs);
    /// A unit is told to forget everything though it can't be told that.
    AllUnasked "all-unasked" Invalidate "invalidate/ladder.rs: coarse"
        by scene(crate::invalidate::ladder::tests::promotion_exhaustively);
    /// When a domain is forgotten as a whole, or everything, devices are told nothing.
    PromotedDevicesNotTold "promoted-devices-not-told" Invalidate "invalidate/members.rs: tell"
        by scene(crate::invalidate::scenes::what_goes_as_a_whole_is_forgotten_everywhere);
    /// A span that there is no room for is dropped, and the batch stays as it was.
    SpanDropped "span-dropped" Invalidate "invalidate/pending.rs: push"
        by scene(crate::invalidate::scenes::too_many_ranges_are_all_told);
    /// When two spans become one, that the second has freed tables is forgotten.
    FreedTableForgotten "freed-table-forgotten" Invalidate "invalidate/pending.rs: hull"
        by scene(crate::invalidate::scenes::freed_tables_are_remembered);
    /// Pages are told under another domain's id.
    DomainMistaken "domain-mistaken" Invalidate "invalidate/members.rs: pages"
        by scene(crate::invalidate::scenes::nothing_is_reached_after_completion);
    /// Only the first unit of a domain is told.
    FirstUnitOnly "first-unit-only" Invalidate "invalidate/engine.rs: tell"
        by scene(crate::invalidate::scenes::nothing_is_reached_after_completion);
    /// Devices with caches are not told.
    DevicesNotTold "devices-not-told" Invalidate "invalidate/members.rs: tell"
        by scene(crate::invalidate::scenes::nothing_is_reached_after_completion);
    /// A batch counts as complete when it is submitted.
    WaitSkipped "wait-skipped" Invalidate "invalidate/complete.rs: is_slot_complete"
        by scene(crate::invalidate::scenes::nothing_is_reached_after_completion);
    /// What was cleared now is taken for covered by the batch that was submitted last.
    SubmittedTrusted "submitted-trusted" Invalidate "invalidate/engine.rs: token"
        by scene(crate::invalidate::scenes::nothing_is_reached_after_completion);
    /// A lane whose spans became part of a batch of the whole domain does not wait for it.
    FollowerFree "follower-free" Invalidate "invalidate/engine.rs: absorb"
        by scene(crate::invalidate::scenes::nothing_is_reached_after_completion);
    /// The token of the whole domain is that of the batch that started last, before the entry was cleared.
    WholeTokenTooEarly "whole-token-too-early" Invalidate "invalidate/engine.rs: note_whole"
        by scene(crate::invalidate::scenes::nothing_is_reached_after_completion);
    /// A batch that there was no room for is not submitted again.
    FullForgotten "full-forgotten" Invalidate "invalidate/engine.rs: flush_held"
        by scene(crate::invalidate::scenes::nothing_is_reached_after_completion);
    /// An error that a unit has told somebody who goes on is told nobody else.
    ErrorForgotten "error-forgotten" Invalidate "invalidate/complete.rs: put_down"
        by scene(crate::invalidate::scenes::errors::errors_are_told_once_by_poll);
    /// A unit that takes nothing any more is not told of as long as nothing is under way.
    StuckUntold "stuck-untold" Invalidate "invalidate/complete.rs: tell_again"
        by scene(crate::invalidate::scenes::errors::a_unit_that_takes_nothing_is_told_of);
    /// Who waits is told what is wrong with a later batch, though its own is complete.
    LaterErrorReturned "later-error-returned" Invalidate "invalidate/complete.rs: wait"
        by scene(crate::invalidate::scenes::errors::what_is_complete_stays_so_when_the_unit_ends);
    /// What a device may have kept that does not answer counts as forgotten.
    SilenceIgnored "silence-ignored" Invalidate "invalidate/members.rs: reached"
        by scene(crate::invalidate::scenes::a_silent_device_holds_its_domain_back);
    /// What was found for a device that was reset stays, and its unit is not told any more.
    EvictedUnitForgotten "evicted-unit-forgotten" Invalidate "invalidate/attach.rs: evict"
        by scene(crate::invalidate::scenes::who_comes_after_an_eviction_finds_nothing);
    /// What is cached of the entry of a device that was reset stays, for the next one at its place.
    EvictionUntold "eviction-untold" Invalidate "invalidate/attach.rs: evict"
        by scene(crate::invalidate::scenes::who_takes_the_place_of_an_evicted_finds_nothing);
    /// Translations of a device that leaves are forgotten while it may still be asking for them.
    ConfigNotAwaited "config-not-awaited" Invalidate "invalidate/attach.rs: detach"
        by scene(crate::invalidate::scenes::who_leaves_leaves_nothing);
    /// Who finds a lane locked does not say that it wants the batch submitted.
    WishForgotten "wish-forgotten" Invalidate "invalidate/lane.rs: try_lock_or_wish"
        by scene(crate::invalidate::scenes::interrupts_leave_their_wish);
    /// The number of the next batch of the whole domain is read without a fence behind the clearing of the entry (E1).
    WholeTokenUnfenced "whole-token-unfenced" Invalidate "invalidate/engine.rs: note_whole"
        by loom("loom_invalidate.rs" "the_whole_covers_what_was_cleared");
    /// Units are told without a fence behind the start of the batch, and before the list of devices is read (E2, M2).
    TellUnfenced "tell-unfenced" Invalidate "invalidate/engine.rs: tell"
        by loom("loom_invalidate.rs" "the_whole_covers_what_was_cleared");
    /// A device is listed without a fence before its entry becomes valid (M1).
    AttachUnfenced "attach-unfenced" Invalidate "invalidate/members.rs: attach"
        by loom("loom_invalidate.rs" "who_comes_is_told_or_finds_it_cleared");
    /// Two use a lane at a time.
    LaneLockIgnored "lane-lock-ignored" Invalidate "invalidate/lane.rs: try_lock"
        by loom("loom_invalidate.rs" "two_with_the_number_of_one_cpu");
    /// A lane's lock is taken without Acquire (L1).
    LaneLockRelaxed "lane-lock-relaxed" Invalidate "invalidate/lane.rs: try_lock"
        by loom("loom_invalidate.rs" "two_with_the_number_of_one_cpu");
    /// A lane's lock is left without Release (L2).
    LaneUnlockRelaxed "lane-unlock-relaxed" Invalidate "invalidate/lane.rs: unlock"
        by loom("loom_invalidate.rs" "two_with_the_number_of_one_cpu");
    /// A batch is closed without Release (L4).
    CloseRelaxed "close-relaxed" Invalidate "invalidate/lane.rs: close"
        by loom("loom_invalidate.rs" "completion_is_seen_by_others");
    /// The newest closed batch is read without Acquire (L5).
    ClosedReadRelaxed "closed-read-relaxed" Invalidate "invalidate/lane.rs: closed"
        by loom("loom_invalidate.rs" "completion_is_seen_by_others");
    /// Completions are published without Release (L6).
    FinishRelaxed "finish-relaxed" Invalidate "invalidate/lane.rs: finish"
        by loom("loom_invalidate.rs" "completion_is_seen_by_others");
    /// Completions are read without Acquire (L7).
    DoneReadRelaxed "done-read-relaxed" Invalidate "invalidate/lane.rs: done"
        by loom("loom_invalidate.rs" "completion_is_seen_by_others");
    /// The unit's low 32 bits are taken for ahead, though they may be behind.
    WrapIgnored "wrap-ignored" Invalidate "invalidate/queue/format.rs: widen"
        by scene(crate::invalidate::queue::tests::widening);
    /// Slots are reserved though they are in use.
    RoomUnchecked "room-unchecked" Invalidate "invalidate/queue/mod.rs: reserve"
        by test("queues.rs" "every_step_of_the_queue_is_missed");
    /// No barrier stands between what the IOMMU forgets and what a device forgets.
    BarrierSkipped "barrier-skipped" Invalidate "invalidate/queue/mod.rs: slots_of"
        by test("queues.rs" "every_step_of_the_queue_is_missed");
    /// What may survive one invalidation is told once.
    RepeatSkipped "repeat-skipped" Invalidate "invalidate/queue/mod.rs: slots_of"
        by test("queues.rs" "every_step_of_the_queue_is_missed");
    /// A device that does not answer is relied on.
    SilentRelied "silent-relied" Invalidate "invalidate/queue/mod.rs: answers"
        by test("queues.rs" "every_step_of_the_queue_is_missed");
    /// Who finds no room in a ring does not look whether the unit stands still.
    FullUnattended "full-unattended" Invalidate "invalidate/queue/mod.rs: submit"
        by test("silent.rs" "who_finds_no_room_finds_what_stands_still");
    /// Devices of which one has not answered are told together again.
    ToldTogether "told-together" Invalidate "invalidate/queue/recover.rs: singly"
        by test("silent.rs" "of_ten_devices_the_dead_one_is_found");
    /// What was answered already is taken for unanswered when a device is silent.
    AnsweredSuspected "answered-suspected" Invalidate "invalidate/queue/recover.rs: passed"
        by test("silent.rs" "of_ten_devices_the_dead_one_is_found");
    /// Of devices that were told at the same time the first is taken for the one that has not answered.
    FirstStruck "first-struck" Invalidate "invalidate/queue/recover.rs: only"
        by test("silent.rs" "who_answers_when_asked_alone_is_not_silent");
    /// When more devices are struck than there is room for, none is relied on.
    OthersAllSilent "others-all-silent" Invalidate "invalidate/queue/silence.rs: mark"
        by test("silent.rs" "many_dead_devices_silence_all_until_all_are_revived");
    /// When all devices are revived, those that there was no room for are not.
    OthersUnforgiven "others-unforgiven" Invalidate "invalidate/queue/silence.rs: forgive_all"
        by test("silent.rs" "many_dead_devices_silence_all_until_all_are_revived");
    /// What the unit has done is relied on without a fence behind the register that says so (Q8).
    ConsumedUnfenced "consumed-unfenced" Invalidate "invalidate/queue/smmu.rs: position"
        by loom("loom_invalidate.rs" "who_reads_a_register_relies_on_it");
    /// What was refused is replaced by something that makes nobody forget.
    RefusedDropped "refused-dropped" Invalidate "invalidate/queue/recover.rs: patch"
        by test("queues.rs" "every_step_of_the_queue_is_missed");
    /// What a device has not answered is not submitted again.
    LostForgotten "lost-forgotten" Invalidate "invalidate/queue/recover.rs: replay"
        by test("queues.rs" "every_step_of_the_queue_is_missed");
    /// Waits that do not know what was lost count.
    GateOpen "gate-open" Invalidate "invalidate/queue/mod.rs: refresh"
        by loom("loom_invalidate.rs" "nothing_is_complete_before_what_was_lost");
    /// The gate is read before the status (Q8).
    GateReadFirst "gate-read-first" Invalidate "invalidate/queue/mod.rs: refresh"
        by loom("loom_invalidate.rs" "nothing_is_complete_before_what_was_lost");
    /// That a submission is written is said without Release (Q1).
    EndRelaxed "end-relaxed" Invalidate "invalidate/queue/mod.rs: written"
        by loom("loom_invalidate.rs" "the_tail_passes_only_what_is_written");
    /// That a submission is written is read without Acquire (Q2).
    EndReadRelaxed "end-read-relaxed" Invalidate "invalidate/queue/mod.rs: end"
        by loom("loom_invalidate.rs" "the_tail_passes_only_what_is_written");
    /// Two publish at a time.
    PublisherIgnored "publisher-ignored" Invalidate "invalidate/queue/mod.rs: publish"
        by loom("loom_invalidate.rs" "the_tail_passes_only_what_is_written");
    /// Who does not get the publisher's lock does not say that there is work.
    WorkForgotten "work-forgotten" Invalidate "invalidate/queue/mod.rs: publish"
        by loom("loom_invalidate.rs" "the_tail_passes_only_what_is_written");
    /// How far the unit is, is published without Release (Q5).
    QueueDoneRelaxed "queue-done-relaxed" Invalidate "invalidate/queue/mod.rs: refresh"
        by loom("loom_invalidate.rs" "who_asks_relies_on_the_answer");
    /// How far the unit is, is read without Acquire (Q6).
    QueueDoneReadRelaxed "queue-done-read-relaxed" Invalidate "invalidate/queue/mod.rs: refresh"
        by loom("loom_invalidate.rs" "who_asks_relies_on_the_answer");
    /// Room in a ring is given back without Release (Q9).
    RoomGivenRelaxed "room-given-relaxed" Invalidate "invalidate/queue/mod.rs: give_room"
        by loom("loom_invalidate.rs" "room_is_taken_when_slots_were_read");
    /// Room in a ring is taken without Acquire (Q10).
    RoomTakenRelaxed "room-taken-relaxed" Invalidate "invalidate/queue/mod.rs: reserve"
        by loom("loom_invalidate.rs" "room_is_taken_when_slots_were_read");
    /// Slots are reserved without Acquire and Release (Q11).
    ReservedRelaxed "reserved-relaxed" Invalidate "invalidate/queue/mod.rs: reserve"
        by loom("loom_invalidate.rs" "slots_are_reserved_when_they_were_read");

    // ---- what each CPU has

    /// A CPU's cell is entered though somebody else is inside.
    CellNotTaken "cell-not-taken" Local "local.rs: swap"
        by loom("loom_iova.rs" "two_with_the_number_of_one_cpu");
    /// The owner of a cell does not look whether somebody has claimed it (P1).
    ClaimUnseen "claim-unseen" Local "local.rs: own"
        by loom("loom_local.rs" "an_owner_and_a_claimer");
    /// Who claims a cell goes on without the owner's having passed a barrier (C1).
    ClaimUnfenced "claim-unfenced" Local "local.rs: claim"
        by loom("loom_local.rs" "an_owner_and_a_claimer");
    /// Who claims a cell does not look whether its owner is inside (C2).
    OwnerOverlooked "owner-overlooked" Local "local.rs: claim"
        by loom("loom_local.rs" "an_owner_and_a_claimer");
    /// The owner of a cell asks without Acquire whether it is claimed (P1).
    ClaimReadRelaxed "claim-read-relaxed" Local "local.rs: own"
        by loom("loom_local.rs" "an_owner_and_a_claimer");
    /// A cell is left without Release (O2, C3).
    LeaveRelaxed "leave-relaxed" Local "local.rs: drop"
        by loom("loom_local.rs" "an_owner_and_a_claimer");

    // ---- domain

    /// A CPU keeps addresses that the allocator would not hand out again so soon.
    KeepsAll "keeps-all" Domain "domain/settle.rs: settle"
        by scene(crate::domain::tests::keeping::addresses_come_back_in_the_allocators_order);
    /// There is no room beforehand for what is over when the hardware does not answer.
    StrandedUnprepared "stranded-unprepared" Domain "domain/mod.rs: new"
        by test("no_memory.rs" "what_has_no_place_is_counted");
    /// Who finds no room for what is owed waits in the cell.
    WaitsInCell "waits-in-cell" Domain "domain/unmap.rs: owe_nothing"
        by scene(crate::domain::tests::strict_waits);
    /// What was mapped for a moment is owed beside the bounds.
    UndoneUnbounded "undone-unbounded" Domain "domain/unmap.rs: owe_thing"
        by scene(crate::domain::tests::failures::what_failed_is_bounded_too);
    /// The bounds of what a CPU may owe are not looked at.
    BoundIgnored "bound-ignored" Domain "domain/owed.rs: has_room"
        by scene(crate::domain::tests::what_is_owed_is_bounded);
    /// What is owed is given back though its invalidation is not complete.
    GivenBackEarly "given-back-early" Domain "domain/owed.rs: take"
        by scene(crate::domain::tests::nothing_is_given_back_early);
    /// A strict unmapping returns without waiting.
    StrictDoesNotWait "strict-does-not-wait" Domain "domain/mod.rs: wait"
        by scene(crate::domain::tests::strict_waits);
    /// What is owed by a CPU that maps nothing more is never flushed.
    TimerForgets "timer-forgets" Domain "domain/settle.rs: poll"
        by scene(crate::domain::tests::an_idle_domain_drains);
    /// What the timer could not flush, as somebody was in its cell, waits for another window.
    MissedWaitsAWindow "missed-waits-a-window" Domain "domain/settle.rs: poll"
        by scene(crate::domain::tests::what_the_timer_missed_is_flushed_next_time);
    /// A table that was taken out is invalidated as if it were still there.
    SweptAsLeaf "swept-as-leaf" Domain "domain/owed.rs: covered"
        by scene(crate::domain::tests::tables_go_after_walk_caches);
    /// Entries that were put and taken away again because others could not be are not invalidated.
    UndoneNotNoted "undone-not-noted" Domain "domain/map.rs: unput"
        by scene(crate::domain::tests::what_was_undone_is_invalidated);
    /// Addresses by which something was mapped for a moment stay their owner's, and nobody waits until that is forgotten.
    UndoneNotAwaited "undone-not-awaited" Domain "domain/map.rs: unput_kept"
        by scene(crate::domain::tests::addresses_of_what_was_undone_are_clean);
    /// A unit that remembers what was not mapped is not told of what is.
    PresenceNotTold "presence-not-told" Domain "domain/map.rs: tell_of_presence"
        by scene(crate::domain::tests::units_that_remember_absence_are_told);
    /// A unit that remembers what was not mapped is told of pages as if their tables had been there.
    PresenceToldAsLeaf "presence-told-as-leaf" Domain "domain/map.rs: tell_units"
        by scene(crate::domain::tests::units_that_remember_absence_are_told);
    /// A device with a cache of its own comes while its unit has what others had of the domain.
    StaleForNewcomers "stale-for-newcomers" Invalidate "invalidate/attach.rs: welcome"
        by scene(crate::domain::tests::who_comes_with_a_cache_finds_a_clean_unit);
    /// A unit that remembers what was not there is not told of a device.
    ArrivalNotTold "arrival-not-told" Domain "domain/mod.rs: announce"
        by scene(crate::domain::tests::units_that_remember_absence_are_told);
    /// A unit that counts in pages of another size than the table's is taken.
    GranuleUnchecked "granule-unchecked" Domain "domain/mod.rs: new"
        by scene(crate::domain::tests::granules::a_unit_that_counts_in_other_pages_is_refused);
    /// What is reserved in one domain is linked and given back in another.
    ReservationOfAnother "reservation-of-another" Domain "domain/two_step.rs: has_reserved"
        by test("bad_input.rs" "what_is_another_domains_is_refused");
    /// Zones of identity addresses are taken that end beyond the table.
    IdentityUnchecked "identity-unchecked" Domain "domain/mod.rs: new"
        by scene(crate::domain::tests::identity::identity_zones_beyond_the_table_are_refused);
    /// Zones that devices don't reach are mapped in.
    IdentityUnlimited "identity-unlimited" Domain "domain/mod.rs: new"
        by scene(crate::domain::tests::failures::identity_keeps_the_limit);
    /// The allocator is asked for addresses that follow from memory's.
    ZonesHandedOut "zones-handed-out" Domain "domain/map.rs: limit"
        by scene(crate::domain::tests::failures::the_allocator_keeps_to_its_zone);
    /// The caller maps in zones, where it is no whole leaf.
    ZonesMappedAt "zones-mapped-at" Domain "domain/identity.rs: is_in_zones"
        by scene(crate::domain::tests::failures::zones_are_not_the_callers);
    /// Addresses that are the caller's are unmapped under the domain's policy.
    GivenUnmappedLazily "given-unmapped-lazily" Domain "domain/given.rs: unmap_at"
        by scene(crate::domain::tests::ends::what_is_the_callers_is_waited_for);
    /// A domain that ends makes nobody forget what is mapped.
    EndUntold "end-untold" Domain "domain/settle.rs: end"
        by scene(crate::domain::tests::ends::who_ends_leaves_nothing_cached);
    /// A domain that ends keeps what it owes.
    EndOwes "end-owes" Domain "domain/settle.rs: end"
        by scene(crate::domain::tests::ends::who_ends_owes_nothing);
    /// What was mapped for a moment stays so if all cells are taken.
    BusyGivesUp "busy-gives-up" Domain "domain/map.rs: unmap_ours"
        by scene(crate::domain::tests::failures::what_is_taken_back_waits_for_a_cell);
    /// A flush does not wait for what was stranded.
    StrandedPassedBy "stranded-passed-by" Domain "domain/settle.rs: flush"
        by scene(crate::domain::tests::failures::a_flush_waits_for_what_was_stranded);
    /// A window is opened for devices that are not trusted.
    WindowForAll "window-for-all" Domain "domain/window.rs: open_window"
        by scene(crate::domain::tests::failures::a_window_is_for_who_is_trusted);
    /// A page that is not reached any more is not released.
    ReferenceLost "reference-lost" Domain "domain/settle.rs: give_back"
        by scene(crate::domain::tests::nothing_is_given_back_early);
    /// Two windows are opened at the same time.
    WindowOpenedTwice "window-opened-twice" Domain "domain/window.rs: open_window"
        by scene(crate::domain::tests::failures::a_window_is_opened_once);
    /// Addresses of a window that failed are free at once.
    WindowSeenForgotten "window-seen-forgotten" Domain "domain/window.rs: map_window"
        by scene(crate::domain::tests::failures::a_window_that_fails_is_taken_back);
    /// Identity addresses of superpages are mapped page by page.
    IdentityInSmallLeaves "identity-in-small-leaves" Domain "domain/identity.rs: sizes_of"
        by scene(crate::domain::tests::identity::superpages_are_identity_too);
    /// Memory that begins within a page is taken for the page.
    UnalignedTaken "unaligned-taken" Domain "domain/map.rs: whole_pages"
        by scene(crate::domain::tests::granules::given_addresses_windows_and_identity_count_in_the_granule);

    // ---- bounce

    /// A page of the pool has around a buffer what was there before.
    BounceNotCleared "bounce-not-cleared" Bounce "bounce/guarded.rs: fill"
        by scene(crate::bounce::tests::nothing_is_seen_beside_a_buffer);
    /// What lies at the edges of a buffer is not brought to the pool.
    BounceNotCopiedIn "bounce-not-copied-in" Bounce "bounce/guarded.rs: fill"
        by scene(crate::bounce::tests::what_the_device_leaves_stays);
    /// What a device has written to the edges of a buffer stays in the pool.
    BounceNotCopiedOut "bounce-not-copied-out" Bounce "bounce/guarded.rs: sync_for_cpu"
        by scene(crate::bounce::tests::what_the_device_writes_comes_back);
    /// A page of the pool is used again when it is unmapped, and not when that is forgotten by everybody.
    BounceReusedEarly "bounce-reused-early" Bounce "bounce/host.rs: hold"
        by scene(crate::bounce::tests::a_page_of_the_pool_waits_for_its_invalidation);
    /// A page of the pool is taken without Acquire (P1).
    PoolTakeRelaxed "pool-take-relaxed" Bounce "bounce/pool.rs: take"
        by loom("loom_bounce.rs" "a_page_is_anothers_after_the_last_use");
    /// A page of the pool is let go of without Release (P2).
    PoolLetGoRelaxed "pool-let-go-relaxed" Bounce "bounce/pool.rs: let_go"
        by loom("loom_bounce.rs" "a_page_is_anothers_after_the_last_use");

    // ---- vmm

    /// The cache of an emulated IOMMU keeps what it is told to forget.
    CacheNotTold "cache-not-told" Vmm "vmm/cache.rs: carry_out"
        by test("vmm.rs" "what_is_unmapped_is_read_no_more");
    /// The cache is filled with what the table held before its lock was taken.
    FilledBeside "filled-beside" Vmm "vmm/translate.rs: fill"
        by test("vmm.rs" "what_is_unmapped_while_a_device_looks_it_up_is_not_kept");
    /// A guest's UNMAP takes away a part of a mapping.
    MappingCut "mapping-cut" Vmm "vmm/requests.rs: unmap"
        by test("vmm.rs" "a_guest_is_not_believed");
    /// Addresses of a MAP that failed are free though a device may have seen what was behind them.
    StaleForgotten "stale-forgotten" Vmm "vmm/requests.rs: map"
        by test("vmm.rs" "a_failed_map_is_waited_for");

    // ---- user

    /// What the kernel has refused to unmap is taken for unmapped.
    RefusalIgnored "refusal-ignored" User "user/kernel.rs: work"
        by test("user.rs" "what_the_kernel_refuses_stays_owed");
    /// What the kernel has unmapped in part is taken for unmapped.
    ShortTrusted "short-trusted" User "user/kernel.rs: unmap"
        by test("user.rs" "what_the_kernel_leaves_is_tried_again");
    /// What is live is unmapped when everything is to be forgotten.
    LiveUnmapped "live-unmapped" User "user/kernel.rs: dead_runs"
        by test("user.rs" "what_is_live_stays_mapped");
}
