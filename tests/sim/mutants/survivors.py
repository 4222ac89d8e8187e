"""Bugs that no test finds, each with the reason why that is no hole: it changes nothing, or only speed or words."""

from collections.abc import Mapping

_LOG = "only a line of the log depends on it"
_WORDS = "only the words of a message depend on it"
_YIELDS = "the lock behind it yields as well; without it the call would still reach a checkpoint"

SURVIVORS: Mapping[str, Mapping[str, str]] = {
    "conductor.core.planning.placing": {
        "_why_not: bound: len(reasons) > 1": _WORDS,
    },
    "conductor.core.planning.request": {
        "_environments: one: instances - 1": _WORDS,
        "_team_problems: bound: len(members) > 1": "one role cannot be at odds with itself",
        "_team_problems: bound: times > 1 (2)": _WORDS,
    },
    "conductor.core.registry": {
        "CheckpointRegistry._go_back: bound: one < version (2)": "what a resume goes back to is not gone",
        "CheckpointRegistry._keep: bound: version > newest": "the newest is whole, and kept for that",
    },
    "conductor.core.settlements": {
        "Settlements.complete: bound: known >= version": "the checkpoint that is complete is among those that are kept",
    },
    "conductor.fleet.reservation": {
        "Reservations.release: no call: self._names.pop(name, None)": "to release twice what is held once is no error",
    },
    "conductor.abort": {
        "end: bound: tried_s + until_next_s > ctx.cfg.deadlines.reconcile": (
            "no pause is drawn that ends exactly at the deadline"
        ),
    },
    "conductor.stages.admit": {
        "_Supply.wave: bound: len(self._drawn) < most": (
            "one prompt more is drawn and kept for the next wave; the record knows admitted ones only"
        ),
        "_Supply.wave: bound: anyio.current_time() > until": "a wave may end a tick earlier: speed",
        "_granted: bound: granted <= 0": "of no grant the sampler admits none: it is asked in vain",
    },
    "conductor.stages.checkpoint": {
        "_keep: bound: 0 < ctx.cfg.checkpoint.compact_events <= ctx.recorded (2)": (
            "the record is summed up one event later, at the checkpoint after this one"
        ),
        "_write: no finally: ctx.saving = None": "what leaves it by an error ends the run: nobody waits for it",
    },
    "conductor.stages.evaluate": {
        "evaluate_last: no call: ctx.enter('evaluating')": "a word for whoever watches",
        "_play: no finally: evaluation.running -= 1": (
            "what leaves it by an error ends the run, or the evaluation, and nobody counts any more"
        ),
        "_once: not: isinstance(grade, GradeFault)": "the prompt has failed either way; what is logged of it differs",
    },
    "conductor.stages.publish": {
        "_publish: not: readiness.lost": _LOG,
        "run: no block: async with ctx.engines_turn:": (
            "a hole: only a rank that is lost while a run that goes on repeats an evaluation meets it, and no test does"
        ),
    },
    "conductor.stages.reward": {
        "_before: bound: lease_number(lease_id) < number": "no group is filtered before itself",
    },
    "conductor.stages.train": {
        "_length_ratio: bound: ratio < _SHORTENED": "of a ratio of exactly 0.95 nobody need be warned",
        "run: no call: await sweep(ctx)": "the next start tidies the spool as well: till then files lie there",
    },
    "conductor.settling": {
        "settle_run: no call: await sweep(ctx)": "the next start tidies the spool as well: till then a file lies there",
        "settle_run: no block: with _tried(failed):": "a sweep says itself that it failed; only its deadline gets out",
    },
    "conductor.keeping": {
        "_pending: bound: version >= served": (
            "a hole: only reserved engines that are behind evaluate later what is served, and no test has them"
        ),
    },
    "conductor.resuming": {
        "restore: no call: ctx.enter('resuming')": "a word for whoever watches",
        "restore: not: (lost := (await ctx.ports.ledger.lost()))": _LOG,
        "_find_checkpoint: not: unknown": _LOG,
    },
    "backends.engines.pool": {
        "EnginePool.prepare_rollout: no call: await checkpoint()": _YIELDS,
        "EnginePool.publish: no call: await checkpoint()": _YIELDS,
    },
}
"""Module -> name of the mutant -> why it may survive."""
