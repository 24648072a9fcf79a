---------------------------- MODULE Coherence ----------------------------
(* The core's protocol between CPUs that switch and CPUs that flush: generations, the set of CPUs,       *)
(* lazy CPUs, acknowledgement by a published generation, and freed table pages.                           *)
(*                                                                                                        *)
(* One space, "a", changes; "b" stands for every other one. "a" has one page, mapped through one table    *)
(* page. Change n replaces frame n-1 by frame n, and, if it is of kind "table", the table page too. When  *)
(* the flush of a change is over, what it replaced is given to someone else.                              *)
(*                                                                                                        *)
(* Hardware is as hostile as the manuals allow: a TLB holds at once whatever it could have cached since   *)
(* the last invalidation (Closure), it walks from any table page that it remembers, and stores of the     *)
(* published state reach other CPUs late, in order, unless a fence waits for them (buf). Interrupts come  *)
(* at any step outside of a switch, any time after they were sent, several as one.                        *)
(*                                                                                                        *)
(* What is left out: ranges (there is one page), the order in which a log entry and its generation become *)
(* visible, tag slots that run out, calls other than flushes, CPUs going offline.                         *)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
    Cpus,        \* the CPUs
    Changes,     \* how many changes are made
    Mutant       \* the step that is left out, "none" for the protocol as it is

VARIABLES
    frame,       \* the frame that the page maps to now
    table,       \* the table page in use
    content,     \* for each table page, the frame it maps (still, when it is out of use)
    kind,        \* for each generation, what changed: "leaf" or "table"
    counted,     \* for each change, its generation; 0 before it is counted
    retired,     \* for each table page, the change that put it out of use; 0 while in use
    made,        \* changes made
    count,       \* generations given out
    gen,         \* the generation that others see
    freeFrames,  \* frames that belong to someone else now
    freeTables,  \* table pages that belong to someone else now
    members,     \* the space's set of CPUs
    pub,         \* what each CPU publishes: "k" kernel only, "s" switching, "a", "l" lazy in "a", "b"
    ack,         \* the generation each CPU has acknowledged
    cpu          \* each CPU's private state

tables == <<frame, table, content, kind, counted, retired, made, count>>
freed == <<freeFrames, freeTables>>
vars == <<frame, table, content, kind, counted, retired, made, count, gen, freeFrames, freeTables,
          members, pub, ack, cpu>>

Leaf(f) == <<"leaf", f>>
Walk(t) == <<"walk", t>>
Max(S) == CHOOSE m \in S : \A n \in S : n <= m

Idle == [
    pc |-> "run",       \* what the CPU executes
    hpc |-> "off",      \* what a handler on it executes; "off" for none
    cur |-> "none",     \* its space
    lazy |-> FALSE,
    root |-> "none",    \* whose tables its walker uses
    tlb |-> {},         \* entries under the tag of "a"
    slot |-> FALSE,     \* the tag is remembered
    mem |-> FALSE,      \* ... together with being in the set
    have |-> 0,         \* the generation the tag is current to
    want |-> 0,         \* the generation read on the way
    early |-> FALSE,    \* the handler may acknowledge first
    kick |-> FALSE,     \* an interrupt is on its way
    buf |-> <<>>,       \* stores on their way
    n |-> 0, g |-> 0, old |-> 0, freed |-> FALSE,   \* a flush: change, generation, old table, its kind
    todo |-> {}, told |-> {}, seen |-> 0            \* ... CPUs to look at, to wait for; what was read
]

Init ==
    /\ frame = 0 /\ table = 0 /\ made = 0 /\ count = 0 /\ gen = 0
    /\ content = [t \in 0..Changes |-> 0]
    /\ kind = [g \in 1..Changes |-> "none"]
    /\ counted = [n \in 1..Changes |-> 0]
    /\ retired = [t \in 0..Changes |-> 0]
    /\ freeFrames = {} /\ freeTables = {} /\ members = {}
    /\ pub = [c \in Cpus |-> "k"]
    /\ ack = [c \in Cpus |-> 0]
    /\ cpu = [c \in Cpus |-> Idle]

---------------------------------------------------------------------------
(* Hardware.                                                                                              *)

(* Everything that a walker which uses these tables may cache in addition to what it holds. *)
Closure(tlb, root, t, cont) ==
    IF root # "a" THEN tlb
    ELSE LET walks == {e \in tlb : e[1] = "walk"} \cup {Walk(t)}
         IN tlb \cup walks \cup {Leaf(cont[w[2]]) : w \in walks}

Refill(tlb, root) == Closure(tlb, root, table, content)

(* An invalidation: leaf entries of the page, or everything under the tag. *)
Drop(tlb, whole) == IF whole /\ Mutant # "LeafOnlyFreed" THEN {} ELSE {e \in tlb : e[1] # "leaf"}

Room(c) == Len(cpu[c].buf) <= 3

(* The oldest store of a CPU reaches the others. *)
Drain(c) ==
    LET store == Head(cpu[c].buf) IN
    /\ cpu[c].buf # <<>>
    /\ cpu' = [cpu EXCEPT ![c].buf = Tail(@)]
    /\ pub' = IF store[1] = "pub" THEN [pub EXCEPT ![c] = store[2]] ELSE pub
    /\ ack' = IF store[1] = "ack" THEN [ack EXCEPT ![c] = store[2]] ELSE ack
    /\ gen' = IF store[1] = "gen" THEN Max({gen, store[2]}) ELSE gen
    /\ UNCHANGED <<tables, freed, members>>

(* The generation as this CPU reads it: its own stores it sees at once. *)
Seen(c) == LET mine == {i \in 1..Len(cpu[c].buf) : cpu[c].buf[i][1] = "gen"}
           IN Max({gen} \cup {cpu[c].buf[i][2] : i \in mine})

Fenced(c) == cpu[c].buf = <<>>

---------------------------------------------------------------------------
(* Switching.                                                                                             *)

Interruptible(c) == cpu[c].pc \in {"run", "bump", "look", "filter", "tell", "local", "wait", "acked", "done"}
Running(c) == cpu[c].pc = "run" /\ cpu[c].hpc = "off"

(* Were table pages freed between the two generations? *)
FreedBetween(have, want) == \E g \in (have + 1)..want : kind[g] = "table"

SwitchBegin(c) ==
    LET joins == ~(cpu[c].slot /\ cpu[c].mem)
        early == Mutant = "SwitchReadsGenerationFirst" IN
    /\ Running(c) /\ Room(c) /\ cpu[c].cur # "a"
    /\ cpu' = [cpu EXCEPT ![c].pc = "generation", ![c].buf = Append(@, <<"pub", "s">>),
                          ![c].want = IF early THEN gen ELSE @,
                          ![c].mem = TRUE]
    /\ members' = IF joins /\ Mutant \notin {"SwitchDoesNotJoin", "SwitchJoinsLate"}
                  THEN members \cup {c} ELSE members
    /\ UNCHANGED <<tables, gen, freed, pub, ack>>

