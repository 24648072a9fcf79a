//! The table of mutants: the one place where they are declared.
//!
//! A row is: what is missing, in one sentence; the variant; its name on the command line; its kind; where
//! the step is; the promise it should break. A row with `unless` has none: it says why nothing breaks.
//! Pairs and orderings (D1, C2, R3, T4) are those of the tables that open the modules.

use super::{Kind, Promise};

macro_rules! mutants {
    ($($(#[doc = $doc:literal])+
        $variant:ident $name:literal $kind:ident $place:literal $promise:ident
        $(unless $because:literal)?;)*) => {
        /// One removed or weakened step.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Mutant {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl Mutant {
            /// Every mutant, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Its name on the command line.
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

            /// What kind of step is missing.
            #[must_use]
            pub const fn kind(self) -> Kind {
                match self { $(Self::$variant => Kind::$kind,)* }
            }

            /// File and function of the step.
            #[must_use]
            pub const fn place(self) -> &'static str {
                match self { $(Self::$variant => $place,)* }
            }

            /// The promise that breaks without the step.
            #[must_use]
            pub const fn promise(self) -> Promise {
                match self { $(Self::$variant => Promise::$promise,)* }
            }

            /// Why nothing breaks without the step, for the few where nothing does.
            #[must_use]
            pub const fn equivalent(self) -> Option<&'static str> {
                match self { $(Self::$variant => mutants!(@because $($because)?),)* }
            }
        }
    };
    (@because) => { None };
    (@because $because:literal) => { Some($because) };
}

