"""What is looked up without a gradient before the first step of an update: values, reference and proximal log-probabilities.

Nothing is computed that no advantage estimator and no term asks for, and nothing twice.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from learner.batch import action_tokens
from learner.core import BoolArray, FloatArray, Need, Rows
from learner.network import Network
from learner.reference import Reference
from learner.scoring import Fixed, Term, prefix_values, score
from learner.timing import Stopwatch


class LookUps:
    """The networks that answer, as they stand when they are asked."""

    def __init__(self, policy: Network, critic: Network, reference: Reference | None, micro_batch_tokens: int) -> None:
        self._policy, self._critic, self._reference = policy, critic, reference
        self._budget = micro_batch_tokens

    def fill(self, rows: Rows, needs: frozenset[Need]) -> Rows:
        """`rows` with what an advantage estimator `needs`.

        reference: at action tokens. values: before each action token, and of each whole row, with which a truncated episode
        ends.
        """
        if "reference" in needs:
            rows = replace(rows, reference=self._reference_log_probs(rows, action_tokens(rows)))
        if "values" in needs:
            wanted = np.append(action_tokens(rows)[1:], False)
            wanted[rows.row_start[1:] - 1] = True
            rows = replace(rows, values=prefix_values(self._critic, rows, wanted, self._budget))
        return rows

    def fixed(self, terms: Sequence[Term], watch: Stopwatch) -> dict[int, Fixed]:
        """By the identity of the rows, what their terms read: each of the tokens that such terms score."""
        references, proximals = {}, {}
        for rows, wanted in _wanted(terms, "reference"):
            with watch("reference"):
                references[id(rows)] = self._reference_log_probs(rows, wanted)
        for rows, wanted in _wanted(terms, "proximal"):
            with watch("proximal"):
                proximals[id(rows)] = score(self._policy, rows, wanted, self._budget)
        return {key: Fixed(references.get(key), proximals.get(key)) for key in references | proximals}

    def _reference_log_probs(self, rows: Rows, wanted: BoolArray) -> FloatArray:
        """(N,) of the `wanted` tokens; those of action tokens may have been found for the estimator before."""
        assert self._reference is not None, "a phase has a reference policy where a term or its estimator needs it"
        if rows.reference is not None:
            wanted = wanted & ~action_tokens(rows)
        with self._reference.swapped_in():
            found = score(self._policy, rows, wanted, self._budget)
        return found if rows.reference is None else rows.reference + found


def _wanted(terms: Sequence[Term], need: Need) -> list[tuple[Rows, BoolArray]]:
    """Each `Rows` on which a term has this need, with a mask (N,) of the tokens that such terms score."""
    masks: dict[int, tuple[Rows, BoolArray]] = {}
    for term in terms:
        if need in term.objective.needs:
            rows, scored = term.stream.rows, term.stream.weights != 0
            masks[id(rows)] = rows, scored | masks[id(rows)][1] if id(rows) in masks else scored
    return list(masks.values())