SwitchGeneration(c) ==
    /\ cpu[c].pc = "generation"
    /\ Fenced(c) \/ Mutant = "SwitchWithoutFence"
    /\ cpu' = [cpu EXCEPT ![c].pc = IF Mutant = "SwitchJoinsLate" THEN "join" ELSE "load",
                          ![c].want = IF Mutant = "SwitchReadsGenerationFirst" THEN @ ELSE gen]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

SwitchJoin(c) ==
    /\ cpu[c].pc = "join"
    /\ members' = members \cup {c}
    /\ cpu' = [cpu EXCEPT ![c].pc = "load"]
    /\ UNCHANGED <<tables, gen, freed, pub, ack>>

(* Keep what is under the tag, replay what was missed, or begin empty. *)
SwitchLoad(c) ==
    LET me == cpu[c]
        current == me.slot /\ (me.have = me.want \/ Mutant = "SlotTrusts")
        replays == me.slot /\ (~FreedBetween(me.have, me.want) \/ Mutant = "SwitchReplaysFreed")
        kept == IF current \/ replays THEN me.tlb ELSE {} IN
    /\ me.pc = "load"
    /\ cpu' = [cpu EXCEPT ![c].pc = IF ~current /\ replays THEN "replay" ELSE "publish",
                          ![c].root = "a", ![c].cur = "a", ![c].lazy = FALSE, ![c].slot = TRUE,
                          ![c].tlb = Refill(kept, "a"),
                          ![c].have = IF Mutant = "SwitchReadsGenerationLate" THEN gen ELSE me.want]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

