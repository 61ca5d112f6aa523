"""A model of how connectors divide runs: its states, and the code's writes as steps.

The model has two runs of one session; the first one pauses once and is approved. Each function that
yields a step's name changes the records as the method of that name does (see
`support/drive/steps.py`). A decision that the code takes between two writes is taken here from the
same records. `Rules()` is the code as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from connector.model.explore import Move
from support.drive.steps import Step

RUNS = (0, 1)
PAUSES = 0  # the run that pauses at the end of its first leg
START, CONTINUE, REAP, CANCEL = "start", "continue", "reap", "cancel"
WATCH = "watch"
OFFER, TAKE = "offer", "take"  # a stopping connector hands over a leg
NOBODY, CANCELLED = -1, -2
COMMANDS = {(START, 0): 0, (START, 1): 1, (CONTINUE, PAUSES): 2, (CANCEL, PAUSES): 3}


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of the code. Each may be switched off, to see what it prevents."""

    reaper_clears_earlier_legs: bool = True
    waiting_looks_at_raw: bool = True
    open_is_found: bool = True
    own_leg_first: bool = True
    leaves_by_leg: bool = True
    records_before_it_forgets: bool = True
    clears_after_the_open: bool = True
    looks_before_it_sends: bool = True
    passes_over_the_same_leg: bool = True
    watches: bool = True
    keeps_the_order_of_starts: bool = True
    alone: bool = False  # without the second run
    pods: int = 2
    kills: int = 1
    sleeps: int = 0
    cancels: int = 0
    stops: int = 0  # 2: one pod is told to stop, and hands over one leg


class Tail(NamedTuple):
    """The last source frame of a run, and facts from the earlier frames of its leg."""

    version: int = 0  # the sequence that a fence expects
    leg: int = 0
    kind: str = ""  # "" | open | claim | end | pause | lost | event
    pod: int = -1
    called: bool = False  # whether the upstream may have been called

    @property
    def is_closed(self) -> bool:
        return self.kind in ("end", "pause", "lost", "event")

    @property
    def is_last_word(self) -> bool:
        return self.kind in ("end", "lost", "event")


class Turn(NamedTuple):
    """A place in the session's queue."""

    run: int
    leg: int
    pod: int


class Op(NamedTuple):
    """An operation of one pod on one run. A pod has at most one operation per run at a time."""

    kind: str  # start | continue | reap | watch | cancel | offer | take
    at: str  # the next step
    other: int = -1  # the pod that has ended, or that held the run before
    seen: Tail = Tail()
    first: bool = False  # whether it was the first in the queue when it joined
    late: bool = False  # whether the pod slept since the operation began
    taken: bool = False  # taken over from another pod, or tried again


class Leg(NamedTuple):
    """A leg that a pod runs."""

    number: int
    at: str  # the next step
    seen: int  # the version of the last frame that the pod wrote
    cancelled: bool = False


class State(NamedTuple):
    """All stored records, and all operations and legs of the pods."""

    raw: tuple[Tail, ...]
    calls: tuple[tuple[int, int], ...]  # by run: how often each leg was sent upstream
    claims: tuple[int, ...]  # by run: the start's pod; CANCELLED if none may start it
    sent: tuple[int, str]  # the decision's sending: its pod, and claimed | done | refused
    notes: frozenset[tuple[int, int, int]]  # leg records: pod, run, leg
    queue: tuple[Turn, ...]
    commands: tuple[tuple[str, int], ...]  # see COMMANDS: none | ready | taken | done, and by whom
    pods: tuple[str, ...]  # alive | stopping | killed (its lease is still valid) | gone | asleep
    ops: tuple[tuple[Op | None, ...], ...]
    legs: tuple[tuple[Leg | None, ...], ...]
    kills: int
    sleeps: int
    stops: int


def begin(rules: Rules) -> State:
    """Return the state in which both runs were requested."""
    nobody = ((None, None),) * rules.pods
    other = ("done", NOBODY) if rules.alone else ("ready", NOBODY)
    return State(
        raw=(Tail(), Tail(1, 1, "end") if rules.alone else Tail()),
        calls=((0, 0), (0, 0)),
        claims=(-1, -1),
        sent=(-1, ""),
        notes=frozenset(),
        queue=(),
        commands=(
            ("ready", NOBODY),
            other,
            ("none", NOBODY),
            ("none" if rules.cancels else "done", NOBODY),
        ),
        pods=("alive",) * rules.pods,
        ops=nobody,
        legs=nobody,
        kills=rules.kills,
        sleeps=rules.sleeps,
        stops=rules.stops,
    )


