----------------------------- MODULE TagsTrace -----------------------------
(* Are runs of the real allocator behaviours of Tags.tla?                                                 *)
(*                                                                                                        *)
(* TagsRuns is written by crates/shootdown-machine/examples/tag_traces.rs: for each run, what callers saw *)
(* of each operation, in the order in which it happened. An event is <<who, what, space, number, rolled>>. *)
(* Between two events any steps of Tags.tla may be taken that no caller sees. A run is accepted when all   *)
(* of its events can be met, one after the other; then the next run begins. `Rejected` says that the last  *)
(* run is never finished: TLC must violate it for runs of the allocator, and must not for false ones.     *)
EXTENDS Tags, Sequences, TagsRuns

VARIABLES
    run, at,     \* the event that is due
    rolled       \* who has rolled over in the operation that it executes

traceVars == <<vars, run, at, rolled>>

RECURSIVE From(_, _)
From(a, i) ==
    IF i > Len(Runs[run]) THEN <<a, "end", "none", "none", FALSE>>
    ELSE IF Runs[run][i][1] = a THEN Runs[run][i] ELSE From(a, i + 1)

(* The next event of a CPU, or of the pinner. *)
Due(a) == From(a, at)

(* What the steps that nobody sees have done so far does not contradict what the caller will see. *)
Fits(c) ==
    pc[c] \in {"flush", "load"} =>
        LET due == Due(c) IN
        due[2] = pc[c] /\ due[3] = me[c].want /\ due[4] = Number(me[c].id) /\ due[5] = rolled[c]

(* A step that nobody sees. *)
Silent ==
    /\ UNCHANGED <<run, at>>
    /\ \/ \E c \in Cpus : Look(c) \/ Swap(c)
       \/ \E a \in Agents : Lock(a) \/ Current(a) \/ Renew(a) \/ RollOver(a) \/ Rebuild(a) \/ Again(a)
                            \/ \E c \in Cpus : TakeAway(a, c)
       \/ \E s \in Spaces : Due(Pinner)[2] = "unpinned" /\ Due(Pinner)[3] = s /\ Unpin(s)
    /\ rolled' = [a \in Agents |-> rolled[a] \/ (pc[a] = "renew" /\ pc'[a] = "rolling")]
    \* What a CPU will be told about a rollover, it is told of its own.
    /\ \A c \in Cpus : rolled'[c] => Due(c)[5]

Seen(e) ==
    CASE e[2] = "activate" -> Activate(e[1], e[3])
      [] e[2] = "flush" -> FlushAll(e[1])
      [] e[2] = "load" -> Load(e[1])
      [] e[2] = "unload" -> Unload(e[1])
      [] e[2] = "deactivate" -> Deactivate(e[1])
      [] e[2] = "pin" -> Pin(e[3])
      [] e[2] = "pinned" ->
            pc[Pinner] = "run" /\ pins[e[3]] # 0 /\ Number(id[e[3]]) = e[4] /\ UNCHANGED vars
      [] e[2] = "unpin" -> UNCHANGED vars
      [] e[2] = "unpinned" -> pins[e[3]] = 0 /\ UNCHANGED vars

Visible ==
    LET e == Runs[run][at] IN
    /\ at <= Len(Runs[run])
    /\ Seen(e)
    /\ at' = at + 1 /\ run' = run
    /\ rolled' = IF e[2] \in {"load", "pinned"} THEN [rolled EXCEPT ![e[1]] = FALSE] ELSE rolled

(* The run is over: everything is as at the start, for the next one. *)
NextRun ==
    /\ at > Len(Runs[run])
    /\ run' = run + 1 /\ at' = 1 /\ rolled' = [a \in Agents |-> FALSE]
    /\ generation' = 1 /\ taken' = {} /\ pinned' = {} /\ table' = {} /\ lock' = "free"
    /\ id' = [s \in Spaces |-> None] /\ pins' = [s \in Spaces |-> 0]
    /\ active' = [c \in Cpus |-> Idle]
    /\ reserved' = [c \in Cpus |-> None]
    /\ flushed' = [c \in Cpus |-> 0]
    /\ pc' = [a \in Agents |-> "run"]
    /\ me' = [a \in Agents |-> [want |-> "none", seen |-> None, id |-> None, todo |-> {}, old |-> FALSE]]
    /\ runs' = [c \in Cpus |-> Nothing]
    /\ tlb' = [c \in Cpus |-> {}]
    /\ changer' = <<"idle", "none", "none">>
    /\ budget' = Pins

TraceInit == Init /\ run = 1 /\ at = 1 /\ rolled = [a \in Agents |-> FALSE]
TraceNext ==
    /\ run <= Len(Runs)
    /\ (Silent /\ \A c \in Cpus : Fits(c)') \/ Visible \/ NextRun

TraceSpec == TraceInit /\ [][TraceNext]_traceVars

Rejected == run <= Len(Runs)

TraceGenerations == MostGenerations

(* Steps of the allocator without which runs are no behaviours of Tags.tla:                               *)
(* mutants: fast-path-ignores-rollover rollover-not-flushed rollover-not-counted active-not-reserved reserved-not-taken *)
============================================================================
