"""Reading PDDL problems and grounding goals, against a direct evaluation of the formula."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.envs.household.goals import FLUENTS, Atom, Grounder
from actors.envs.household.pddl import Formula, Problem, parse, parse_formula, render
from protos.errors import DataError

TEXT = """
; a comment with (parentheses
(define (problem P) (:domain alfred)
 (:objects agent1 - agent Mug_bar_1 Mug_bar_2 - object Shelf_bar_1 - receptacle L1 L2 - location MugType - otype)
 (:init (= (total-cost) 0) (= (distance L1 L2) 3)
   (atLocation agent1 L1) (objectType Mug_bar_1 MugType) (inReceptacle Mug_bar_1 Shelf_bar_1))
 (:goal (and (exists (?o - object ?r - receptacle) (and (inReceptacle ?o ?r) (not (= ?o Mug_bar_2))))))
 (:metric minimize (total-cost)))
"""


def test_a_problem_is_read_in_lower_case_without_numbers() -> None:
    problem = parse(TEXT)
    assert problem.objects["mug_bar_2"] == "object"
    assert problem.objects["shelf_bar_1"] == "receptacle"
    assert problem.facts == {
        "atlocation": [("agent1", "l1")],
        "objecttype": [("mug_bar_1", "mugtype")],
        "inreceptacle": [("mug_bar_1", "shelf_bar_1")],
    }
    assert parse(render(problem)) == problem


@pytest.mark.parametrize(
    "text",
    [
        "",
        "word",
        "(define",
        "(define))",
        "(define (problem P))",
        TEXT.replace("(:goal", "(:gaol"),
        TEXT.replace("(atLocation agent1 L1)", ""),
        TEXT.replace("(atLocation agent1 L1)", "(atLocation agent1)"),
        TEXT.replace("(not (= ?o Mug_bar_2))", "((x))"),
    ],
)
def test_what_is_no_problem_is_a_clear_error(text: str) -> None:
    with pytest.raises(DataError, match=r"PDDL|alfred"):
        parse(text)


OBJECTS = {"o1": "object", "o2": "object", "r1": "receptacle", "r2": "receptacle"}
STATIC = {
    "objecttype": [("o1", "mugtype"), ("o2", "cuptype")],
    "receptacletype": [("r1", "shelftype"), ("r2", "bedtype")],
}
CHANGING: list[Atom] = [
    *(("inreceptacle", (o, r)) for o in ("o1", "o2") for r in ("r1", "r2")),
    *(("isclean", (o,)) for o in ("o1", "o2")),
]


def holds(formula: Formula, binding: Mapping[str, str], true: set[Atom]) -> bool:
    """The meaning of a formula, by the book."""
    match formula:
        case ("atom", "=", (left, right)):
            return binding.get(left, left) == binding.get(right, right)
        case ("atom", predicate, arguments):
            return (predicate, tuple(binding.get(a, a) for a in arguments)) in true
        case ("not", part):
            return not holds(part, binding, true)
        case ("and", *parts):
            return all(holds(part, binding, true) for part in parts)
        case ("or", *parts):
            return any(holds(part, binding, true) for part in parts)
    quantifier, variables, body = formula
    domains = [[name for name, kind in OBJECTS.items() if kind == wanted] for _, wanted in variables]
    names = [name for name, _ in variables]
    cases = (
        holds(body, {**binding, **dict(zip(names, values, strict=True))}, true)
        for values in itertools.product(*domains)
    )
    return any(cases) if quantifier == "exists" else all(cases)


def formulas() -> st.SearchStrategy[Any]:
    o, r = st.sampled_from(["?o", "?p", "o1", "o2"]), st.sampled_from(["?r", "r1", "r2"])
    atoms = st.one_of(
        st.tuples(st.just("inreceptacle"), st.tuples(o, r)),
        st.tuples(st.just("isclean"), st.tuples(o)),
        st.tuples(st.just("objecttype"), st.tuples(o, st.sampled_from(["mugtype", "cuptype"]))),
        st.tuples(st.just("receptacletype"), st.tuples(r, st.sampled_from(["shelftype", "bedtype"]))),
        st.tuples(st.just("="), st.tuples(o, o)),
    ).map(lambda atom: ("atom", *atom))
    variables = st.sampled_from(
        [(("?o", "object"),), (("?p", "object"),), (("?r", "receptacle"),), (("?o", "object"), ("?r", "receptacle"))]
    )
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(st.just("not"), inner),
            st.lists(inner, max_size=3).map(lambda parts: ("and", *parts)),
            st.lists(inner, max_size=3).map(lambda parts: ("or", *parts)),
            st.tuples(st.sampled_from(["exists", "forall"]), variables, inner),
        ),
        max_leaves=6,
    ).map(lambda body: ("exists", (("?o", "object"), ("?p", "object"), ("?r", "receptacle")), body))


@settings(max_examples=250, deadline=None)
@given(formula=formulas(), chosen=st.sets(st.sampled_from(CHANGING)))
def test_a_grounded_goal_means_what_the_formula_means(formula: Formula, chosen: set[Atom]) -> None:
    static = {(predicate, row) for predicate, rows in STATIC.items() for row in rows}
    grounder = Grounder(Problem(OBJECTS, STATIC, formula), frozen=lambda atom: False)
    options = grounder.ground(formula, {})
    assert all(atom[0] in FLUENTS for option in options for _, atom in option)
    satisfied = any(all((atom in chosen) == positive for positive, atom in option) for option in options)
    assert satisfied == holds(formula, {}, static | chosen)


def test_facts_that_never_change_are_settled_at_once() -> None:
    formula = parse_formula("(exists (?o - object ?r - receptacle) (and (objectType ?o mugType) (inReceptacle ?o ?r)))")
    facts = {**STATIC, "inreceptacle": [("o1", "r2")]}
    grounder = Grounder(Problem(OBJECTS, facts, formula), frozen=lambda atom: True)
    assert grounder.ground(formula, {}) == [frozenset()]


def test_bookkeeping_facts_cannot_be_goals() -> None:
    formula = parse_formula("(checked o1)")
    with pytest.raises(DataError, match="checked"):
        Grounder(Problem(OBJECTS, STATIC, formula), frozen=lambda atom: False).ground(formula, {})