def is_done(state: State) -> bool:
    """Return whether both runs have ended and nothing is left of them."""
    return (
        all(tail.is_last_word for tail in state.raw)
        and all(is_over(state, turn) for turn in state.queue)  # such turns delay nobody
        and not state.notes
        and state.sent[1] != "claimed"
        and all(command in ("done", "none") for command, _ in state.commands)
        and not any(op for pod, ops in enumerate(state.ops) for op in ops if awake(state, pod))
        and not any(leg for pod, legs in enumerate(state.legs) for leg in legs if awake(state, pod))
    )


def is_sent_twice(state: State) -> bool:
    """Return whether a start or a decision went upstream twice."""
    return any(times > 1 for legs in state.calls for times in legs)


def runs_side_by_side(state: State) -> bool:
    """Return whether two legs of the session are at the upstream at the same time."""
    at_work = [tail for tail in state.raw if tail.called and not tail.is_closed and tail.kind != ""]
    return len(at_work) > 1


def is_overtaken(state: State) -> bool:
    """Return whether the second run has begun before the first, which is not cancelled."""
    return bool(state.raw[1].kind) and waits_to_begin(state, 0)


def waits_to_begin(state: State, run: int) -> bool:
    """Return whether the run's start still has to begin, by the rule of `SessionOrder`.

    The start has a command and no `open`, and it was not cancelled.
    """
    stands = state.commands[COMMANDS[START, run]][0] != "done"
    return stands and not state.raw[run].kind and state.claims[run] != CANCELLED


def awake(state: State, pod: int) -> bool:
    """Return whether the pod does anything."""
    return state.pods[pod] in ("alive", "stopping")


# the records


def lives(state: State, pod: int) -> bool:
    """Return whether the pod's lease is valid."""
    return state.pods[pod] in ("alive", "stopping", "killed")


def is_over(state: State, turn: Turn) -> bool:
    tail = state.raw[turn.run]
    return tail.leg > turn.leg or (tail.leg == turn.leg and tail.is_closed)


def note_of(state: State, pod: int, run: int) -> int:
    """Return the leg of the pod's leg record; 0 if there is none."""
    return next((leg for who, what, leg in state.notes if (who, what) == (pod, run)), 0)


def noted(state: State, pod: int, run: int, leg: int) -> State:
    return forgotten(state, pod, run)._replace(
        notes=forgotten(state, pod, run).notes | {(pod, run, leg)}
    )


def forgotten(state: State, pod: int, run: int) -> State:
    return state._replace(notes=frozenset(note for note in state.notes if note[:2] != (pod, run)))


def others_forgotten(state: State, pod: int, run: int, leg: int) -> State:
    for other in range(len(state.pods)):
        if other != pod and note_of(state, other, run) <= leg:
            state = forgotten(state, other, run)
    return state


def left(state: State, pod: int, run: int, leg: int | None = None) -> State:
    return state._replace(
        queue=tuple(
            turn
            for turn in state.queue
            if (turn.pod, turn.run) != (pod, run) or leg not in (None, turn.leg)
        )
    )


def joined(state: State, mine: Turn) -> State:
    if mine in state.queue:
        return state
    waiting = sorted([*state.queue[1:], mine], key=_sequence)
    return state._replace(queue=(*state.queue[:1], *waiting))


def _sequence(turn: Turn) -> int:
    return turn.run if turn.leg == 1 else len(RUNS)


def turn_taken_over(state: State, mine: Turn) -> State:
    others = [turn for turn in state.queue if turn.run != mine.run or turn.leg >= mine.leg]
    places = [n for n, turn in enumerate(others) if turn[:2] == mine[:2]]
    queue = [turn for turn in others if turn[:2] != mine[:2]]
    queue.insert(places[0] if places else 1, mine)
    return state._replace(queue=tuple(queue))


def is_first(state: State, mine: Turn) -> bool:
    return mine not in state.queue or state.queue[0] == mine


def written(state: State, run: int, leg: int, kind: str, pod: int, called: bool = False) -> State:
    tail = state.raw[run]
    told = called or (tail.called and tail.leg == leg)
    return state._replace(raw=_with(state.raw, run, Tail(tail.version + 1, leg, kind, pod, told)))


def recorded(state: State, to: str, pod: int, *whose: int, is_known: bool = False) -> State:
    """Record the result of the sending.

    The record stays unchanged if it already has a result. Without `is_known`, the record also stays
    unchanged if another pod has the sending.
    """
    if state.sent[1] != "claimed" or not (is_known or state.sent[0] in (pod, *whose)):
        return state
    return state._replace(sent=(pod, to))


