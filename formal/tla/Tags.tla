------------------------------- MODULE Tags -------------------------------
(* Versioned tags: one number means one space on every CPU, and numbers run out (tags/generations.rs).   *)
(*                                                                                                        *)
(* An id is a generation and a number. CPUs switch to spaces: in the common case they replace the id that *)
(* they publish as active, by one compare-and-swap; else they renew the space's id under a lock, and may  *)
(* begin a new generation, which takes every active id away and reserves it. A CPU flushes when it        *)
(* activates an id of a generation that it has not flushed for. Someone pins a space; and someone changes *)
(* the tables of a space and invalidates by its number.                                                   *)
(*                                                                                                        *)
(* A step of this specification is one access of a word that others use without the lock; what happens    *)
(* between two such accesses under the lock is one step. Of the free numbers any may be taken. Hardware   *)
(* is hostile: a TLB holds at once whatever the loaded tables let it have, also between the flush and the *)
(* load of the new tables.                                                                                *)
(*                                                                                                        *)
(* What is left out: memory orderings (loom has them), pairs, how the reserved table is sorted, and the   *)
(* wrap of the generation (2^48). TLBs are not shared between CPUs.                                       *)
EXTENDS Naturals, FiniteSets, TLC

CONSTANTS
    Cpus, Spaces, Numbers,
    Generations, \* how many generations there are: the last one can't end
    Pins,        \* how often someone pins
    Changes,     \* how often someone changes tables: 0 or 1
    Mutant       \* the step that is left out or done wrong, "none" for the allocator as it is

VARIABLES
    generation, taken, pinned, table, lock,  \* the allocator's; table: the reserved ids
    id, pins,                                \* each space's
    active, reserved, flushed,               \* each CPU's words
    pc, me,                                  \* what each CPU, and the pinner, executes; its registers
    runs,                                    \* each CPU's loaded tables: a space and a number
    tlb,                                     \* each CPU's entries: number, space, older than the change
    changer,                                 \* who changes tables: where it is, which space, which number
    budget                                   \* pins left

allocator == <<generation, taken, pinned, table, lock>>
words == <<active, reserved, flushed>>
hardware == <<runs, tlb>>
vars == <<allocator, id, pins, words, pc, me, hardware, changer, budget>>

Pinner == "pinner"
Agents == Cpus \cup {Pinner}
None == <<0, "none">>     \* no id
Taken == <<0, "taken">>   \* active: a rollover took the id away
Idle == <<0, "idle">>     \* active: runs under no tag
Nothing == <<"none", "none">>

Of(i) == i[1]
Number(i) == i[2]
NumbersOf(ids) == {Number(i) : i \in ids}

Init ==
    /\ generation = 1 /\ taken = {} /\ pinned = {} /\ table = {} /\ lock = "free"
    /\ id = [s \in Spaces |-> None] /\ pins = [s \in Spaces |-> 0]
    /\ active = [c \in Cpus |-> Idle]
    /\ reserved = [c \in Cpus |-> None]
    /\ flushed = [c \in Cpus |-> 0]
    /\ pc = [a \in Agents |-> "run"]
    /\ me = [a \in Agents |-> [want |-> "none", seen |-> None, id |-> None, todo |-> {}, old |-> FALSE]]
    /\ runs = [c \in Cpus |-> Nothing]
    /\ tlb = [c \in Cpus |-> {}]
    /\ changer = <<"idle", "none", "none">>
    /\ budget = Pins

---------------------------------------------------------------------------
(* Hardware.                                                                                              *)

(* Would a walk of this space's tables find what was there before the change? *)
Old(s) == ~(s = changer[2] /\ changer[1] \in {"changed", "read", "done"})

Fill(entries, run, old) ==
    IF run = Nothing THEN entries ELSE entries \cup {<<run[2], run[1], old>>}

(* Everything goes, and what the loaded tables give is back at once. *)
Flushed(c) == Fill({}, runs[c], Old(runs[c][1]))

---------------------------------------------------------------------------
(* Switching without the lock.                                                                            *)

Keep(a) == [me EXCEPT ![a] = [want |-> "none", seen |-> None, id |-> None, todo |-> {}, old |-> FALSE]]

Activate(c, s) ==
    /\ pc[c] = "run"
    /\ pc' = [pc EXCEPT ![c] = "look"]
    /\ me' = [me EXCEPT ![c].want = s, ![c].seen = active[c]]
    /\ UNCHANGED <<allocator, id, pins, words, hardware, changer, budget>>

Look(c) ==
    LET i == id[me[c].want]
        quick == /\ me[c].seen # Taken
                 /\ Of(i) = generation
                 /\ flushed[c] = generation \/ Mutant = "QuickWithoutFlush" IN
    /\ pc[c] = "look"
    /\ pc' = [pc EXCEPT ![c] = IF quick THEN "swap" ELSE "lock"]
    /\ me' = IF quick THEN [me EXCEPT ![c].id = i] ELSE [me EXCEPT ![c].seen = None]
    /\ UNCHANGED <<allocator, id, pins, words, hardware, changer, budget>>

(* The compare-and-swap of the active id. *)
Swap(c) ==
    LET succeeds == active[c] = me[c].seen \/ Mutant = "QuickStores" IN
    /\ pc[c] = "swap"
    /\ active' = IF succeeds THEN [active EXCEPT ![c] = me[c].id] ELSE active
    /\ pc' = [pc EXCEPT ![c] = IF succeeds THEN "load" ELSE "lock"]
    /\ me' = IF succeeds THEN [me EXCEPT ![c].seen = None]
             ELSE [me EXCEPT ![c].seen = None, ![c].id = None]
    /\ UNCHANGED <<allocator, id, pins, reserved, flushed, hardware, changer, budget>>

---------------------------------------------------------------------------
(* Renewing, under the lock.                                                                              *)

Lock(a) ==
    /\ pc[a] = "lock" /\ lock = "free"
    /\ lock' = a /\ pc' = [pc EXCEPT ![a] = "renew"]
    /\ UNCHANGED <<generation, taken, pinned, table, id, pins, words, me, hardware, changer, budget>>

(* Must the space keep its number, in a new id? Only if a CPU runs under it still, or if it is pinned. (The *)
(* allocator lets it keep a free one too. Here it may get any free one, as if others had been quicker.)   *)
Keeps(s) ==
    /\ id[s] # None
    /\ IF Number(id[s]) \in NumbersOf(table) THEN id[s] \in table \/ Mutant = "KeepsReservedOfAnother"
       ELSE pins[s] # 0 /\ Mutant # "PinnedNotKept"

(* The numbers that it may have. *)
Choice(s) ==
    IF Keeps(s) THEN {Number(id[s])}
    ELSE (Numbers \ taken) \cup IF Mutant = "KeepsTaken" /\ id[s] # None THEN {Number(id[s])} ELSE {}

(* What the CPU, or the pinner, does with the new id, and the lock is given back. *)
Finish(a, i) ==
    LET s == me[a].want
        flush == a # Pinner /\ flushed[a] # generation IN
    /\ id' = [id EXCEPT ![s] = i]
    /\ lock' = "free"
    /\ IF a = Pinner
       THEN /\ pins' = [pins EXCEPT ![s] = 1]
            /\ pinned' = pinned \cup {Number(i)}
            /\ me' = Keep(a)
            /\ pc' = [pc EXCEPT ![a] = "run"]
            /\ UNCHANGED <<active, flushed>>
       ELSE /\ flushed' = IF Mutant = "FlushedForAll" THEN [c \in Cpus |-> generation]
                          ELSE [flushed EXCEPT ![a] = generation]
            /\ active' = IF Mutant = "ActiveNotPublished" THEN active ELSE [active EXCEPT ![a] = i]
            /\ me' = [me EXCEPT ![a].id = i, ![a].todo = {}, ![a].old = FALSE]
            /\ pc' = [pc EXCEPT ![a] = IF flush /\ Mutant # "NoFlush" THEN "flush" ELSE "load"]
            /\ UNCHANGED <<pins, pinned>>

Give(a, n) ==
    LET s == me[a].want
        i == <<generation, n>>
        renewed == Keeps(s) /\ id[s] \in table /\ Mutant # "ReservedNotRenewed" IN
    /\ table' = IF renewed THEN (table \ {id[s]}) \cup {i} ELSE table
    /\ taken' = taken \cup {n}
    /\ Finish(a, i)
    /\ UNCHANGED <<generation, reserved, hardware, changer, budget>>

(* The id is of this generation already. *)
Current(a) ==
    /\ pc[a] = "renew" /\ Of(id[me[a].want]) = generation
    /\ Finish(a, id[me[a].want])
    /\ UNCHANGED <<generation, taken, table, reserved, hardware, changer, budget>>

Renew(a) ==
    /\ pc[a] = "renew" /\ Of(id[me[a].want]) # generation
    /\ \E n \in Choice(me[a].want) : Give(a, n)

(* A new generation begins. The allocator does so when no number is left; here it may for any space that *)
(* comes to the lock, as if others had just taken the rest: a few spaces show what many would.            *)
RollOver(a) ==
    /\ pc[a] = "renew" /\ generation < Generations
    /\ generation' = generation + 1
    /\ taken' = IF Mutant = "PinsForgotten" THEN {} ELSE pinned
    /\ me' = [me EXCEPT ![a].todo = Cpus]
    /\ pc' = [pc EXCEPT ![a] = "rolling"]
    /\ UNCHANGED <<pinned, table, lock, id, pins, words, hardware, changer, budget>>

(* One CPU's active id is taken away and reserved. *)
TakeAway(a, c) ==
    LET before == {i \in table : Number(i) = Number(reserved[c])} IN
    /\ pc[a] = "rolling" /\ c \in me[a].todo
    /\ reserved' = [reserved EXCEPT ![c] =
           CASE active[c] = Taken -> IF before = {} \/ Mutant = "ReservedOnce" THEN None
                                     ELSE CHOOSE i \in before : TRUE
             [] active[c] = Idle -> None
             [] OTHER -> IF Mutant = "NoReserve" THEN None ELSE active[c]]
    /\ active' = IF Mutant = "ActiveLeft" THEN active ELSE [active EXCEPT ![c] = Taken]
    /\ me' = [me EXCEPT ![a].todo = @ \ {c}]
    /\ UNCHANGED <<allocator, id, pins, flushed, pc, hardware, changer, budget>>

(* The reserved table is made anew, and then the id is renewed after all: its space may be running.       *)
Rebuild(a) ==
    LET kept == {reserved[c] : c \in Cpus} \ {None} IN
    /\ pc[a] = "rolling" /\ me[a].todo = {}
    /\ table' = kept
    /\ taken' = IF Mutant = "ReservedNotTaken" THEN taken ELSE taken \cup NumbersOf(kept)
    /\ pc' = [pc EXCEPT ![a] = "again"]
    /\ UNCHANGED <<generation, pinned, lock, id, pins, words, me, hardware, changer, budget>>

Again(a) ==
    LET numbers == IF Mutant = "NotKeptAfterRollover" THEN Numbers \ taken ELSE Choice(me[a].want) IN
    /\ pc[a] = "again"
    /\ \E n \in numbers : Give(a, n)

---------------------------------------------------------------------------
(* After the switch.                                                                                      *)

FlushAll(c) ==
    /\ pc[c] = "flush"
    /\ tlb' = [tlb EXCEPT ![c] = Flushed(c)]
    /\ pc' = [pc EXCEPT ![c] = "load"]
    /\ UNCHANGED <<allocator, id, pins, words, me, runs, changer, budget>>

Load(c) ==
    LET run == <<me[c].want, Number(me[c].id)>> IN
    /\ pc[c] = "load"
    /\ runs' = [runs EXCEPT ![c] = run]
    /\ tlb' = [tlb EXCEPT ![c] = Fill(@, run, Old(run[1]))]
    /\ pc' = [pc EXCEPT ![c] = "run"]
    /\ me' = Keep(c)
    /\ UNCHANGED <<allocator, id, pins, words, changer, budget>>

(* The CPU loads the kernel's tables, and then says so. *)
Unload(c) ==
    /\ pc[c] = "run" /\ runs[c] # Nothing
    /\ pc' = [pc EXCEPT ![c] = "unloaded"]
    /\ runs' = IF Mutant = "DeactivatesLoaded" THEN runs ELSE [runs EXCEPT ![c] = Nothing]
    /\ UNCHANGED <<allocator, id, pins, words, me, tlb, changer, budget>>

Deactivate(c) ==
    /\ pc[c] = "unloaded"
    /\ pc' = [pc EXCEPT ![c] = "run"]
    /\ active' = [active EXCEPT ![c] = Idle]
    /\ UNCHANGED <<allocator, id, pins, reserved, flushed, me, hardware, changer, budget>>

---------------------------------------------------------------------------
(* Pinning, and changing tables.                                                                          *)

Pinned == {s \in Spaces : pins[s] # 0}

(* Only while a number is left for every CPU, for every pin, and one more. *)
Pin(s) ==
    /\ pc[Pinner] = "run" /\ budget > 0 /\ pins[s] = 0
    /\ \/ Cardinality(Numbers) > Cardinality(Cpus) + Cardinality(Pinned) + 1
       \/ Mutant = "PinsUnbounded"
    /\ budget' = budget - 1
    /\ pc' = [pc EXCEPT ![Pinner] = "lock"]
    /\ me' = [me EXCEPT ![Pinner].want = s]
    /\ UNCHANGED <<allocator, id, pins, words, hardware, changer>>

Unpin(s) ==
    /\ pc[Pinner] = "run" /\ pins[s] # 0 /\ lock = "free"
    /\ pins' = [pins EXCEPT ![s] = 0]
    /\ pinned' = pinned \ {Number(id[s])}
    /\ UNCHANGED <<generation, taken, table, lock, id, words, pc, me, hardware, changer, budget>>

(* The number that is to be invalidated is read after the change, or before it by a mutant. *)
ReadFirst(s) ==
    /\ Mutant = "NumberReadFirst" /\ Changes > 0 /\ changer[1] = "idle"
    /\ changer' = <<"early", s, Number(id[s])>>
    /\ UNCHANGED <<allocator, id, pins, words, pc, me, hardware, budget>>

Change(s) ==
    /\ Changes > 0
    /\ IF Mutant = "NumberReadFirst"
       THEN changer[1] = "early" /\ changer[2] = s /\ changer' = <<"read", s, changer[3]>>
       ELSE changer[1] = "idle" /\ changer' = <<"changed", s, "none">>
    /\ tlb' = [c \in Cpus |-> Fill(tlb[c], runs[c], IF runs[c][1] = s THEN FALSE ELSE Old(runs[c][1]))]
    /\ UNCHANGED <<allocator, id, pins, words, pc, me, runs, budget>>

Read ==
    /\ changer[1] = "changed"
    /\ changer' = <<"read", changer[2], Number(id[changer[2]])>>
    /\ UNCHANGED <<allocator, id, pins, words, pc, me, hardware, budget>>

Invalidate ==
    /\ changer[1] = "read"
    /\ changer' = <<"done", changer[2], "none">>
    /\ tlb' = [c \in Cpus |-> Fill({e \in tlb[c] : e[1] # changer[3]}, runs[c], Old(runs[c][1]))]
    /\ UNCHANGED <<allocator, id, pins, words, pc, me, runs, budget>>

Next ==
    \/ \E c \in Cpus :
        \/ \E s \in Spaces : Activate(c, s)
        \/ Look(c) \/ Swap(c) \/ FlushAll(c) \/ Load(c) \/ Unload(c) \/ Deactivate(c)
    \/ \E a \in Agents :
        \/ Lock(a) \/ Current(a) \/ Renew(a) \/ RollOver(a) \/ Rebuild(a) \/ Again(a)
        \/ \E c \in Cpus : TakeAway(a, c)
    \/ \E s \in Spaces : Pin(s) \/ Unpin(s) \/ ReadFirst(s) \/ Change(s)
    \/ Read \/ Invalidate

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* The contract. Of two CPUs, one in the middle of a switch may have the old tables loaded still.         *)

Settled(c) == pc[c] = "run" /\ runs[c] # Nothing

(* I1: on one CPU, two spaces never have entries under one number. *)
UniquePerCpu == \A c \in Cpus : \A e, f \in tlb[c] : e[1] = f[1] => e[2] = f[2]

(* Two spaces never have one id. *)
UniqueId == \A s, t \in Spaces : s # t /\ id[s] # None => id[s] # id[t]

(* I2: two spaces that run at the same moment have different numbers. *)
UniqueActive == \A c, d \in Cpus : Settled(c) /\ Settled(d) /\ runs[c][2] = runs[d][2] =>
    runs[c][1] = runs[d][1]

(* I3: a space that runs on two CPUs has one number, and it is the one that is told to who asks. *)
SameActive == \A c, d \in Cpus : Settled(c) /\ Settled(d) /\ runs[c][1] = runs[d][1] =>
    runs[c][2] = runs[d][2]
Told == \A c \in Cpus : Settled(c) => Number(id[runs[c][1]]) = runs[c][2]

(* No number is reserved for two ids. *)
OneReserved == Cardinality(NumbersOf(table)) = Cardinality(table)

(* I4: nobody runs under the number of a pinned space, and nobody else has it. *)
PinnedStays == \A s \in Pinned :
    /\ Number(id[s]) \in pinned
    /\ \A c \in Cpus : Settled(c) /\ runs[c][2] = Number(id[s]) => runs[c][1] = s

(* I5: a renewal finds a number. *)
Enough == \A a \in Agents : pc[a] = "again" => Choice(me[a].want) # {}

(* After an invalidation by number, nobody runs with what was there before the change. *)
Invalidated == changer[1] = "done" => \A c \in Cpus :
    Settled(c) /\ runs[c][1] = changer[2] => <<runs[c][2], runs[c][1], TRUE>> \notin tlb[c]

(* A sanity check of the model itself. *)
Types ==
    /\ generation \in 1..Generations
    /\ taken \subseteq Numbers /\ pinned \subseteq Numbers
    /\ \A s \in Spaces : id[s] = None \/ (Of(id[s]) \in 1..generation /\ Number(id[s]) \in Numbers)
    /\ lock = "free" <=> \A a \in Agents : pc[a] \notin {"renew", "rolling", "again"}

---------------------------------------------------------------------------
(* What scripts/tlc.sh runs: configurations, invariants, witnesses (which must be violated, in the named  *)
(* configuration), mutants (each with the invariant that it violates), configurations that are wrong, and *)
(* the actions that only mutants take.                                                                    *)
(* invariants: UniquePerCpu UniqueId UniqueActive SameActive Told OneReserved PinnedStays Enough Invalidated Types *)
(* small: switches Cpus=2 Spaces=2 Numbers=3 Generations=3 Pins=0 Changes=0 *)
(* small: pins     Cpus=1 Spaces=2 Numbers=3 Generations=3 Pins=1 Changes=0 *)
(* small: changes  Cpus=1 Spaces=2 Numbers=2 Generations=3 Pins=0 Changes=1 *)
(* large: changes2 Cpus=2 Spaces=2 Numbers=3 Generations=2 Pins=0 Changes=1 *)
(* large: spaces3  Cpus=2 Spaces=3 Numbers=3 Generations=2 Pins=0 Changes=0 *)
(* witnesses: switches NeverTwoRollovers NeverSwapFails NeverRunsOld NeverRenewedInPlace NeverStaleWhenFlushed NeverSharedClash *)
(* witnesses: pins     NeverPinnedThroughRollover *)
(* witnesses: changes  NeverRenewedWhileInvalidating *)
(* mutants: switches NoFlush=UniquePerCpu FlushedForAll=UniquePerCpu QuickWithoutFlush=UniquePerCpu QuickStores=UniqueActive *)
(* mutants: switches NoReserve=UniqueActive ReservedNotTaken=UniqueActive ActiveLeft=UniqueActive ActiveNotPublished=UniqueActive *)
(* mutants: switches KeepsReservedOfAnother=UniqueId KeepsTaken=UniqueId DeactivatesLoaded=Told *)
(* mutants: switches ReservedOnce=Told NotKeptAfterRollover=SameActive ReservedNotRenewed=SameActive ReservedNotRenewed=OneReserved *)
(* mutants: pins     PinsForgotten=PinnedStays PinnedNotKept=PinnedStays *)
(* mutants: changes  NumberReadFirst=Invalidated *)
(* wrong: Enough  Cpus=1 Spaces=2 Numbers=1 Generations=3 Pins=0 Changes=0 Mutant=none *)
(* wrong: Enough  Cpus=1 Spaces=3 Numbers=2 Generations=3 Pins=1 Changes=0 Mutant=PinsUnbounded *)
(* only-mutants: ReadFirst *)

---------------------------------------------------------------------------
(* Witnesses: what must be reachable. Each is run as an invariant that says it never happens.             *)

NeverTwoRollovers == generation < 3
NeverSwapFails == \A c \in Cpus : ~(pc[c] = "swap" /\ active[c] # me[c].seen)
NeverRunsOld == \A c \in Cpus : ~(Settled(c) /\ generation = 3 /\ Of(id[runs[c][1]]) = 1)
NeverRenewedInPlace == \A c \in Cpus : ~(Settled(c) /\ active[c] = Taken /\ Of(id[runs[c][1]]) = generation)
NeverStaleWhenFlushed == \A c \in Cpus : ~(pc[c] = "flush" /\ \E e \in tlb[c] :
    e[1] = Number(me[c].id) /\ e[2] # me[c].want)
NeverSharedClash == \A c, d \in Cpus : \A e \in tlb[c], f \in tlb[d] : e[1] = f[1] => e[2] = f[2]
NeverRenewedWhileInvalidating == ~(changer[1] = "read" /\ id[changer[2]] # None /\
    Number(id[changer[2]]) # changer[3] /\ changer[3] # "none")
NeverPinnedThroughRollover == ~(generation > 1 /\ Pinned # {} /\ \E c \in Cpus : runs[c] # Nothing /\
    Number(id[runs[c][1]]) \in pinned)

Symmetry == Permutations(Cpus) \cup Permutations(Spaces) \cup Permutations(Numbers)
==========================================================================