SwitchReplay(c) ==
    /\ cpu[c].pc = "replay"
    /\ cpu' = [cpu EXCEPT ![c].pc = "publish", ![c].tlb = Refill(Drop(@, FALSE), "a")]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

SwitchPublish(c) ==
    /\ cpu[c].pc = "publish" /\ Room(c)
    /\ cpu' = [cpu EXCEPT ![c].pc = "run", ![c].want = 0,
                          ![c].buf = @ \o <<<<"ack", cpu[c].want>>, <<"pub", "a">>>>]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

(* To another space: the set is not left, the entries stay under their tag. *)
SwitchAway(c) ==
    /\ Running(c) /\ cpu[c].cur # "b" /\ Room(c)
    /\ cpu' = [cpu EXCEPT ![c].cur = "b", ![c].lazy = FALSE, ![c].root = "b",
                          ![c].buf = @ \o <<<<"pub", "s">>, <<"pub", "b">>>>]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

EnterLazy(c) ==
    /\ Running(c) /\ cpu[c].cur = "a" /\ ~cpu[c].lazy /\ Room(c)
    /\ cpu' = [cpu EXCEPT ![c].lazy = TRUE, ![c].buf = Append(@, <<"pub", "l">>)]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

LazyExit(c) ==
    /\ Running(c) /\ cpu[c].cur = "a" /\ cpu[c].lazy /\ Room(c)
    /\ cpu' = [cpu EXCEPT ![c].pc = "exit", ![c].buf = Append(@, <<"pub", "s">>)]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

LazyGeneration(c) ==
    LET trusts == Mutant = "LazyExitTrusts" \/ cpu[c].have = gen IN
    /\ cpu[c].pc = "exit"
    /\ Fenced(c) \/ Mutant = "LazyExitWithoutFence"
    /\ cpu' = [cpu EXCEPT ![c].pc = IF trusts THEN "active" ELSE "catchup", ![c].want = gen]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

LazyCatchUp(c) ==
    LET me == cpu[c] IN
    /\ me.pc = "catchup" /\ Room(c)
    /\ cpu' = [cpu EXCEPT ![c].pc = "active", ![c].have = me.want,
                          ![c].tlb = Refill(Drop(@, FreedBetween(me.have, me.want)), "a"),
                          ![c].buf = Append(@, <<"ack", me.want>>)]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

LazyActive(c) ==
    /\ cpu[c].pc = "active" /\ Room(c)
    /\ cpu' = [cpu EXCEPT ![c].pc = "run", ![c].lazy = FALSE, ![c].want = 0,
                          ![c].buf = Append(@, <<"pub", "a">>)]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

(* The CPU's state after it has loaded the kernel's own tables. *)
Unloaded(me) ==
    [me EXCEPT !.cur = "none", !.lazy = FALSE, !.mem = FALSE,
               !.root = IF Mutant = "UnloadKeepsRoot" THEN @ ELSE "none",
               !.buf = @ \o <<<<"pub", "s">>, <<"pub", "k">>>>]