def _with(whole: tuple, n: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (*whole[:n], value, *whole[n + 1 :])


def doing(state: State, pod: int, run: int, op: Op | None) -> State:
    return state._replace(ops=_with(state.ops, pod, _with(state.ops[pod], run, op)))


def holding(state: State, pod: int, run: int, leg: Leg | None) -> State:
    return state._replace(legs=_with(state.legs, pod, _with(state.legs[pod], run, leg)))


def acknowledged(state: State, pod: int, run: int, op: Op) -> State:
    """End the operation, and acknowledge its command if it has one."""
    at = COMMANDS.get((op.kind, run))
    if at is not None:
        state = state._replace(commands=_with(state.commands, at, ("done", NOBODY)))
    return doing(state, pod, run, None)


# the steps

Steps = Iterator[tuple[str, State]]


class Protocol:
    """The moves from a state."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._after: dict[str, Callable[[State, int, int, Op], Steps]] = {
            "hold": self._notes,
            "join": self._joins,
            "open": self._opens,
            "note again": self._notes_again,
            "forget own": self._forgets_own,
            "refuse": self._refuses,
            "clear others": self._clears_others,
            "forget others": self._forgets_others,
            "leave other": self._leaves_for,
            "record other": self._records_for,
            "forget other": self._forgets_for,
            "take over: note": self._successor_notes,
            "take over: end": self._successor_ends,
            "take over: claim": self._successor_claims,
            "take over: turn": self._successor_takes_turn,
            "take over: record": self._successor_records,
            "take over: forget others": self._successor_forgets,
            "record": self._records_sent,
            "offered": self._offers,
            "asked": self._waits_for_the_taker,
            "open for nobody": self._opens_for_nobody,
            "end for nobody": self._ends_for_nobody,
        }

    def moves(self, state: State) -> Iterator[Move[State]]:
        """Yield every step that may happen next."""
        yield from self._faults(state)
        yield from self._others(state)
        nothing_done = state.claims == (NOBODY, NOBODY)
        for pod, is_at_work in enumerate(state.pods):
            if is_at_work not in ("alive", "stopping"):
                continue
            if nothing_done and "alive" in state.pods[:pod]:
                break  # the pods are equal, so only the first one begins
            for run in RUNS:
                who = f"{_name(pod)} run {run + 1}"
                op, leg = state.ops[pod][run], state.legs[pod][run]
                if op is not None:
                    steps = self._after[op.at](state, pod, run, op)
                elif is_at_work == "alive":
                    steps = self._takes(state, pod, run)
                else:
                    steps = iter(())
                for name, to in steps:
                    yield Move(name, who, to)
                if leg is not None:
                    for name, to in self._sees_through(state, pod, run, leg):
                        yield Move(name, f"{who} leg {leg.number}", to)
                    is_stopping = is_at_work == "stopping" and state.stops > 0
                    if is_stopping and op is None and leg.at in WORKING:
                        yield Move("hands over", who, self._released(state, pod, run), True)
                if op is not None and op.at == "asked":
                    yield Move("waits no longer", who, self._kept(state, pod, run, op), True)

    # faults of pods, and actions of others than connectors

    def _faults(self, state: State) -> Iterator[Move[State]]:
        for pod, is_at_work in enumerate(state.pods):
            if is_at_work in ("alive", "stopping") and state.kills:
                dead = _emptied(state, pod, "killed")._replace(kills=state.kills - 1)
                yield Move("is killed", _name(pod), dead, is_fault=True)
            if is_at_work == "alive" and state.sleeps:
                asleep = state._replace(
                    pods=_with(state.pods, pod, "asleep"), sleeps=state.sleeps - 1
                )
                yield Move("falls asleep, and its lease runs out", _name(pod), asleep, True)
            if is_at_work == "asleep":
                ops = tuple(op and op._replace(late=True) for op in state.ops[pod])
                woken = state._replace(
                    pods=_with(state.pods, pod, "alive"), ops=_with(state.ops, pod, ops)
                )
                yield Move("wakes up", _name(pod), woken, is_fault=True)
            if is_at_work == "alive" and state.stops > 1:
                stopping = state._replace(
                    pods=_with(state.pods, pod, "stopping"), stops=state.stops - 1
                )
                yield Move("is told to stop", _name(pod), stopping, is_fault=True)

    def _others(self, state: State) -> Iterator[Move[State]]:
        for pod, is_at_work in enumerate(state.pods):
            nothing = not any(state.ops[pod]) and not any(state.legs[pod])
            if is_at_work == "killed" or (is_at_work == "stopping" and nothing):
                gone = state._replace(pods=_with(state.pods, pod, "gone"))
                yield Move("its lease is over", _name(pod), gone)
        if state.raw[PAUSES].kind == "pause" and state.commands[2][0] == "none":
            decided = state._replace(commands=_with(state.commands, 2, ("ready", NOBODY)))
            yield Move("decides", "somebody", decided)
        if state.commands[3][0] == "none" and not state.raw[PAUSES].is_last_word:
            cancelled = state._replace(commands=_with(state.commands, 3, ("ready", NOBODY)))
            yield Move("cancels run 1", "somebody", cancelled, is_fault=True)

    # A pod takes a command, or a leg record of an ended connector.

    def _takes(self, state: State, pod: int, run: int) -> Steps:
        takes = {START: self._starts, CONTINUE: self._continues, CANCEL: self._cancels}
        for kind, take in takes.items():
            at = COMMANDS.get((kind, run))
            if at is None:
                continue
            command, by = state.commands[at]
            # A command that the pod does not acknowledge is delivered again.
            if command == "ready" or (command == "taken" and self._is_redelivered(state, at, by)):
                taken = state._replace(commands=_with(state.commands, at, ("taken", pod)))
                yield from take(taken, pod, run)
        for dead in range(len(state.pods)):
            if dead != pod and not lives(state, dead) and note_of(state, dead, run):
                yield from self._settles(state, pod, run, Op(REAP, "", dead))
        tail = state.raw[run]
        is_open = tail.pod != NOBODY and tail.kind and not tail.is_closed
        is_nobodys = is_open and not lives(state, tail.pod) and not note_of(state, tail.pod, run)
        if is_nobodys and self._rules.watches:
            yield "the watchdog finds it", self._taking_over(state, pod, run, Op(WATCH, ""), tail)

    def _is_redelivered(self, state: State, at: int, by: int) -> bool:
        if state.pods[by] != "alive":
            return True
        (kind, run) = next(key for key, place in COMMANDS.items() if place == at)
        op = state.ops[by][run]
        return op is None or op.kind != kind  # the command waits for its next attempt

    def _is_held(self, state: State, pod: int, tail: Tail) -> bool:
        """Return whether the run is held, as `Legs.is_held` does."""
        return tail.pod == pod or lives(state, tail.pod)

    # Commands.start

    def _starts(self, state: State, pod: int, run: int) -> Steps:
        op, tail, standing = Op(START, ""), state.raw[run], state.claims[run]
        if run > 0 and self._rules.keeps_the_order_of_starts and waits_to_begin(state, 0):
            return  # the command is tried again
        if standing == NOBODY:
            claimed = state._replace(claims=_with(state.claims, run, pod))
            yield Step.CLAIM.name, doing(claimed, pod, run, op._replace(at="hold"))
        elif standing == CANCELLED or state.legs[pod][run] is not None:
            yield "is cancelled, or ours", acknowledged(state, pod, run, op)
        elif standing != pod and lives(state, standing):
            if tail.kind:
                yield "is begun", acknowledged(state, pod, run, op)
        elif tail.kind:
            if tail.is_closed or self._is_held(state, pod, tail):
                yield "is held or over", acknowledged(state, pod, run, op)
            else:
                yield "is nobody's", self._taking_over(state, pod, run, op, tail)
        elif standing != pod:
            claimed = state._replace(claims=_with(state.claims, run, pod))
            to = op._replace(at=self._after_taking_over, other=standing, taken=True)
            yield Step.TAKE_OVER_CLAIM.name, doing(claimed, pod, run, to)
        else:
            yield "was ours", doing(state, pod, run, op._replace(at="hold", taken=True))

    @property
    def _after_taking_over(self) -> str:
        return "hold" if self._rules.clears_after_the_open else "leave other"

    # Commands.resume

    def _continues(self, state: State, pod: int, run: int) -> Steps:
        op, tail, (other, sent) = Op(CONTINUE, ""), state.raw[run], state.sent
        if other == NOBODY:
            claimed = state._replace(sent=(pod, "claimed"))
            yield Step.CLAIM_SENDING.name, doing(claimed, pod, run, op._replace(at="hold"))
        elif sent != "claimed":
            yield "is sent", acknowledged(state, pod, run, op)
        elif tail.leg >= 2:
            op = op._replace(other=other)
            if tail.is_closed or self._is_held(state, pod, tail):
                yield "is begun", doing(state, pod, run, op._replace(at="record"))
            else:
                yield "is nobody's", self._taking_over(state, pod, run, op, tail)
        elif other == pod:
            yield "was ours", doing(state, pod, run, op._replace(at="hold", taken=True))
        elif not lives(state, other):
            claimed = state._replace(sent=(pod, "claimed"))
            to = op._replace(at=self._after_taking_over, other=other, taken=True)
            yield Step.TAKE_OVER_SENDING.name, doing(claimed, pod, run, to)

    def _refuses(self, state: State, pod: int, run: int, op: Op) -> Steps:
        refused = recorded(state, "refused", pod)
        yield Step.RECORD_SENDING.name, acknowledged(refused, pod, run, op)

    def _records_sent(self, state: State, pod: int, run: int, op: Op) -> Steps:
        to = self._sent_by(state, pod, op.other)
        yield Step.RECORD_SENDING.name, acknowledged(to, pod, run, op)

    def _sent_by(self, state: State, pod: int, other: int) -> State:
        """Record the sending as `Takeover.record_sending` does."""
        tail = state.raw[PAUSES]
        if tail.leg < 2 or not tail.is_closed:
            return state
        return recorded(state, "done", pod, is_known=True)

    # LegOpener.open

    def _notes(self, state: State, pod: int, run: int, op: Op) -> Steps:
        if op.kind == CONTINUE:
            if state.raw[run].is_last_word:
                yield "has ended", doing(state, pod, run, op._replace(at="refuse"))
                return
            if state.raw[run].leg >= 2 and self._rules.looks_before_it_sends:
                yield "is sent meanwhile", doing(state, pod, run, None)
                return
            op = op._replace(seen=state.raw[run])
        if state.legs[pod][run] is None:  # otherwise it waits for the leg's end
            to = noted(state, pod, run, _leg_of(op))
            yield Step.NOTE.name, doing(to, pod, run, op._replace(at="join", late=False))

    def _joins(self, state: State, pod: int, run: int, op: Op) -> Steps:
        to = joined(state, Turn(run, _leg_of(op), pod))
        first = is_first(to, Turn(run, _leg_of(op), pod))
        yield Step.JOIN.name, doing(to, pod, run, op._replace(at="open", first=first))

    def _opens(self, state: State, pod: int, run: int, op: Op) -> Steps:
        number = _leg_of(op)
        if state.raw[run].version != op.seen.version:  # the fence refuses the `open`
            to = left(state, pod, run, number)
            yield Step.LEAVE.name, doing(to, pod, run, op._replace(at="forget own"))
            return
        to = written(state, run, number, "open", pod, called=op.first)
        yield Step.OPEN.name, self._opened(to, pod, run, op)

    def _opened(self, state: State, pod: int, run: int, op: Op) -> State:
        """Return the state with the operation's next step after the `open`."""
        if op.taken and self._rules.clears_after_the_open:
            return doing(state, pod, run, op._replace(at="clear others"))
        if op.late:
            return doing(state, pod, run, op._replace(at="note again"))
        return self._held(state, pod, run, op)

    def _clears_others(self, state: State, pod: int, run: int, op: Op) -> Steps:
        to = turn_taken_over(state, Turn(run, _leg_of(op), pod))
        yield Step.TAKE_OVER_TURN.name, doing(to, pod, run, op._replace(at="forget others"))

    def _forgets_others(self, state: State, pod: int, run: int, op: Op) -> Steps:
        to = others_forgotten(state, pod, run, _leg_of(op))
        yield _forgetting(state, to), self._opened(to, pod, run, op._replace(taken=False))

    def _notes_again(self, state: State, pod: int, run: int, op: Op) -> Steps:
        to = noted(state, pod, run, _leg_of(op))
        yield Step.NOTE.name, self._held(to, pod, run, op)

    def _held(self, state: State, pod: int, run: int, op: Op) -> State:
        at = "call" if op.first else "turn"
        leg = Leg(_leg_of(op), at, op.seen.version + 1)
        return acknowledged(holding(state, pod, run, leg), pod, run, op)

    def _forgets_own(self, state: State, pod: int, run: int, op: Op) -> Steps:
        to = forgotten(state, pod, run)
        yield Step.FORGET.name, doing(to, pod, run, None)  # the command is tried again

    # Takeover, Reaper

    def _settles(self, state: State, pod: int, run: int, op: Op) -> Steps:
        tail, dead = state.raw[run], op.other
        if tail.kind and not tail.is_closed:
            earlier = note_of(state, dead, run) < tail.leg
            if not (earlier and self._rules.reaper_clears_earlier_legs):
                if tail.pod == dead or not self._is_held(state, pod, tail):
                    yield "is nobody's", self._taking_over(state, pod, run, op, tail)
                return
        yield "is over", doing(state, pod, run, op._replace(at="leave other"))

    def _leaves_for(self, state: State, pod: int, run: int, op: Op) -> Steps:
        to = left(state, op.other, run)
        records = op.kind == REAP and note_of(state, op.other, run) == 2
        at = "record other" if records else "forget other"
        yield Step.LEAVE.name, doing(to, pod, run, op._replace(at=at))

    def _records_for(self, state: State, pod: int, run: int, op: Op) -> Steps:
        to = self._sent_by(state, pod, op.other)
        yield Step.RECORD_SENDING.name, doing(to, pod, run, op._replace(at="forget other"))

    def _forgets_for(self, state: State, pod: int, run: int, op: Op) -> Steps:
        """Delete only the leg record that the pod saw.

        A pod that wakes up may have written a new one.
        """
        to = state
        if op.kind != REAP or not awake(state, op.other):
            to = forgotten(state, op.other, run)
        then = None if op.kind == REAP else op._replace(at="hold")
        yield Step.FORGET_OTHER.name, doing(to, pod, run, then)

    def _taking_over(self, state: State, pod: int, run: int, op: Op, seen: Tail) -> State:
        """Continue after `seen` as `Takeover.take_over` does, if its holder noted the leg."""
        is_noted = note_of(state, seen.pod, run) == seen.leg
        at = "take over: note" if is_noted else "take over: end"
        return doing(state, pod, run, op._replace(at=at, seen=seen))

    def _successor_ends(self, state: State, pod: int, run: int, op: Op) -> Steps:
        to = state
        if state.raw[run].version == op.seen.version:
            to = written(state, run, op.seen.leg, "lost", pod)
        yield Step.LOST.name, self._not_taken_over(to, pod, run, op)

    def _successor_notes(self, state: State, pod: int, run: int, op: Op) -> Steps:
        leg = state.legs[pod][run]
        if leg is not None and self._rules.own_leg_first:
            if leg.at in WORKING:
                yield "lets go of its own", holding(state, pod, run, leg._replace(at="released"))
            return
        to = noted(state, pod, run, op.seen.leg)
        yield Step.NOTE.name, doing(to, pod, run, op._replace(at="take over: claim"))

    def _successor_claims(self, state: State, pod: int, run: int, op: Op) -> Steps:
        if state.raw[run].version == op.seen.version:
            to = written(state, run, op.seen.leg, "claim", pod)
            yield Step.CLAIM_LEG.name, doing(to, pod, run, op._replace(at="take over: turn"))
        else:
            to = forgotten(state, pod, run)
            yield Step.FORGET.name, self._not_taken_over(to, pod, run, op)

    def _successor_takes_turn(self, state: State, pod: int, run: int, op: Op) -> Steps:
        to = turn_taken_over(state, Turn(run, op.seen.leg, pod))
        at = "take over: record" if op.seen.leg == 2 else "take over: forget others"
        yield Step.TAKE_OVER_TURN.name, doing(to, pod, run, op._replace(at=at))

    def _successor_records(self, state: State, pod: int, run: int, op: Op) -> Steps:
        to = recorded(state, "claimed", pod, op.seen.pod)
        to = doing(to, pod, run, op._replace(at="take over: forget others"))
        yield Step.RECORD_SENDING.name, to

    def _successor_forgets(self, state: State, pod: int, run: int, op: Op) -> Steps:
        leg = state.legs[pod][run]
        if leg is not None:
            if leg.at in WORKING:
                yield "lets go of its own", holding(state, pod, run, leg._replace(at="released"))
            return
        to = others_forgotten(state, pod, run, op.seen.leg)
        name = _forgetting(state, to)
        called = op.seen.called and self._rules.open_is_found
        cancelled = op.kind == CANCEL or self._is_cancelled(state, run)
        mine = Leg(op.seen.leg, "back" if called else "turn", op.seen.version + 1, cancelled)
        to = holding(to, pod, run, mine)
        if op.kind == CONTINUE:
            yield name, doing(to, pod, run, op._replace(at="record"))
        elif op.kind == CANCEL:
            yield name, doing(to, pod, run, None)
        else:
            yield name, acknowledged(to, pod, run, op)

    def _is_cancelled(self, state: State, run: int) -> bool:
        at = COMMANDS.get((CANCEL, run))
        return at is not None and state.commands[at][0] in ("ready", "taken")

    def _not_taken_over(self, state: State, pod: int, run: int, op: Op) -> State:
        """Return the state after `take_over` returned False."""
        if op.kind == START:
            return acknowledged(state, pod, run, op)
        if op.kind == CONTINUE:
            return doing(state, pod, run, op._replace(at="record"))
        tail = state.raw[run]
        if op.kind == REAP and (not tail.kind or tail.is_closed):
            return doing(state, pod, run, op._replace(at="leave other"))
        return doing(state, pod, run, None)

    # Handover._offer, Handover._take

    def _released(self, state: State, pod: int, run: int) -> State:
        """Return the state in which the pod offers its leg to a peer.

        The records of the leg stay, because the peer needs them.
        """
        once = holding(state, pod, run, None)._replace(stops=state.stops - 1)
        return doing(once, pod, run, Op(OFFER, "offered"))

    def _offers(self, state: State, pod: int, run: int, op: Op) -> Steps:
        tail, others = state.raw[run], [n for n, at in enumerate(state.pods) if at == "alive"]
        for other in others:
            if state.ops[other][run] is None and not tail.is_closed:
                taking = self._taking_over(state, other, run, Op(TAKE, ""), tail)
                yield "asks a peer", doing(taking, pod, run, op._replace(at="asked", other=other))
        if not others or tail.is_closed:
            yield "finds no peer", self._kept(state, pod, run, op)

    def _waits_for_the_taker(self, state: State, pod: int, run: int, op: Op) -> Steps:
        taking = state.ops[op.other][run]
        if not awake(state, op.other) or taking is None or taking.kind != TAKE:
            yield "is answered, or nobody is there", self._kept(state, pod, run, op)

    def _kept(self, state: State, pod: int, run: int, op: Op) -> State:
        """Continue the leg in this pod if the leg still belongs to it."""
        tail = state.raw[run]
        if tail.is_closed or tail.pod != pod:
            return doing(state, pod, run, None)
        return self._taking_over(state, pod, run, op, tail)

    # Commands.cancel

    def _cancels(self, state: State, pod: int, run: int) -> Steps:
        op, tail = Op(CANCEL, ""), state.raw[run]
        for holder, legs in enumerate(state.legs):
            leg = legs[run]
            if leg is not None and leg.at in LISTENING:
                if state.pods[holder] in ("alive", "stopping") and not leg.cancelled:
                    told = holding(state, holder, run, leg._replace(cancelled=True))
                    yield "tells the holder", told
                if tail.is_last_word:
                    yield "is over", acknowledged(state, pod, run, op)
                return  # the cancel is repeated until the leg has ended
        if not tail.kind:
            standing = state.claims[run]
            if standing in (NOBODY, CANCELLED):
                claimed = state._replace(claims=_with(state.claims, run, CANCELLED))
                to = doing(claimed, pod, run, op._replace(at="open for nobody"))
                yield Step.CLAIM.name, to
            elif standing != pod and not lives(state, standing):
                claimed = state._replace(claims=_with(state.claims, run, CANCELLED))
                to = doing(claimed, pod, run, op._replace(at="open for nobody"))
                yield Step.TAKE_OVER_CLAIM.name, to
        elif tail.is_closed:
            to = state
            if not tail.is_last_word:
                to = written(state, run, tail.leg, "event", pod)
            yield Step.EVENT.name, acknowledged(to, pod, run, op)
        elif state.claims[run] == CANCELLED:
            to = written(state, run, tail.leg, "end", pod)
            yield Step.END.name, acknowledged(to, pod, run, op)
        elif not (tail.pod == pod or lives(state, tail.pod)):
            yield "is nobody's", self._taking_over(state, pod, run, op, tail)

    def _opens_for_nobody(self, state: State, pod: int, run: int, op: Op) -> Steps:
        if state.raw[run].version:
            yield "is refused", doing(state, pod, run, None)
        else:
            to = written(state, run, 1, "open", pod)
            at = op._replace(at="end for nobody", seen=to.raw[run])
            yield Step.OPEN.name, doing(to, pod, run, at)

    def _ends_for_nobody(self, state: State, pod: int, run: int, op: Op) -> Steps:
        if state.raw[run].version == op.seen.version:
            to = written(state, run, 1, "event", pod)
            yield Step.EVENT.name, acknowledged(to, pod, run, op)
        else:
            yield "is refused", doing(state, pod, run, None)

    # Leg.run, Legs._let_go

    def _sees_through(self, state: State, pod: int, run: int, leg: Leg) -> Steps:
        if leg.at not in WORKING:
            yield from self._ends_leg(state, pod, run, leg)
            return
        ours = state.raw[run].version == leg.seen
        mine = Turn(run, leg.number, pod)
        if ours and leg.cancelled:
            to = written(state, run, leg.number, "end", pod)
            yield Step.END.name, self._next(to, pod, run, leg, "leave")
        elif leg.at == "turn" and not is_first(state, mine):
            is_same_leg = state.queue[0][:2] == mine[:2] and self._rules.passes_over_the_same_leg
            if is_same_leg or self._is_abandoned(state, state.queue[0]):
                yield Step.PASS_OVER.name, state._replace(queue=state.queue[1:])
        elif not ours:
            yield from self._lets_go(state, pod, run, leg, "gone: ")
        elif leg.at == "turn":
            to = written(state, run, leg.number, "claim", pod, called=True)
            after = leg._replace(at="call", seen=leg.seen + 1)
            yield Step.CLAIM_LEG.name, holding(to, pod, run, after)
        elif leg.at == "call":
            calls = list(state.calls[run])
            calls[leg.number - 1] += 1
            to = state._replace(calls=_with(state.calls, run, tuple(calls)))
            yield "calls the upstream", self._next(to, pod, run, leg, "end")
        else:
            pauses = (run, leg.number) == (PAUSES, 1)
            to = written(state, run, leg.number, "pause" if pauses else "end", pod)
            yield Step.END.name, self._next(to, pod, run, leg, "leave")
            if leg.at == "back":
                to = written(state, run, leg.number, "lost", pod)
                yield Step.LOST.name, self._next(to, pod, run, leg, "leave")

    def _ends_leg(self, state: State, pod: int, run: int, leg: Leg) -> Steps:
        """End a leg as `Legs._let_go` does."""
        if leg.at == "released":
            yield "has let go", holding(state, pod, run, None)
        elif leg.at.endswith("leave"):
            how = leg.at.removesuffix("leave")
            if leg.cancelled and not how and state.raw[run].kind == "pause":
                # The cancel had no effect, because the leg had just ended in a pause.
                to = written(state, run, leg.number, "event", pod)
                yield Step.EVENT.name, holding(to, pod, run, leg)
            else:
                yield from self._lets_go(state, pod, run, leg, how)
        elif leg.at == "record":
            to = recorded(state, "done", pod, is_known=True)
            at = "forget" if self._rules.records_before_it_forgets else "over"
            yield Step.RECORD_SENDING.name, self._next(to, pod, run, leg, at)
        else:
            to = forgotten(state, pod, run)
            records = leg.number == 2 and leg.at == "forget"
            at = "over" if self._rules.records_before_it_forgets or not records else "record"
            yield Step.FORGET.name, self._next(to, pod, run, leg, at)

    def _next(self, state: State, pod: int, run: int, leg: Leg, at: str) -> State:
        return holding(state, pod, run, None if at == "over" else leg._replace(at=at))

    def _lets_go(self, state: State, pod: int, run: int, leg: Leg, how: str) -> Steps:
        to = left(state, pod, run, leg.number if self._rules.leaves_by_leg else None)
        records = leg.number == 2 and not how and self._rules.records_before_it_forgets
        at = "record" if records else f"{how}forget"
        yield Step.LEAVE.name, self._next(to, pod, run, leg, at)

    def _is_abandoned(self, state: State, first: Turn) -> bool:
        """Return whether a turn is abandoned, as `SessionQueue._is_abandoned` does."""
        if self._rules.waiting_looks_at_raw and is_over(state, first):
            return True
        return not lives(state, first.pod) and not note_of(state, first.pod, first.run)


WORKING = ("turn", "call", "end", "back")
LISTENING = WORKING  # to a cancel


def _forgetting(before: State, after: State) -> str:
    return "nobody else has noted it" if after == before else Step.FORGET_OTHER.name


def _leg_of(op: Op) -> int:
    return 1 if op.kind == START else 2


def _emptied(state: State, pod: int, to: str) -> State:
    return state._replace(
        pods=_with(state.pods, pod, to),
        ops=_with(state.ops, pod, (None, None)),
        legs=_with(state.legs, pod, (None, None)),
    )


def _name(pod: int) -> str:
    return "ABC"[pod]