mutants! {
    // ---- switch.rs: context switch and lazy mode

    /// The switcher publishes that it is switching, but without the fence before it reads the generation (D1).
    SwitchWithoutFence "switch-without-fence" Fence "switch.rs switch_to" Revocation;
    /// The switcher reads the generation before it publishes that it is switching (D1).
    SwitchReadsGenerationFirst "switch-reads-generation-first" Ordering "switch.rs switch_to" Revocation;
    /// The switcher records the generation it finds at the end, not the one it flushed for.
    SwitchReadsGenerationLate "switch-reads-generation-late" Ordering "switch.rs switch_to" Master;
    /// The switcher joins the space's set only after it has read the generation (D1).
    SwitchJoinsLate "switch-joins-late" Ordering "switch.rs switch_to" Revocation;
    /// The switcher does not join the space's set.
    SwitchDoesNotJoin "switch-does-not-join" Reference "switch.rs switch_to" Revocation;
    /// A CPU that leaves a set goes on to believe that it is in it, and does not join again.
    MembershipKept "membership-kept" Reference "switch.rs forget_membership" Revocation;
    /// A CPU that leaves a space stays in its set.
    LeaveStaysInSet "leave-stays-in-set" Reference "switch.rs leave_set" Reuse
        unless "The set may hold too many: every use of it (flush, retire) looks at what each member has loaded. Such a member costs reads and a trim, and a promise rests only on members that are missing.";
    /// The space that a switch loads is published without Release.
    LoadedRelaxed "loaded-relaxed" Ordering "switch.rs switch_to" Revocation;
    /// The generation that a switch brings along is published without Release.
    SwitchAckRelaxed "switch-ack-relaxed" Ordering "switch.rs switch_to" Reuse;
    /// A switch leaves the acknowledged generation of the space before in place.
    SwitchKeepsAck "switch-keeps-ack" Ack "switch.rs switch_to" Revocation;
    /// A switch leaves the generation of the slot's space before in place.
    SwitchKeepsGeneration "switch-keeps-generation" Bump "switch.rs switch_to" Master;
    /// A switch does not move its slot to the front, so that another one counts as loaded.
    CurrentSlotForgotten "current-slot-forgotten" Reference "switch.rs switch_to" Master;
    /// A remembered tag is kept without looking at its generation.
    SlotTrusts "slot-trusts" Row "switch.rs plan_for" Master;
    /// A new space takes a slot and keeps the old space's entries.
    EvictionKeeps "eviction-keeps" Row "switch.rs switch_to" Reuse;
    /// A remembered tag is kept although missed steps freed tables, and the ranges are invalidated after.
    SwitchReplaysFreed "switch-replays-freed" Row "switch.rs plan_for" Reuse;
    /// A remembered tag is kept and the missed ranges are not invalidated.
    SwitchReplaysNothing "switch-replays-nothing" Row "switch.rs switch_to" Master;
    /// A tag that is loaded empty leaves its user half as it was.
    SwitchOwesNothing "switch-owes-nothing" Row "switch.rs switch_to" Revocation;
    /// Leaving lazy mode does not fence before it reads the generation (D2).
    LazyExitWithoutFence "lazy-exit-without-fence" Fence "switch.rs leave_lazy" Revocation;
    /// Leaving lazy mode trusts the entries it has.
    LazyExitTrusts "lazy-exit-trusts" Row "switch.rs leave_lazy" Revocation;
    /// Leaving lazy mode publishes the space without Release.
    LazyExitRelaxed "lazy-exit-relaxed" Ordering "switch.rs leave_lazy" Revocation
        unless "The fence of D2 comes before this store, so whoever reads it with Acquire sees all up to that fence: the lazy flag cleared, and the acknowledgements of this stay in the space. After the fence only the catching up stores anything, and its acknowledgement is a Release of its own.";
    /// A CPU becomes or stops being lazy without Release: what it did through the space may come after.
    SetLazyRelaxed "set-lazy-relaxed" Ordering "cpu.rs set_lazy" Reuse;
    /// With the lazy flag on the private line: leaving the space does not clear the flag (D3).
    LazyFlagKept "lazy-flag-kept" Row "switch.rs switch_to, leave_lazy" Revocation;
    /// With the lazy flag on the private line: the flag is cleared after the space is published (D3).
    LazyFlagClearedLast "lazy-flag-cleared-last" Ordering "switch.rs switch_to, leave_lazy" Revocation;
    /// A CPU that leaves its space does not load the kernel's own tables.
    UnloadKeepsRoot "unload-keeps-root" Row "switch.rs unload" Reuse;
    /// A CPU that left its space says so without Release.
    UnloadRelaxed "unload-relaxed" Ordering "switch.rs unload" Reuse;
    /// The user half is not invalidated on return to user mode.
    UserHalfForgotten "user-half-forgotten" Row "switch.rs return_to_user" Revocation;
    /// Without tags the user half is loaded as if it were kept.
    UserHalfKeptUntagged "user-half-kept-untagged" Row "switch.rs return_to_user" Revocation
        unless "Without tags no hardware keeps an entry over the load of another root (x86: MOV to CR3 with PCIDE clear, SDM vol. 3, 4.10.4.1), and the user half is another root. The answer tells the port what will be so.";
    /// Invalidations are not waited for.
    SettleWithoutSync "settle-without-sync" Wait "switch.rs settle" Revocation;
    /// After an invalidation that does not order what follows, nothing does.
    SettleWithoutFence "settle-without-fence" Fence "switch.rs settle" Master
        unless "The generation is read with Acquire before the invalidation, which orders every access that follows, and the contract of `Regime` (1) keeps walks that began before the invalidation from leaving entries. The fence repeats both for hardware whose sync does not wait for earlier loads; none that this version has facts for is like that.";

    // ---- respond.rs: the responder's decision table

    /// The responder acknowledges and does not invalidate.
    RespondWithoutInvalidate "respond-without-invalidate" Row "respond.rs catch_up" Revocation;
    /// Row 3: a request one generation ahead counts as answered.
    HintTrusts "hint-trusts" Row "respond.rs catch_up" Revocation;
    /// Row 4: a slot one generation behind counts as current.
    CurrentTrusts "current-trusts" Row "respond.rs catch_up" Revocation;
    /// Row 5: a lazy CPU stays in its space although tables were freed.
    LazyStaysFreed "lazy-stays-freed" Row "respond.rs catch_up" Reuse;
    /// Row 5: steps that the log has lost count as leaf changes.
    UnknownCountsAsLeaf "unknown-counts-as-leaf" Row "respond.rs plan" Reuse;
    /// Row 5: a lazy CPU acknowledges before it has left the space.
    AckBeforeUnload "ack-before-unload" Ack "respond.rs catch_up" Reuse;
    /// Row 6: a lazy CPU that need not invalidate yet takes the new generation.
    LazyAdvances "lazy-advances" Bump "respond.rs catch_up" Revocation;
    /// Row 7: the responder invalidates only its request's range although it is further behind.
    PartialOverMissedStep "partial-over-missed-step" Row "respond.rs plan" Revocation;
    /// Row 8: a responder several steps behind replays only the newest step.
    ReplayOnlyNewest "replay-only-newest" Row "respond.rs plan" Revocation;
    /// Row 8: of several steps only the newest says whether tables were freed.
    ReplayForgetsFreed "replay-forgets-freed" Row "range_log.rs freed_tables" Reuse;
    /// Row 9: the tag is not invalidated.
    TagForgotten "tag-forgotten" Row "respond.rs invalidate_tag" Revocation;
    /// Ranges are invalidated leaf by leaf although tables were freed.
    LeafOnlyFreed "leaf-only-freed" Row "respond.rs invalidate_step" Reuse;
    /// A range is not invalidated in the user half although hardware could.
    OtherTagRangeForgotten "other-tag-range-forgotten" Row "respond.rs invalidate_step" Revocation;
    /// A range invalidated in the kernel half owes the user half nothing.
    StepOwesNothing "step-owes-nothing" Row "respond.rs invalidate_step" Revocation;
    /// A tag invalidated in the kernel half owes the user half nothing.
    TagOwesNothing "tag-owes-nothing" Row "respond.rs invalidate_tag" Revocation;
    /// Acknowledges early although tables are freed.
    EarlyAckFreed "early-ack-freed" Ack "respond.rs catch_up" Reuse;
    /// Acknowledges early although interrupts may be on.
    EarlyAckInTask "early-ack-in-task" Ack "respond.rs catch_up" Revocation;
    /// The acknowledgement before the invalidation is published without Release.
    EarlyAckRelaxed "early-ack-relaxed" Ordering "respond.rs catch_up" Reuse;
    /// The acknowledgement after the invalidation is published without Release.
    AckRelaxed "ack-relaxed" Ordering "respond.rs catch_up" Reuse;
    /// The responder catches up and does not say so.
    NoAck "no-ack" Ack "respond.rs catch_up" Progress;
    /// The responder records the generation it finds after the invalidation.
    CatchUpReadsGenerationLate "catch-up-reads-generation-late" Ordering "respond.rs catch_up" Master;
    /// The responder catches up and keeps the slot's old generation.
    CatchUpKeepsGeneration "catch-up-keeps-generation" Bump "respond.rs catch_up" Master
        unless "The slot then says that its entries are older than they are, and is invalidated again: over-flushing is always legal. The acknowledgement is a word of its own.";

    // ---- flush.rs, flush/: the initiator

    /// Table stores are not published to walkers before the change is counted.
    FlushWithoutPublish "flush-without-publish" Fence "flush.rs start" Revocation;
    /// The change is not counted.
    NoGenerationBump "no-generation-bump" Bump "flush.rs start" Revocation;
    /// The change is counted without Release: who sees the count need not see the tables.
    BumpRelaxed "bump-relaxed" Ordering "space.rs bump" Revocation;
    /// The generation is read without Acquire: who sees the count need not see the tables.
    GenerationRelaxed "generation-relaxed" Ordering "space.rs generation" Revocation;
    /// The flusher reads the CPU set without the fence after the generation (D1, D2).
    FlushWithoutFence "flush-without-fence" Fence "flush.rs start" Revocation;
    /// A CPU in the set is left out of the targets.
    FilterLosesOne "filter-loses-one" Filter "flush.rs start" Revocation;
    /// A CPU that is switching counts as "not running the space".
    FilterSkipsSwitching "filter-skips-switching" Filter "cpu.rs remote_view" Revocation;
    /// A CPU that uses the space is not told.
    FilterSkipsActive "filter-skips-active" Filter "flush.rs filter" Revocation;
    /// Where the space changed again since, CPUs that use it count as current.
    FilterTrustsOvertaken "filter-trusts-overtaken" Filter "flush.rs filter" Revocation;
    /// A lazy CPU is left alone although tables are freed.
    FilterSkipsLazyFreed "filter-skips-lazy-freed" Filter "flush.rs filter" Reuse;
    /// The flusher takes CPUs that are elsewhere out of the set by itself.
    RemoteRemoval "remote-removal" Reference "flush.rs filter" Revocation;
    /// The initiator does no local work.
    NoLocalWork "no-local-work" Row "flush/tell.rs local_work" Revocation;
    /// An initiator that interrupted its own CPU's catching up relies on it for its own change.
    NestedWorkForgotten "nested-work-forgotten" Row "flush/tell.rs local_work" Revocation;
    /// An initiator that interrupted its own CPU's leaving of a space relies on it for its own change.
    UnloadingWorkForgotten "unloading-work-forgotten" Row "flush/tell.rs local_work" Reuse;
    /// The initiator does not wait for answers.
    NoWait "no-wait" Wait "flush/tell.rs pull_from" Revocation;
    /// The initiator does not wait for a tree.
    NoWaitTree "no-wait-tree" Wait "flush/tell.rs tell_and_wait" Revocation;
    /// The initiator waits only for the last CPU of each group.
    WaitsForLastOnly "waits-for-last-only" Wait "flush/answer.rs wait_for_group" Revocation;
    /// A flush that can't wait reports that it is done.
    WouldWaitIsOk "would-wait-is-ok" Ack "flush/tell.rs tell_and_wait" Errors;
    /// The acknowledged generation is read before the space it belongs to.
    AnswerReadFirst "answer-read-first" Ordering "flush/answer.rs is_done" Revocation;
    /// The acknowledged generation is read without Acquire.
    AnswerRelaxed "answer-relaxed" Ordering "flush/answer.rs is_done" Reuse;
    /// A lazy CPU counts as having answered although tables are freed.
    LazyAnswersFreed "lazy-answers-freed" Ack "flush/answer.rs is_done" Reuse;
    /// The state of another CPU is read without Acquire.
    ViewRelaxed "view-relaxed" Ordering "cpu.rs remote_view" Revocation;
    /// With the lazy flag on the private line: it is read without Acquire.
    LazyViewRelaxed "lazy-view-relaxed" Ordering "cpu.rs remote_view" Reuse;
    /// A ticket is done when the first CPU has answered.
    TicketTrustsFirst "ticket-trusts-first" Quarantine "flush/answer.rs poll" Revocation;
    /// With push delivery, a flush that does not wait leaves no request behind.
    DeferForgotten "defer-forgotten" Row "flush/tell.rs tell" Progress;
    /// The request of a flush that does not wait is posted without Release.
    DeferRelaxed "defer-relaxed" Ordering "call.rs defer" Progress
        unless "The fence of D1 in `flush::start` lies between the count and this store, and makes it a release of all that came before the fence. Who takes the request needs no more.";
    /// The request of a flush that does not wait is taken without Acquire.
    TakeDeferredRelaxed "take-deferred-relaxed" Ordering "call.rs take_deferred" Progress;
    /// A failed flush for freed tables is not remembered.
    OwedForgotten "owed-forgotten" Quarantine "flush.rs flush" Reuse;
    /// A failed beginning of a flush for freed tables is not remembered.
    BeginOwedForgotten "begin-owed-forgotten" Quarantine "flush.rs begin_flush" Reuse;
    /// A flush after a failed one covers only its own change.
    OwedIgnored "owed-ignored" Quarantine "flush.rs flush" Reuse;
    /// A begun flush after a failed one covers only its own change.
    BeginOwedIgnored "begin-owed-ignored" Quarantine "flush.rs begin_flush" Reuse;
    /// What is owed counts as paid although more came to be owed since.
    OwedPaidTwice "owed-paid-twice" Quarantine "space.rs paid_tables" Reuse;
    /// What is owed counts as paid although the flush failed.
    OwedPaidByFailure "owed-paid-by-failure" Quarantine "flush.rs flush" Reuse;
    /// A flush of everything that failed is not remembered.
    KernelDebtForgotten "kernel-debt-forgotten" Quarantine "system.rs settle_everything" Reuse;
    /// A flush of a kernel range after a failed one of everything reaches the range only.
    KernelDebtIgnored "kernel-debt-ignored" Quarantine "system.rs owes_everything" Reuse;
    /// A flush of everything pays for those that failed after it began.
    KernelDebtPaidTwice "kernel-debt-paid-twice" Quarantine "system.rs settle_everything" Reuse;
    /// What is owed is noted without ordering.
    OwedRelaxed "owed-relaxed" Ordering "space.rs owe_tables" Reuse
        unless "The word carries a number and nothing else is read on its account. A flush that sees it counts its own change after, on the same word as the failed one, so its generation is higher, and that chain of counts carries the failed flush's tables along.";
    /// What is owed is cleared without ordering.
    PaidRelaxed "paid-relaxed" Ordering "space.rs paid_tables" Reuse
        unless "As with `owed-relaxed`: the number is all there is, and the exchange fails when it has grown.";
    /// A posted flush reports success although its kick failed.
    PushErrorForgotten "push-error-forgotten" Ack "flush/tell.rs tell_and_wait" Errors;
    /// A flush by tree reports success although its kick failed.
    TreeErrorForgotten "tree-error-forgotten" Ack "flush/tell.rs tell_and_wait" Errors;
    /// A flush that gave up waiting reports success.
    StallForgotten "stall-forgotten" Ack "flush/answer.rs wait_for" Errors;
    /// A waiter sleeps although the state it looked at has changed since.
    SleepUnchecked "sleep-unchecked" Wait "flush/answer.rs wait_for" Progress;
    /// A waiter sleeps on a state that is the answer.
    SleepOnAnswer "sleep-on-answer" Wait "flush/answer.rs wait_for" Progress;
    /// A pushed request is executed without looking whose it is.
    PushIgnoresSpace "push-ignores-space" Row "flush/remote.rs push" Master;
    /// A CPU leaves a set when asked to, although it uses the space.
    LeaveUnchecked "leave-unchecked" Reference "space.rs leave_in_vain" Revocation;

    // ---- flush/everywhere.rs: kernel ranges, and everything

    /// Stores to kernel tables are not published to walkers.
    EverywhereWithoutPublish "everywhere-without-publish" Fence "flush/everywhere.rs everywhere" Revocation;
    /// The online set is read without the fence after the change (D4).
    EverywhereWithoutFence "everywhere-without-fence" Fence "flush/everywhere.rs everywhere" Revocation;
    /// A CPU asked for a kernel-wide flush acknowledges and does not invalidate.
    EverywhereInvalidatesNothing "everywhere-invalidates-nothing" Row "flush/everywhere.rs everywhere" Revocation;
    /// A kernel flush under split tables owes the loaded user half nothing.
    KernelOwesNothing "kernel-owes-nothing" Row "flush/everywhere.rs everywhere" Revocation;
    /// A kernel flush under split tables forgets the tags that are not loaded.
    OtherTagsForgotten "other-tags-forgotten" Row "flush/everywhere.rs everywhere" Master;

    // ---- accessed.rs: accessed bits

    /// Whoever clears accessed bits does not count it.
    AgeNotCounted "age-not-counted" Bump "accessed.rs accessed_cleared" Accessed;
    /// Cleared accessed bits are not published to walkers.
    AgeWithoutPublish "age-without-publish" Ordering "accessed.rs accessed_cleared" Accessed;
    /// The count of cleared accessed bits is stored without Release (A1).
    AgeRelaxed "age-relaxed" Ordering "accessed.rs accessed_cleared" Accessed;
    /// The count of cleared accessed bits is read without Acquire (A1).
    AgeSeenRelaxed "age-seen-relaxed" Ordering "accessed.rs number" Accessed;
    /// No fence between clearing accessed bits and reading who runs the space (A3).
    AgeWithoutFence "age-without-fence" Fence "accessed.rs accessed_cleared" Accessed;
    /// The entries under a tag for all CPUs are forgotten when accessed bits are cleared.
    AgeSharedForgotten "age-shared-forgotten" Row "accessed.rs accessed_cleared" Accessed;
    /// A switch does not compare the count of cleared accessed bits.
    AgeIgnored "age-ignored" Row "accessed.rs must_flush" Accessed;
    /// A switch compares the count of cleared accessed bits as it was before the switch was published, and remembers the newest.
    AgeReadFirst "age-read-first" Ordering "accessed.rs must_flush" Accessed;
    /// A slot that changes hands keeps the count of the space before.
    AgeOfSlotKept "age-of-slot-kept" Bump "accessed.rs must_flush" Accessed;
    /// The flags of CPUs that may have entries are not raised.
    DueNotRaised "due-not-raised" Ack "accessed.rs accessed_cleared" Accessed;
    /// The flag is taken without Acquire (A2).
    DueRelaxed "due-relaxed" Ordering "accessed.rs collect" Accessed;
    /// A raised flag is taken, and nothing is flushed.
    DueIgnored "due-ignored" Row "accessed.rs must_flush" Accessed;
    /// A CPU that joins a space's set trusts what it remembers, although nobody raised its flag.
    JoinerTrusts "joiner-trusts" Row "accessed.rs must_flush" Accessed;
    /// A tick does nothing about accessed bits.
    TickForgotten "tick-forgotten" Row "accessed.rs tick" Accessed;

    // ---- quiet.rs: CPUs in user mode that are not interrupted for kernel ranges

    /// A CPU is left alone although the change was not counted.
    QuietUncounted "quiet-uncounted" Bump "flush/everywhere.rs reach_all" Revocation;
    /// CPUs in user mode are left alone although tables are freed.
    QuietTablesDeferred "quiet-tables-deferred" Row "flush/everywhere.rs flush_kernel" Reuse;
    /// A change of a kernel range is counted without Release (Q2).
    QuietCountRelaxed "quiet-count-relaxed" Ordering "quiet.rs count_kernel_change" Revocation;
    /// The count of changes is read without Acquire (Q2).
    QuietCountSeenRelaxed "quiet-count-seen-relaxed" Ordering "quiet.rs from_user" Revocation;
    /// Who is in user mode is read without Acquire (Q3).
    QuietSeenRelaxed "quiet-seen-relaxed" Ordering "quiet.rs leave_quiet_alone" Reuse;
    /// A CPU says that it is in user mode without Release (Q3).
    QuietLeavesRelaxed "quiet-leaves-relaxed" Ordering "quiet.rs to_user" Reuse;
    /// A CPU that leaves for user mode takes it that it has seen every change.
    QuietCurrentOnLeaving "quiet-current-on-leaving" Bump "quiet.rs to_user" Revocation;
    /// A CPU that enters the kernel reads the count before it says that it is there (Q1).
    QuietReadsFirst "quiet-reads-first" Ordering "quiet.rs from_user" Revocation;
    /// A CPU that enters the kernel says so, but without the fence before it reads the count (Q1).
    QuietEntersWithoutFence "quiet-enters-without-fence" Fence "quiet.rs from_user" Revocation;
    /// A CPU that enters the kernel forgets nothing.
    QuietTrusts "quiet-trusts" Row "quiet.rs from_user" Revocation;

    // ---- call.rs: calls

    /// A handler that interrupts a call rewrites the descriptor in use.
    BusyIgnored "busy-ignored" Reference "call.rs post" Calls;
    /// A request is posted without Release (C1).
    PostRelaxed "post-relaxed" Ordering "call.rs post" Calls;
    /// Requests are taken without Acquire (C2).
    TakeRelaxed "take-relaxed" Ordering "call.rs take" Calls;
    /// The end of a call is seen without Acquire (C4).
    CallDoneRelaxed "call-done-relaxed" Ordering "call.rs wait" Calls;
    /// A request does not mark its word as worth a look.
    SummaryForgotten "summary-forgotten" Row "call.rs post" Progress;
    /// The mark of a word is set without Release.
    SummaryRelaxed "summary-relaxed" Ordering "call.rs post" Progress;
    /// The marks are taken without Acquire.
    SummaryTakeRelaxed "summary-take-relaxed" Ordering "call.rs drain" Progress;
    /// A call looks at the online set without the fence after posting (D4).
    PostWithoutFence "post-without-fence" Fence "call.rs post" Progress;
    /// A call waits for CPUs that went offline before they could see it.
    AbsentNotTakenBack "absent-not-taken-back" Wait "call.rs post" Progress;
    /// The call is acknowledged before its function ran.
    AckBeforeCall "ack-before-call" Ack "call.rs take" Calls;
    /// A call does not wait for CPUs that have not begun it.
    CallGivesUp "call-gives-up" Wait "call.rs wait" Calls;
    /// A call that is given up counts CPUs out that have begun it.
    RetractTrusts "retract-trusts" Ack "call.rs take_back" Calls;
    /// A request is taken back without ordering.
    RetractRelaxed "retract-relaxed" Ordering "call.rs retract" Calls
        unless "One bit decides, in one atomic step, who had it last. The CPU that lost has read nothing on its account, and a later post of the bit is a Release of its own.";
    /// A call reports success although its kick failed.
    CallErrorForgotten "call-error-forgotten" Ack "call.rs call_on" Errors;
    /// A call that was given up reports success.
    CallStallForgotten "call-stall-forgotten" Ack "call.rs wait" Errors;
    /// A call whose kick failed waits for those that were not kicked.
    CancelForgotten "cancel-forgotten" Wait "call.rs cancel" Progress;

    // ---- tree.rs: large calls

    /// A place for a large call is claimed without Acquire.
    TreeClaimRelaxed "tree-claim-relaxed" Ordering "tree.rs begin" Calls
        unless "Nothing is read on its account, and every store after it depends on its success: no hardware and neither of our memory models makes such a store visible first. Only a compiler could, and it has to honour the source.";
    /// A large call is written without the Release fence after the claim (T2).
    TreeWithoutReleaseFence "tree-without-release-fence" Fence "tree.rs begin" Calls;
    /// The ticket of a large call is stored without Release (T1).
    TreeTicketRelaxed "tree-ticket-relaxed" Ordering "tree.rs begin" Calls;
    /// A large call is announced without ordering.
    TreeAnnounceRelaxed "tree-announce-relaxed" Ordering "tree.rs begin" Calls
        unless "The bit says where to look; the ticket (T1) says what is there. A CPU that sees the bit early finds no ticket and goes on; the kick that follows shows it both.";
    /// A large call looks at the online set without the fence after it was written (D4).
    TreeWithoutFence "tree-without-fence" Fence "tree.rs begin" Progress;
    /// A large call waits for CPUs that went offline before they could see it.
    TreeAbsentNotCounted "tree-absent-not-counted" Wait "tree.rs begin" Progress;
    /// A CPU acknowledges a large call without taking the right to.
    TreeClaimIgnored "tree-claim-ignored" Reference "tree.rs claim_ack" Calls;
    /// The right to acknowledge is taken without ordering.
    TreeRightRelaxed "tree-right-relaxed" Ordering "tree.rs claim_ack" Calls
        unless "One maximum decides, in one atomic step, who acknowledges. Whoever loses does nothing; whoever wins publishes by counting (T3).";
    /// A tree's group is reported complete by its first CPU.
    TreeFirstReports "tree-first-reports" Ack "tree.rs count" Calls;
    /// A group's counter is not reset for the next call.
    TreeGroupNotReset "tree-group-not-reset" Row "tree.rs count" Calls;
    /// A word's counter is not reset for the next call.
    TreeWordNotReset "tree-word-not-reset" Row "tree.rs count" Calls;
    /// CPUs are counted without ordering (T3).
    TreeGroupRelaxed "tree-group-relaxed" Ordering "tree.rs count" Calls;
    /// Groups are counted without ordering (T3).
    TreeWordRelaxed "tree-word-relaxed" Ordering "tree.rs count" Calls;
    /// The end of a word is stored without Release (T4).
    TreeDoneRelaxed "tree-done-relaxed" Ordering "tree.rs count" Calls;
    /// The end of a word is seen without Acquire (T4).
    TreeDoneSeenRelaxed "tree-done-seen-relaxed" Ordering "tree.rs wait" Calls;
    /// The initiator waits for the last word only.
    TreeWaitsForLastWord "tree-waits-for-last-word" Wait "tree.rs wait" Calls;
    /// The mark of a finished large call is cleared without ordering.
    TreeRetireRelaxed "tree-retire-relaxed" Ordering "tree.rs wait" Calls
        unless "As with `tree-announce-relaxed`: a CPU that still sees the mark finds no ticket, or the next call's.";
    /// The place of a finished large call is freed without Release.
    TreeFreeRelaxed "tree-free-relaxed" Ordering "tree.rs wait" Calls
        unless "What must come before it are the loads that found every word done; the loops on them end before it, and a store that depends on a load becomes visible after it on all hardware and in both of our memory models.";
    /// The marks of large calls are read without Acquire.
    TreeMarksRelaxed "tree-marks-relaxed" Ordering "tree.rs drain" Calls
        unless "As with `tree-announce-relaxed`: all that is used of the call is read after its ticket.";
    /// The ticket of a large call is read without Acquire (T2).
    TreeTicketSeenRelaxed "tree-ticket-seen-relaxed" Ordering "tree.rs drain" Calls;
    /// A large call is read without the Acquire fence before the ticket is read again (T2).
    TreeWithoutAcquireFence "tree-without-acquire-fence" Fence "tree.rs drain" Calls;
    /// A large call's ticket is not read again after its targets (T2).
    TreeReadOnce "tree-read-once" Row "tree.rs drain" Calls;
    /// The first CPU of a word does not pass the kick on.
    TreeForwardsNothing "tree-forwards-nothing" Row "tree.rs drain" Progress;
    /// A kick is left to a first CPU that has gone offline.
    TreeForwardsByAbsent "tree-forwards-by-absent" Row "tree.rs kick" Progress;
    /// A large call that was given up reports success.
    TreeStallForgotten "tree-stall-forgotten" Ack "tree.rs wait" Errors;
    /// A large call whose kick failed waits for those that were not kicked.
    TreeNotTakenBack "tree-not-taken-back" Wait "tree.rs take_back" Progress;

    // ---- cpu.rs: hot-plug

    /// A CPU comes online without the fence between joining and emptying its TLB (D4).
    OnlineWithoutFence "online-without-fence" Fence "cpu.rs online" Revocation;
    /// A CPU coming online keeps what its TLB held.
    OnlineKeeps "online-keeps" Row "cpu.rs online" Master;
    /// A CPU coming online does not wait until its TLB is empty.
    OnlineWithoutSync "online-without-sync" Wait "cpu.rs online" Master;
    /// A CPU coming online remembers its tags.
    OnlineRemembers "online-remembers" Row "cpu.rs online" Master
        unless "Its TLB is emptied all the same, so the tags remember nothing; a generation says only that entries are not older. A second line of defence beside `online-keeps`.";
    /// A CPU comes online and is not listed.
    OnlineUnlisted "online-unlisted" Reference "cpu.rs online" Revocation;
    /// A CPU empties its TLB before it is listed as online (D4).
    OnlineListedLate "online-listed-late" Ordering "cpu.rs online" Revocation;
    /// A CPU goes offline without the fence between leaving the set and the last look (D4).
    OfflineWithoutFence "offline-without-fence" Fence "cpu.rs offline" Progress;
    /// A CPU goes offline without a last look at what was asked of it.
    OfflineDoesNotServe "offline-does-not-serve" Wait "cpu.rs offline" Progress;
    /// A CPU goes offline with its space loaded.
    OfflineDoesNotLeave "offline-does-not-leave" Row "cpu.rs offline" Reuse;
    /// A CPU goes offline and stays listed.
    OfflineStaysListed "offline-stays-listed" Reference "cpu.rs offline" Progress;

    // ---- serve.rs: handlers and wait loops

    /// A kick in the middle of a switch is answered there.
    ServesWhileSwitching "serves-while-switching" Row "serve.rs serve" Master;
    /// A kick that finds its CPU leaving a space, interrupts on, is to be repeated by the port.
    UnloadingAsksAgain "unloading-asks-again" Row "serve.rs serve" Progress;
    /// A handler that finds its CPU serving leaves nothing behind for it.
    NestedForgotten "nested-forgotten" Ack "serve.rs exclusively" Progress;
    /// A handler that finds its CPU serving serves as well.
    NestedServes "nested-serves" Row "serve.rs exclusively" Revocation;
    /// A handler that serves others may wait for others.
    WaitsWhileServing "waits-while-serving" Wait "serve.rs may_wait" Progress;
    /// A CPU that waits with interrupts off never looks at its own space.
    TurnNeverPolls "turn-never-polls" Wait "serve.rs serve_turn" Progress;
    /// A non-maskable handler may use user memory while an acknowledged invalidation is under way.
    UserAccessWhileServing "user-access-while-serving" Row "serve.rs user_access_ok" Revocation;
    /// A non-maskable handler may use user memory of a space that is not loaded.
    UserAccessElsewhere "user-access-elsewhere" Row "serve.rs user_access_ok" Revocation;
    /// A non-maskable handler may use user memory while its CPU is lazy.
    UserAccessLazy "user-access-lazy" Row "serve.rs user_access_ok" Revocation;

    // ---- space.rs, system.rs: the end of a space, and its name

    /// A space is retired while a CPU is on its way from it.
    RetireIgnoresSwitching "retire-ignores-switching" Wait "space.rs retire" Reuse;
    /// A space is retired while CPUs have it loaded lazily.
    RetireIgnoresLazy "retire-ignores-lazy" Quarantine "space.rs retire" Reuse;
    /// A space is retired while the retiring CPU has it loaded lazily.
    RetireIgnoresItself "retire-ignores-itself" Quarantine "space.rs retire" Reuse;
    /// A CPU that retires the space it has loaded leaves it without keeping handlers waiting.
    RetireLeavesOpenly "retire-leaves-openly" Row "space.rs retire" Progress;
    /// A space is retired while a CPU runs in it.
    RetireIgnoresActive "retire-ignores-active" Quarantine "space.rs retire" Errors;
    /// A space is retired while a device has its tag.
    RetireIgnoresPins "retire-ignores-pins" Quarantine "space.rs retire" Reuse;
    /// A space gets the name of one that was dropped.
    IdReused "id-reused" Bump "system.rs next_id" Reuse;

    // ---- cpu_set.rs: shared sets

    /// A CPU joins a set without ordering.
    InsertRelaxed "insert-relaxed" Ordering "cpu_set.rs insert" Revocation
        unless "Whoever joins a set fences after (D1, D4), and whoever reads it fences before: that pair decides who sees whom. A member that is seen says nothing about other memory.";
    /// A word of a set is marked as used without ordering.
    InsertMarkRelaxed "insert-mark-relaxed" Ordering "cpu_set.rs insert" Revocation
        unless "As with `insert-relaxed`: the mark too comes before the fence that follows every joining.";
    /// A word of a set is not marked as used.
    InsertMarkForgotten "insert-mark-forgotten" Row "cpu_set.rs insert" Revocation;
    /// A CPU leaves a set without Release (C3, and the last touch of a space).
    RemoveRelaxed "remove-relaxed" Ordering "cpu_set.rs remove" Calls;
    /// A set is read without Acquire: a CPU that is missing may not have left yet.
    SnapshotRelaxed "snapshot-relaxed" Ordering "cpu_set.rs snapshot" Reuse;
    /// The marks of a set's words are read without Acquire.
    SnapshotMarksRelaxed "snapshot-marks-relaxed" Ordering "cpu_set.rs snapshot" Revocation
        unless "Marks are never cleared, so a missing one says only that no CPU of the word had joined yet, which the fences of D1 and D4 make true of every CPU that matters.";
    /// A set is compared without Acquire: a CPU that is missing may not have left yet.
    CommonRelaxed "common-relaxed" Ordering "cpu_set.rs common" Reuse;
    /// Membership is asked for without Acquire.
    ContainsRelaxed "contains-relaxed" Ordering "cpu_set.rs contains" Revocation
        unless "Nothing in the library asks: `contains` of a shared set is for ports.";

    // ---- range_log.rs: the log of steps

    /// A step is not written into the log.
    RecordForgotten "record-forgotten" Row "flush.rs start" Revocation
        unless "A missing step makes a reader flush everything, which is always legal (the log's protocol).";
    /// The log does not say that tables were freed.
    RecordForgetsFreed "record-forgets-freed" Row "range_log.rs pack" Reuse;
    /// A step is written without the Release fence after the claim (R1).
    RecordWithoutFence "record-without-fence" Fence "range_log.rs record" Revocation;
    /// A step is stamped without Release (R2).
    StampRelaxed "stamp-relaxed" Ordering "range_log.rs record" Revocation;
    /// The stamp of a step is read without Acquire (R2).
    StampSeenRelaxed "stamp-seen-relaxed" Ordering "range_log.rs read_one" Revocation;
    /// A step is read without the Acquire fence before the stamp is read again (R3).
    ReadWithoutFence "read-without-fence" Fence "range_log.rs read_one" Revocation;
    /// The stamp is not read again after the step (R3).
    StepReadOnce "step-read-once" Row "range_log.rs read_one" Revocation;
    /// A step is written into an entry that another is being written into.
    RecordIgnoresWriter "record-ignores-writer" Reference "range_log.rs record" Revocation;
    /// An entry is claimed without looking whether someone else was faster.
    RecordClaimIgnored "record-claim-ignored" Reference "range_log.rs record" Revocation;
    /// A late step takes the place of a newer one.
    RecordOverwritesNewer "record-overwrites-newer" Row "range_log.rs record" Revocation
        unless "The entry then bears the older stamp and the older step: it is what it says. A reader that wants the newer step misses it and flushes everything.";

    // ---- gather.rs: unhook, invalidate, free

    /// A gather hands back its frames without having flushed.
    GatherWithoutFlush "gather-without-flush" Quarantine "gather.rs request" Revocation;
    /// A gather forgets that tables were freed.
    GatherForgetsTables "gather-forgets-tables" Quarantine "gather.rs table_freed" Reuse;
    /// A gather covers only the last range put in.
    GatherCoversLast "gather-covers-last" Quarantine "gather.rs changed" Revocation;
    /// A gather whose flush failed hands back its frames as if it had not.
    GatherErrorForgotten "gather-error-forgotten" Quarantine "gather.rs finish" Errors;
    /// A deferred gather hands back its frames without asking its ticket.
    DeferredIgnoresTicket "deferred-ignores-ticket" Quarantine "gather.rs poll" Revocation;

    // ---- paravirt.rs, flush/paravirt.rs: what the hypervisor does

    /// A hypervisor says that a CPU is preempted, without Release (V1).
    StoppedRelaxed "stopped-relaxed" Ordering "paravirt.rs stopped" Reuse;
    /// A hypervisor takes the word of a CPU that will run without Acquire (V3).
    ResumesRelaxed "resumes-relaxed" Ordering "paravirt.rs resumes" Revocation;
    /// A hypervisor looks whether a CPU must forget, and then says that it runs, in two steps (V3).
    ResumesInTwoSteps "resumes-in-two-steps" Ordering "paravirt.rs resumes" Revocation;
    /// The mark is a store, whatever the word says by now (V2).
    MarkStoredBlindly "mark-stored-blindly" Ordering "paravirt.rs mark" Revocation;
    /// A mark that came too late counts as one.
    MarkFailureTrusted "mark-failure-trusted" Ack "paravirt.rs mark" Revocation;
    /// A CPU is marked without Acquire and Release (V2).
    MarkRelaxed "mark-relaxed" Ordering "paravirt.rs mark" Reuse;
    /// A CPU that is found preempted while it is waited for counts as having answered, unmarked.
    PreemptedAnswers "preempted-answers" Ack "flush/paravirt.rs mark_late" Revocation;
    /// The calling CPU leaves its own part of a flush of everyone to the hypervisor.
    InitiatorDropped "initiator-dropped" Row "flush/everywhere.rs reach_all" Revocation;
    /// A hypercall that failed counts as one that succeeded.
    HypercallFailureTrusted "hypercall-failure-trusted" Ack "flush/paravirt.rs hypercall" Errors;
    /// The hypervisor is told of the first word of the set of CPUs.
    HandedFirstWordOnly "handed-first-word-only" Filter "flush/paravirt.rs hypercall" Revocation;
    /// The hypervisor is not told that tables were freed.
    HandedWithoutTables "handed-without-tables" Row "flush/paravirt.rs hypercall" Reuse;
    /// The list of pages lacks the last one.
    RunsCutShort "runs-cut-short" Row "paravirt.rs of" Revocation;
    // ---- owed.rs, flush/owed.rs, gather.rs: what a space owes, and gathers at the same time

    /// Open gathers are not counted, so none is seen beside another.
    GatherNotCounted "gather-not-counted" Reference "owed.rs open, close" Revocation;
    /// A gather that ends while others are open flushes what it has itself.
    NestedGatherIgnored "nested-gather-ignored" Row "flush/owed.rs nests" Revocation;
    /// A gather is no longer counted when its flush begins.
    GatherClosesFirst "gather-closes-first" Reference "gather.rs finish" Revocation;
    /// A gather closes without Release (W2): what its flush has seen to may come after.
    GatherClosesRelaxed "gather-closes-relaxed" Ordering "owed.rs close" Reuse;
    /// That no other gather is open is seen without Acquire (W3).
    GathersSeenRelaxed "gathers-seen-relaxed" Ordering "owed.rs others_are_open" Reuse;
    /// Who pays what is owed does not look whether anything is.
    DebtIgnored "debt-ignored" Row "flush/owed.rs pay_besides" Revocation;
    /// A change that is put off is counted, and not owed.
    PutOffForgotten "put-off-forgotten" Reference "flush/owed.rs put_off" Revocation;
    /// A flush that has failed leaves nothing owed.
    FailedFlushForgotten "failed-flush-forgotten" Reference "flush/owed.rs owe" Revocation;
    /// Where hardware removes entries by name, a flush of a range pays for all changes before.
    RangePaysForAll "range-pays-for-all" Row "flush/owed.rs pays_all" Revocation;
    /// What is owed is paid without asking any CPU.
    PaymentAsksNobody "payment-asks-nobody" Wait "flush/owed.rs pay_together" Revocation;
    /// A payment is noted without Release (W5).
    PaymentRelaxed "payment-relaxed" Ordering "owed.rs pay" Reuse;
    /// That all is paid is seen without Acquire (W6).
    PaymentSeenRelaxed "payment-seen-relaxed" Ordering "owed.rs outstanding" Reuse;

    // ---- epoch.rs: tables that software may still walk

    /// Tables are handed back when the flush is done, whoever may still walk them.
    EpochIgnored "epoch-ignored" Quarantine "epoch.rs poll" Reuse;

    // ---- reclaim.rs: batches across many spaces

    /// A batch hands back its frames without having paid.
    BatchPaysNothing "batch-pays-nothing" Quarantine "reclaim.rs pay" Reuse;
    /// Of many spaces a batch pays for the first.
    BatchPaysFirstOnly "batch-pays-first-only" Row "reclaim.rs pay" Reuse;
    /// A batch forgets the earlier ranges of a space.
    BatchCoversLast "batch-covers-last" Row "flush.rs join" Reuse;
    /// A posted payment is made for the batch's first space, whatever its target has loaded.
    BatchPushedToFirst "batch-pushed-to-first" Row "flush/remote.rs push" Reuse;
    /// A payment as a large call is answered without catching up.
    BatchTreeCatchesNothing "batch-tree-catches-nothing" Row "flush/remote.rs catch_up_any" Reuse;
    /// A batch writes dirty pages back while CPUs may still store to them.
    DirtyUnmappingForgotten "dirty-unmapping-forgotten" Wait "reclaim.rs before_write_back" Revocation;
    /// A batch hands back its frames although the payment has failed.
    BatchErrorForgotten "batch-error-forgotten" Quarantine "reclaim.rs finish" Errors;

    // ---- later.rs: unmappings that nobody is told of until they matter

    /// Frames and addresses are given out without asking who may use them still.
    LaterPaysNothing "later-pays-nothing" Quarantine "later.rs pay" Reuse;
    /// Addresses are mapped again without a payment.
    LaterStaysInTheWay "later-stays-in-the-way" Quarantine "later.rs make_way" Reuse;
    /// Of the ranges that are owed only the last is remembered.
    LaterForgetsRanges "later-forgets-ranges" Quarantine "later.rs note" Reuse;
    /// A quiet CPU that was not interrupted counts as having answered.
    LaterQuietAnswer "later-quiet-answer" Wait "later.rs pay" Reuse;
    /// A payment that has failed counts as made.
    LaterErrorForgotten "later-error-forgotten" Quarantine "later.rs pay" Errors;
    /// What may have been written is put off.
    LaterTakesWritten "later-takes-written" Row "later.rs why_not" Revocation;
    /// Tables are put off.
    LaterTakesTables "later-takes-tables" Row "later.rs why_not" Reuse;
    /// Pages of the kernel are put off.
    LaterTakesKernel "later-takes-kernel" Row "later.rs why_not" Revocation;
    /// Pages that devices have cached are put off.
    LaterTakesDevices "later-takes-devices" Row "later.rs why_not" Revocation;
    /// Unmappings are put off where no CPU forgets by itself.
    LaterTakesBroadcast "later-takes-broadcast" Row "later.rs why_not" Deferred;
    /// More is put off than the policy allows.
    LaterTakesAll "later-takes-all" Row "later.rs why_not" Deferred;
    /// An entry is taken at its word although its last change is not flushed yet.
    LaterIgnoresPending "later-ignores-pending" Row "later.rs why_not" Revocation;
    /// The CPU that unmaps goes on using what it has cached.
    LaterStaysHere "later-stays-here" Row "later.rs unmapped" Deferred;
    /// Nothing is ever too old.
    LaterIsNeverOld "later-is-never-old" Row "later.rs poll" Deferred;
    /// A tick does not look for what was unmapped.
    LaterTickForgotten "later-tick-forgotten" Row "accessed.rs tick" Deferred;
    /// A switch to the loaded space does not look for what was unmapped.
    LaterSwitchForgotten "later-switch-forgotten" Row "switch.rs switch_to" Deferred;
    /// A quiet CPU comes to the kernel and does not look for what was unmapped.
    LaterEntryForgotten "later-entry-forgotten" Row "quiet.rs from_user" Deferred;
    /// A tick that has interrupted its CPU's catching up leaves it at that.
    LaterNestedForgotten "later-nested-forgotten" Row "later.rs come_by" Deferred;

    // ---- flush/shared.rs, switch/shared.rs: tags for all CPUs beside slots

    /// A space that has moved is not broadcast for.
    MovedNotBroadcast "moved-not-broadcast" Row "flush/shared.rs broadcast_if_moved" Revocation;
    /// A space that has moved is broadcast for before its table stores are published.
    SharedBroadcastEarly "shared-broadcast-early" Ordering "flush.rs start" Revocation;
    /// A broadcast for a tag of all CPUs is not waited for.
    SharedBroadcastWithoutSync "shared-broadcast-without-sync" Wait "flush/shared.rs broadcast_for" Revocation;
    /// A flush by ticket does not look whether the space got a tag meanwhile (S3).
    TicketNotLookedAtAgain "ticket-not-looked-at-again" Row "flush/answer.rs answered" Revocation;
    /// A failed flush of a space that CPUs may run under a tag for all is not remembered.
    SharedFlushNotOwed "shared-flush-not-owed" Quarantine "flush.rs flush" Revocation;
    /// The same of a flush that was begun.
    SharedBeginNotOwed "shared-begin-not-owed" Quarantine "flush.rs begin_flush" Revocation;
    /// When a space has a tag for all CPUs, those that run it under slots are not told.
    FilterForgetsSlots "filter-forgets-slots" Filter "flush.rs filter" Revocation;
    /// What makes released tags free is invalidated on this CPU only.
    SharedResetLocal "shared-reset-local" Filter "flush/shared.rs consider" Reuse;
    /// What makes released tags free is not waited for.
    SharedResetWithoutSync "shared-reset-without-sync" Wait "flush/shared.rs consider" Reuse;
    /// Handlers assign tags: they may wait for the lock of what they interrupt.
    HandlersAssign "handlers-assign" Wait "flush/shared.rs consider" Progress;
    /// A CPU takes a slot for a space that has a tag for all CPUs.
    SharedTagNotLoaded "shared-tag-not-loaded" Row "switch.rs switch_to" Revocation;
    /// The switcher looks for the tag before it publishes that it is switching (S2).
    SharedTagReadFirst "shared-tag-read-first" Ordering "switch.rs switch_to" Revocation;
    /// A CPU that takes a slot counts as running under the last space's tag while it replays what it has missed.
    SharedStayRemembered "shared-stay-remembered" Reference "switch.rs switch_to" Master;
    /// That a CPU runs a space under the tag for all CPUs is published without Release (S3).
    SharedLoadedRelaxed "shared-loaded-relaxed" Ordering "switch/shared.rs switch_to" Revocation;
    /// A CPU that takes the tag for all CPUs does not say so.
    SharedStayUnsaid "shared-stay-unsaid" Ack "switch/shared.rs switch_to" Reuse;
    /// A CPU that is told to take the tag for all CPUs goes on under its slot.
    MoveOverLoadsNothing "move-over-loads-nothing" Row "switch/shared.rs move_over" Revocation;
    /// A CPU says that it runs under the tag for all CPUs before it has loaded it.
    MoveOverSaysFirst "move-over-says-first" Ordering "switch/shared.rs move_over" Reuse;
    /// A CPU says so without Release (S4).
    MoveOverRelaxed "move-over-relaxed" Ordering "switch/shared.rs move_over" Reuse;
    /// A CPU takes the tag for all CPUs when it is told, and does not say so.
    MoveOverUnsaid "move-over-unsaid" Ack "switch/shared.rs move_over" Progress;
    /// Row 1a: a CPU that runs under the tag for all CPUs catches up by the slot it used last.
    SharedAnswersBySlot "shared-answers-by-slot" Row "respond.rs catch_up" Master;
    /// Row 1b: a CPU that is told stays under its slot although the space has a tag for all CPUs.
    MovingStaysUnderSlot "moving-stays-under-slot" Row "respond.rs catch_up" Revocation
        unless "It catches up under the slot, which is what it is told for. The space does not count as moved while it does, so it is told the next time too.";
    /// The tag of the loaded space is taken to be its slot's.
    LoadedTagOfSlot "loaded-tag-of-slot" Reference "tags/current.rs loaded_tag" Reuse;
    /// A tag is released while CPUs may still have its space loaded.
    SharedTagReleasedEarly "shared-tag-released-early" Quarantine "space.rs retire" Reuse;

    // ---- switch/versioned.rs, switch/broadcast.rs, flush/broadcast.rs, sandwich.rs: machine-wide tags

    /// A CPU does not flush everything although the allocator says so.
    GenerationNotFlushed "generation-not-flushed" Quarantine "switch/versioned.rs activate" Reuse;
    /// A fresh tag does not reset who may hold entries.
    PresenceNotRenewed "presence-not-renewed" Row "switch/broadcast.rs switch_to" Revocation;
    /// What must be broadcast is invalidated on this CPU.
    BroadcastStaysLocal "broadcast-stays-local" Filter "flush/broadcast.rs issue" Revocation;
    /// A broadcast is not waited for.
    BroadcastWithoutSync "broadcast-without-sync" Wait "flush/broadcast.rs complete" Revocation;
    /// A broadcast for freed tables spares walk caches.
    BroadcastLeafOnly "broadcast-leaf-only" Row "flush/broadcast.rs invalidate" Reuse;
    /// The user half of a pair of tags is not invalidated.
    BroadcastUserHalfForgotten "broadcast-user-half-forgotten" Row "flush/broadcast.rs invalidate" Revocation;
    /// Hardware that completes early is believed.
    EarlyCompletionTrusted "early-completion-trusted" Filter "flush/broadcast.rs completed" Revocation;
    /// A CPU leaves the set of a space without having flushed the tag.
    TrimWithoutFlush "trim-without-flush" Quarantine "flush/broadcast.rs trim_here" Revocation;
    /// A kernel range is invalidated on this CPU.
    KernelBroadcastStaysLocal "kernel-broadcast-stays-local" Filter "flush/everywhere.rs reach_all" Revocation;
    /// A broadcast of a kernel range is not waited for.
    KernelBroadcastWithoutSync "kernel-broadcast-without-sync" Wait "flush/everywhere.rs reach_all" Revocation;
    /// Hardware that completes early is believed about kernel ranges.
    KernelCompletionTrusted "kernel-completion-trusted" Filter "flush/everywhere.rs reach_all" Revocation;
    /// What may survive one invalidation is invalidated once.
    SurvivorForgotten "survivor-forgotten" Row "sandwich.rs invalidate" Revocation;
    /// A sync that may leave accesses in flight is not repeated.
    SyncNotRepeated "sync-not-repeated" Wait "sandwich.rs sync_everywhere" Revocation;

    // ---- presence.rs: how far an invalidation must reach

    /// A CPU takes a space over without the fence before it loads the tables (P1).
    OwnWithoutFence "own-without-fence" Fence "presence.rs own" Revocation;
    /// A second CPU does not make the space shared.
    OwnerNeverShared "owner-never-shared" Row "presence.rs own" Revocation;
    /// A space is called shared before the fence that lets others do without one (P1).
    SharedBeforeFence "shared-before-fence" Ordering "presence.rs own" Revocation;
    /// A space is called shared without Release (P1).
    SharedRelaxed "shared-relaxed" Ordering "presence.rs own" Revocation;
    /// That a space is shared is read without Acquire (P1).
    OwnerSeenRelaxed "owner-seen-relaxed" Ordering "presence.rs own" Revocation;
    /// A CPU loads the tables without the fence after it has read the tag (P1).
    EnterWithoutFence "enter-without-fence" Fence "presence.rs enter" Revocation;
    /// A CPU joins the set without the fence before it loads the tables (P1).
    JoinWithoutFence "join-without-fence" Fence "presence.rs enter" Revocation;
    /// Where a space is, and its tag, are read without the fence after the table stores (P1).
    PresenceWithoutFence "presence-without-fence" Fence "presence.rs extent" Revocation;
    /// A CPU is not counted as active.
    ActiveNotCounted "active-not-counted" Row "presence.rs enter" Revocation;
    /// A CPU counts itself and looks at the stale set without a fence between (P2).
    ActiveWithoutFence "active-without-fence" Fence "presence.rs enter" Revocation;
    /// A CPU does not flush its stale tag.
    StaleTagTrusted "stale-tag-trusted" Quarantine "presence.rs enter" Revocation;
    /// CPUs that are not active are not noted as stale.
    StaleNotNoted "stale-not-noted" Quarantine "presence.rs extent_active" Revocation;
    /// The stale set is written and the count read without a fence between (P2).
    StaleWithoutFence "stale-without-fence" Fence "presence.rs extent_active" Revocation;
    /// The count that was read before the stale set was written is trusted.
    ActiveOnceIsEnough "active-once-is-enough" Row "presence.rs extent_active" Revocation;
    /// Freed tables are not broadcast when nobody else is active.
    ActiveIgnoresFreed "active-ignores-freed" Row "presence.rs extent_active" Reuse;
    /// The count goes down without Release (P3).
    LeftRelaxed "left-relaxed" Ordering "presence.rs left" Reuse;
    /// An invalidation stays on one CPU although a device has the tag.
    PinUnseen "pin-unseen" Filter "presence.rs extent" Revocation;
    /// A device is told the tag without the fence after the pin is counted (P6).
    PinWithoutFence "pin-without-fence" Fence "presence.rs pin" Revocation;

    // ---- pinned.rs: tags of devices

    /// A tag is given back with entries left that were cached for the device.
    UnpinWithoutFlush "unpin-without-flush" Quarantine "pinned.rs unpin_tag" Reuse;

    // ---- tags/generations.rs: versioned tags

    /// The fast path publishes its id without looking whether a rollover took the old one away (V1, V2).
    FastPathIgnoresRollover "fast-path-ignores-rollover" Reference "tags/generations/holders.rs replace_active" Reuse;
    /// The fast path is taken on a CPU that has not flushed for the generation.
    FastPathIgnoresFlush "fast-path-ignores-flush" Quarantine "tags/generations.rs activate" Reuse;
    /// The new id is published without Release (V2, V7).
    ReplaceActiveRelaxed "replace-active-relaxed" Ordering "tags/generations/holders.rs replace_active" Reuse;
    /// A rollover takes the active id without Acquire (V1, V7).
    TakeActiveRelaxed "take-active-relaxed" Ordering "tags/generations.rs roll_over" Reuse;
    /// A CPU does not say that it has yet to load the tables of the id it has published (V7).
    LoadingNotSaid "loading-not-said" Quarantine "tags/generations/holders.rs replace_active" Reuse;
    /// The tables are said to be loaded without Release (V8).
    TagLoadedRelaxed "tag-loaded-relaxed" Ordering "tags/generations/holders.rs loaded" Reuse;
    /// That the tables are loaded is read without Acquire (V8).
    LoadedSeenRelaxed "loaded-seen-relaxed" Ordering "tags/generations.rs roll_over" Reuse;
    /// A CPU that gives up its tag does not notice a rollover.
    DeactivateOverlooksRollover "deactivate-overlooks-rollover" Reference "tags/generations/holders.rs deactivate" Reuse;
    /// A fresh id is stored without Release (V6).
    FreshIdRelaxed "fresh-id-relaxed" Ordering "tags/generations.rs renew" Revocation;
    /// An id is read without Acquire (V6).
    FreshIdSeenRelaxed "fresh-id-seen-relaxed" Ordering "tags/generations/holders.rs id" Revocation;
    /// A CPU does not flush when it comes to a new generation.
    RolloverNotFlushed "rollover-not-flushed" Quarantine "tags/generations.rs activate_locked" Reuse;
    /// A rollover does not begin a new generation.
    RolloverNotCounted "rollover-not-counted" Bump "tags/generations.rs roll_over" Reuse;
    /// A rollover does not reserve the tags that CPUs run under.
    ActiveNotReserved "active-not-reserved" Quarantine "tags/generations.rs roll_over" Reuse;
    /// A second rollover forgets the tag of a CPU that has not switched since the first.
    ReservedForgotten "reserved-forgotten" Quarantine "tags/generations.rs roll_over" Reuse;
    /// Reserved tags count as free.
    ReservedNotTaken "reserved-not-taken" Quarantine "tags/generations.rs roll_over" Reuse;
    /// A space keeps its old number although another space runs under it.
    KeepIgnoresOwner "keep-ignores-owner" Reference "tags/generations.rs keep" Reuse;
    /// A renewed id is not written into the reserved table.
    ReservedNotRenewed "reserved-not-renewed" Reference "tags/generations.rs keep" Reuse;
    /// A space keeps its old number although another space has it now.
    KeepIgnoresTaken "keep-ignores-taken" Reference "tags/generations.rs keep" Reuse;
    /// A number that is kept counts as free.
    KeptNotTaken "kept-not-taken" Quarantine "tags/generations.rs keep" Reuse;
    /// A number that is given out counts as free.
    FreeNotTaken "free-not-taken" Quarantine "tags/generations.rs take_free" Reuse;
    /// A pinned number is not noted as pinned.
    PinNotNoted "pin-not-noted" Quarantine "tags/generations.rs pin" Reuse;
    /// A rollover gives pinned tags to others.
    PinnedForgotten "pinned-forgotten" Quarantine "tags/generations.rs roll_over" Reuse;
    /// So many tags may be pinned that too few are left for the CPUs.
    PinsUnbounded "pins-unbounded" Row "tags/generations.rs pin" Errors;
    /// The lock is not waited for.
    TagLockIgnored "tag-lock-ignored" Wait "tags/generations.rs locked" Reuse;
    /// The lock is taken without Acquire (V3).
    TagLockRelaxed "tag-lock-relaxed" Ordering "tags/generations.rs locked" Reuse;
    /// The lock is given back without Release (V4).
    TagUnlockRelaxed "tag-unlock-relaxed" Ordering "tags/generations.rs locked" Reuse;

    // ---- tags/broadcast.rs: machine-wide tags beside slots

    /// "None found" is taken for a number: the one beyond the last.
    NotFoundClaimed "not-found-claimed" Reference "tags/broadcast.rs assign_locked" Reuse;
    /// A released number is free at once, with its entries.
    ReleasedIsFree "released-is-free" Quarantine "tags/broadcast.rs release" Reuse;
    /// Released numbers are freed and nothing is invalidated.
    ResetForgotten "reset-forgotten" Quarantine "tags/broadcast.rs assign_locked" Reuse;
    /// A number that is given out counts as free.
    AssignedNotTaken "assigned-not-taken" Reference "tags/broadcast.rs assign_locked" Reuse;
    /// A reset frees numbers that have owners.
    ResetFreesOwned "reset-frees-owned" Quarantine "tags/broadcast.rs free_released" Reuse;
    /// A number stays marked as released when it gets a new owner.
    ReleasedKept "released-kept" Quarantine "tags/broadcast.rs free_released" Reuse;
    /// The released numbers are noted after the invalidation.
    ReleasedNotedLate "released-noted-late" Quarantine "tags/broadcast.rs free_released" Reuse;
    /// A number is released without Release (B3).
    TagReleaseRelaxed "tag-release-relaxed" Ordering "tags/broadcast.rs release" Reuse;
    /// Released numbers are noted without Acquire (B4).
    TagReleaseSeenRelaxed "tag-release-seen-relaxed" Ordering "tags/broadcast.rs note_released" Reuse;
    /// The lock is not waited for.
    BroadcastTagsLockIgnored "broadcast-tags-lock-ignored" Wait "tags/broadcast.rs locked" Reuse;
    /// The lock is taken without Acquire (B1).
    BroadcastTagsLockRelaxed "broadcast-tags-lock-relaxed" Ordering "tags/broadcast.rs locked" Reuse;
    /// The lock is given back without Release (B2).
    BroadcastTagsUnlockRelaxed "broadcast-tags-unlock-relaxed" Ordering "tags/broadcast.rs locked" Reuse;

    // ---- elide.rs, spurious.rs: changes without a flush, and the faults they leave behind

    /// A change that needs a flush is elided like one that does not: a downgrade, another frame, a dirty bit.
    UpdateElided "update-elided" Row "gather.rs updated" Revocation;
    /// A change of a table counts as one of a leaf.
    UpdateForgetsTables "update-forgets-tables" Row "gather.rs updated" Revocation;
    /// That the old entry must be flushed before the new one is written is not said.
    BreakForgotten "break-forgotten" Row "gather.rs updated" Errors;
    /// After a spurious fault the page is not invalidated.
    SpuriousStays "spurious-stays" Row "spurious.rs spurious_fault" Progress;
    /// After a spurious fault this CPU's own table stores are not published.
    SpuriousUnpublished "spurious-unpublished" Row "spurious.rs spurious_fault" Progress;
    /// A spurious fault is retried for ever.
    SpuriousForever "spurious-forever" Row "spurious.rs spurious_fault" Progress;
    /// Spurious faults of different pages, entries and generations are counted together.
    SpuriousCountsAll "spurious-counts-all" Row "spurious.rs note" Progress;

    // ---- tags/shared.rs: from slots to a machine-wide tag

    /// A flush broadcasts only, although CPUs may run the space under slots.
    MovingCountsAsMoved "moving-counts-as-moved" Row "tags/shared.rs moved" Revocation;
    /// A flush that has asked CPUs does not look whether the space got a tag meanwhile (S3).
    SharedTagNotLookedAtAgain "shared-tag-not-looked-at-again" Row "tags/shared.rs after_asking" Revocation;
    /// A space that has a tag is given another.
    SharedTagOverwritten "shared-tag-overwritten" Reference "tags/shared.rs assign" Revocation;
    /// What CPUs have loaded is read without the fence after the tag (S1).
    SettleWithoutSharedFence "settle-without-shared-fence" Fence "tags/shared.rs settle" Revocation;
    /// The set of CPUs that may run the space is read before the fence (S1).
    SettleReadsSetFirst "settle-reads-set-first" Ordering "tags/shared.rs settle" Revocation;
    /// A CPU that is switching counts as one that has left.
    SettleIgnoresSwitching "settle-ignores-switching" Filter "tags/shared.rs settle" Revocation;
    /// A CPU that runs the space under a slot counts as moved.
    SettleIgnoresSlots "settle-ignores-slots" Filter "tags/shared.rs settle" Revocation;
    /// A tag is published without Release (S1).
    SharedTagAssignRelaxed "shared-tag-assign-relaxed" Ordering "tags/shared.rs assign" Revocation
        unless "Only the word itself is read on its account, and who sees it when is decided by the fences (S1, S2) and by coherence. What must come before it is the invalidation that made the tag clean, and `Regime::sync` has waited for that.";
    /// That a space has moved is published without Release (S4).
    MovedRelaxed "moved-relaxed" Ordering "tags/shared.rs settle" Reuse;
    /// The tag of a space is read without Acquire (S5).
    SharedTagRelaxed "shared-tag-relaxed" Ordering "tags/shared.rs phase" Reuse;
}