Leave(c) ==
    /\ Running(c) /\ cpu[c].cur = "a" /\ Room(c)
    /\ cpu' = [cpu EXCEPT ![c] = Unloaded(@)]
    /\ members' = members \ {c}
    /\ UNCHANGED <<tables, gen, freed, pub, ack>>

(* Being asked to leave the set of a space that is not loaded. *)
Trim(c) ==
    /\ Interruptible(c) /\ cpu[c].hpc = "off" /\ cpu[c].cur # "a" /\ c \in members
    /\ members' = members \ {c}
    /\ cpu' = [cpu EXCEPT ![c].mem = FALSE]
    /\ UNCHANGED <<tables, gen, freed, pub, ack>>

---------------------------------------------------------------------------
(* Answering.                                                                                             *)

TakeKick(c) ==
    /\ cpu[c].kick /\ Interruptible(c) /\ cpu[c].hpc = "off"
    /\ cpu' = [cpu EXCEPT ![c].kick = FALSE, ![c].hpc = "generation", ![c].early = TRUE]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

Respond(c) ==
    LET me == cpu[c]
        want == Seen(c)
        whole == FreedBetween(me.have, want)
        stays == ~whole \/ Mutant = "LazyStaysFreed"
        early == me.early /\ (~whole \/ Mutant = "EarlyAckFreed")
        over == [me EXCEPT !.hpc = "off", !.early = FALSE] IN
    /\ me.hpc = "generation" /\ Room(c)
    /\ UNCHANGED <<tables, gen, freed, pub, ack>>
    /\ IF me.cur # "a" \/ want = me.have THEN
            cpu' = [cpu EXCEPT ![c] = over] /\ UNCHANGED members
       ELSE IF me.lazy THEN
            IF stays THEN
                /\ cpu' = [cpu EXCEPT ![c] = IF Mutant = "LazyAdvances"
                                              THEN [over EXCEPT !.have = want] ELSE over]
                /\ UNCHANGED members
            ELSE
                /\ cpu' = [cpu EXCEPT ![c] = Unloaded(over)]
                /\ members' = members \ {c}
       ELSE
            /\ cpu' = [cpu EXCEPT ![c] =
                   IF early
                   THEN [me EXCEPT !.hpc = "late", !.have = want, !.buf = Append(@, <<"ack", want>>)]
                   ELSE [me EXCEPT !.hpc = "invalidate", !.want = want]]
            /\ UNCHANGED members

(* The invalidation of a CPU that acknowledged first.                                                    *)
InvalidateLate(c) ==
    /\ cpu[c].hpc = "late"
    /\ cpu' = [cpu EXCEPT ![c].hpc = "off", ![c].early = FALSE,
                          ![c].tlb = Refill(Drop(@, FALSE), cpu[c].root)]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

Invalidate(c) ==
    LET me == cpu[c]
        want == IF Mutant = "CatchUpReadsGenerationLate" THEN Seen(c) ELSE me.want IN
    /\ me.hpc = "invalidate" /\ Room(c)
    /\ cpu' = [cpu EXCEPT ![c].hpc = "off", ![c].early = FALSE, ![c].have = want, ![c].want = 0,
                          ![c].tlb = Refill(Drop(@, FreedBetween(me.have, me.want)), me.root),
                          ![c].buf = Append(@, <<"ack", want>>)]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

---------------------------------------------------------------------------
(* Flushing.                                                                                              *)

(* The tables change. Walkers see it from now on. *)
Change(c, what) ==
    LET n == made + 1
        t == IF what = "table" THEN n ELSE table
        cont == [content EXCEPT ![t] = n] IN
    /\ Running(c) /\ made < Changes
    /\ made' = n /\ frame' = n /\ table' = t /\ content' = cont
    /\ retired' = IF what = "table" THEN [retired EXCEPT ![table] = n] ELSE retired
    /\ cpu' = [d \in Cpus |->
           LET seen == [cpu[d] EXCEPT !.tlb = Closure(@, cpu[d].root, t, cont)] IN
           IF d = c THEN [seen EXCEPT !.pc = "bump", !.n = n, !.old = table, !.freed = (what = "table")]
           ELSE seen]
    /\ UNCHANGED <<kind, counted, count, gen, freed, members, pub, ack>>

Bump(c) ==
    LET g == IF Mutant = "NoGenerationBump" THEN Max({1, count}) ELSE count + 1
        me == cpu[c] IN
    /\ me.pc = "bump" /\ me.hpc = "off" /\ Room(c)
    /\ count' = IF Mutant = "NoGenerationBump" THEN count ELSE g
    /\ kind' = [kind EXCEPT ![g] = IF me.freed THEN "table" ELSE "leaf"]
    /\ counted' = [counted EXCEPT ![me.n] = g]
    /\ cpu' = [cpu EXCEPT ![c].pc = "look", ![c].g = g,
                          ![c].buf = IF Mutant = "NoGenerationBump" THEN @ ELSE Append(@, <<"gen", g>>)]
    /\ UNCHANGED <<frame, table, content, retired, made, gen, freed, members, pub, ack>>

Look(c) ==
    /\ cpu[c].pc = "look" /\ cpu[c].hpc = "off"
    /\ Fenced(c) \/ Mutant = "FlushWithoutFence"
    /\ cpu' = [cpu EXCEPT ![c].pc = "filter", ![c].todo = members \ {c}, ![c].told = {}]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

(* Must this CPU be told? *)
Told(c, d) ==
    CASE pub[d] = "s" -> Mutant # "FilterSkipsSwitching"
      [] pub[d] = "a" -> gen = cpu[c].g \/ ack[d] < cpu[c].g
      [] pub[d] = "l" -> cpu[c].freed /\ Mutant # "FilterSkipsLazyFreed"
      [] OTHER -> FALSE

Filter(c) ==
    /\ cpu[c].pc = "filter" /\ cpu[c].hpc = "off"
    /\ UNCHANGED <<tables, gen, freed, pub, ack>>
    /\ IF cpu[c].todo = {} THEN cpu' = [cpu EXCEPT ![c].pc = "tell"] /\ UNCHANGED members
       ELSE \E d \in cpu[c].todo :
            /\ cpu' = [cpu EXCEPT ![c].todo = @ \ {d},
                                  ![c].told = IF Told(c, d) THEN @ \cup {d} ELSE @]
            /\ members' = IF Mutant = "RemoteRemoval" /\ pub[d] \in {"b", "k"}
                          THEN members \ {d} ELSE members

Tell(c) ==
    /\ cpu[c].pc = "tell" /\ cpu[c].hpc = "off"
    /\ cpu' = [d \in Cpus |->
           IF d = c THEN [cpu[d] EXCEPT !.pc = "local"]
           ELSE IF d \in cpu[c].told THEN [cpu[d] EXCEPT !.kick = TRUE] ELSE cpu[d]]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

(* The own part, as a handler that came in. *)
Local(c) ==
    /\ cpu[c].pc = "local" /\ cpu[c].hpc = "off"
    /\ cpu' = [cpu EXCEPT ![c].pc = "wait", ![c].early = FALSE,
                          ![c].hpc = IF Mutant = "NoLocalWork" THEN "off" ELSE "generation"]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

(* Has this CPU answered? Its state is read first, its acknowledgement after it. *)
Wait(c) ==
    LET me == cpu[c] IN
    /\ me.pc = "wait" /\ me.hpc = "off"
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>
    /\ IF me.told = {} \/ Mutant = "NoWait" THEN cpu' = [cpu EXCEPT ![c].pc = "done"]
       ELSE \E d \in me.told :
            LET skips == pub[d] = "l" /\ (~me.freed \/ Mutant = "LazyAcknowledgesFreed")
                asks == [cpu EXCEPT ![c].pc = "acked", ![c].todo = {d}, ![c].seen = ack[d]] IN
            IF Mutant = "AnswerReadFirst" THEN cpu' = asks
            ELSE CASE pub[d] \in {"b", "k"} \/ skips -> cpu' = [cpu EXCEPT ![c].told = @ \ {d}]
                   [] pub[d] = "s" -> FALSE
                   [] OTHER -> cpu' = [asks EXCEPT ![c].seen = 0]

Acked(c) ==
    LET me == cpu[c] d == CHOOSE d \in me.todo : TRUE
        first == Mutant = "AnswerReadFirst"
        gone == pub[d] \in {"b", "k"} \/ (pub[d] = "l" /\ ~me.freed)
        answered == IF first THEN gone \/ (pub[d] # "s" /\ me.seen >= me.g) ELSE ack[d] >= me.g IN
    /\ me.pc = "acked" /\ me.hpc = "off"
    /\ cpu' = [cpu EXCEPT ![c].pc = "wait", ![c].todo = {}, ![c].seen = 0,
                          ![c].told = IF answered THEN @ \ {d} ELSE @]
    /\ UNCHANGED <<tables, gen, freed, members, pub, ack>>

(* The flush returns, and what was replaced is given away. *)
Done(c) ==
    LET me == cpu[c] IN
    /\ me.pc = "done" /\ me.hpc = "off"
    /\ freeFrames' = freeFrames \cup {me.n - 1}
    /\ freeTables' = IF me.freed THEN freeTables \cup {me.old} ELSE freeTables
    /\ cpu' = [cpu EXCEPT ![c].pc = "run", ![c].n = 0, ![c].g = 0, ![c].old = 0,
                          ![c].freed = FALSE, ![c].told = {}]
    /\ UNCHANGED <<tables, gen, members, pub, ack>>

Next == \E c \in Cpus :
    \/ Drain(c)
    \/ SwitchBegin(c) \/ SwitchGeneration(c) \/ SwitchJoin(c) \/ SwitchLoad(c) \/ SwitchReplay(c)
    \/ SwitchPublish(c) \/ SwitchAway(c)
    \/ EnterLazy(c) \/ LazyExit(c) \/ LazyGeneration(c) \/ LazyCatchUp(c) \/ LazyActive(c)
    \/ Leave(c) \/ Trim(c)
    \/ TakeKick(c) \/ Respond(c) \/ InvalidateLate(c) \/ Invalidate(c)
    \/ \E what \in {"leaf", "table"} : Change(c, what)
    \/ Bump(c) \/ Look(c) \/ Filter(c) \/ Tell(c) \/ Local(c) \/ Wait(c) \/ Acked(c) \/ Done(c)

Spec == Init /\ [][Next]_vars

---------------------------------------------------------------------------
(* The contract.                                                                                          *)

(* The CPU may make an access through the space now. *)
Accesses(c) == cpu[c].cur = "a" /\ ~cpu[c].lazy /\ Interruptible(c) /\ cpu[c].hpc = "off"

(* Revocation: after the flush has returned, no access goes to what was replaced. *)
Revocation == \A c \in Cpus : Accesses(c) => \A f \in freeFrames : Leaf(f) \notin cpu[c].tlb

(* Table reuse: no walker reaches a table page that belongs to someone else. *)
TableReuse == \A c \in Cpus : cpu[c].root = "a" =>
    \A t \in freeTables : Walk(t) \notin cpu[c].tlb /\ (t # table)

(* Master invariant: a tag that is current to a generation holds nothing older, except between an early *)
(* acknowledgement and its invalidation.                                                                  *)
Newer(change, have) == change = 0 \/ change > Changes \/ counted[change] = 0 \/ counted[change] > have
Master == \A c \in Cpus : (cpu[c].slot /\ cpu[c].hpc = "off" /\ Interruptible(c)) =>
    \A e \in cpu[c].tlb :
        IF e[1] = "leaf" THEN e[2] = frame \/ Newer(e[2] + 1, cpu[c].have)
        ELSE Newer(retired[e[2]], cpu[c].have)

(* A sanity check of the model itself. *)
Types ==
    /\ \A c \in Cpus : Len(cpu[c].buf) <= 5 /\ cpu[c].have <= Changes /\ ack[c] <= Changes
    /\ \A c \in Cpus : cpu[c].cur = "a" /\ Interruptible(c) => cpu[c].root = "a"
    /\ gen <= count

---------------------------------------------------------------------------
(* What scripts/tlc.sh runs (as in Tags.tla): the witnesses that need no second change, and the mutants     *)
(* that are known to be caught.                                                                           *)
(* invariants: Revocation TableReuse Master Types *)
(* small: change Cpus=2 Changes=1 *)
(* witnesses: change NeverStaleWhenFlushed NeverTableReused NeverKickInSwitch NeverReplayed NeverLazySkipped NeverAckedEarly *)
(* mutants: change SwitchWithoutFence=TableReuse SwitchDoesNotJoin=TableReuse NoGenerationBump=Revocation SlotTrusts=Master *)
(* mutants: change LazyAdvances=Master LazyExitTrusts=Revocation FilterSkipsSwitching=TableReuse FilterSkipsLazyFreed=TableReuse *)
(* mutants: change LazyStaysFreed=TableReuse LazyAcknowledgesFreed=TableReuse EarlyAckFreed=Master LeafOnlyFreed=Master NoWait=TableReuse *)
(* only-mutants: SwitchJoin *)

---------------------------------------------------------------------------
(* Witnesses: what must be reachable, or nothing above means much. Each is run as an invariant that says *)
(* it never happens, and must be violated.                                                                *)

Stale(c) == \E e \in cpu[c].tlb : e[1] = "leaf" /\ e[2] # frame
StaleWalk(c) == \E t \in 0..Changes : Walk(t) \in cpu[c].tlb /\ t # table

NeverStaleWhenFlushed == ~\E c, d \in Cpus : c # d /\ cpu[c].pc = "look" /\ Accesses(d) /\ Stale(d)
NeverLazySkipped == ~\E c, d \in Cpus :
    c # d /\ cpu[c].pc = "done" /\ cpu[d].lazy /\ d \in members /\ Stale(d) /\ cpu[d].have < cpu[c].g
NeverLazyCaughtUp == ~\E c \in Cpus : cpu[c].pc = "catchup" /\ freeFrames # {} /\ Stale(c)
NeverReplayed == ~\E c \in Cpus : cpu[c].pc = "replay" /\ Stale(c)
NeverTableReused == freeTables = {}
NeverAckedEarly == ~\E c, d \in Cpus : c # d /\ cpu[c].hpc = "late" /\ Stale(c) /\ cpu[d].pc = "done"
NeverKickInSwitch == ~\E c \in Cpus : cpu[c].kick /\ cpu[c].pc \in {"load", "replay", "publish"}
NeverLeftForTables == ~\E c \in Cpus : cpu[c].hpc = "generation" /\ cpu[c].lazy /\ StaleWalk(c)
NeverOvertaken == ~\E c \in Cpus : cpu[c].pc = "filter" /\ gen # cpu[c].g /\ \E d \in cpu[c].todo :
    pub[d] = "a" /\ ack[d] >= cpu[c].g
NeverTwoFlushers == ~\E c, d \in Cpus : c # d /\ cpu[c].pc = "wait" /\ cpu[d].pc = "wait"
NeverKeptStaleElsewhere == ~\E c \in Cpus : cpu[c].cur = "b" /\ \E f \in freeFrames : Leaf(f) \in cpu[c].tlb

Symmetry == Permutations(Cpus)
==========================================================================
