"""PDDL problems of the alfred domain: read them, and write our own for ALFWorld's engine."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protos.errors import DataError

# ("and" | "or", f, ...)  ("not", f)  ("exists" | "forall", ((variable, type), ...), f)  ("atom", predicate, (argument, ...))
Formula = tuple[Any, ...]
Facts = Mapping[str, Sequence[tuple[str, ...]]]

# Arguments of the predicates that the rules read.
_ARITY = {
    1: """openable opened isreceptacleobject holdsany isclean cleanable ishot heatable iscool coolable pickupable toggleable
    ison istoggled sliceable issliced""",
    2: """atlocation receptacleatlocation objectatlocation inreceptacle inreceptacleobject receptacletype cancontain objecttype
    holds""",
}
ARITY = {predicate: arity for arity, predicates in _ARITY.items() for predicate in predicates.split()}

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")


@dataclass(frozen=True, slots=True)
class Problem:
    """One instance, in lower case as PDDL does not tell cases apart."""

    objects: Mapping[str, str]  # id -> type
    facts: Facts  # predicate -> argument tuples, true at the start
    goal: Formula


def parse(text: str) -> Problem:
    """Read a problem file. Numeric fluents (costs, distances) are left out: no rule of the game reads them."""
    objects: dict[str, str] = {}
    facts: dict[str, list[tuple[str, ...]]] = {}
    goal: Formula | None = None
    for section in _expression(text):
        match section:
            case [":objects", *names]:
                objects.update(_typed(names))
            case [":init", *atoms]:
                for atom in atoms:
                    if isinstance(atom, list) and atom and all(isinstance(word, str) for word in atom):
                        facts.setdefault(atom[0], []).append(tuple(atom[1:]))
            case [":goal", condition]:
                goal = _formula(condition)
    facts.pop("=", None)
    for predicate, rows in facts.items():
        if any(len(row) != ARITY.get(predicate, len(row)) for row in rows):
            raise DataError(f"PDDL: ({predicate} ...) takes {ARITY[predicate]} arguments")
    if not objects or goal is None or "atlocation" not in facts:
        raise DataError("not a problem of the alfred domain: it needs :objects, a :goal and an (atLocation agent ...)")
    return Problem(objects, facts, goal)


def parse_formula(text: str) -> Formula:
    return _formula(_expression(text))


def render(problem: Problem) -> str:
    """The problem as PDDL text that ALFWorld's engine plays."""
    objects = "\n".join(f"{name} - {kind}" for name, kind in problem.objects.items())
    facts = "\n".join(
        f"({' '.join([predicate, *arguments])})" for predicate, rows in problem.facts.items() for arguments in rows
    )
    goal = _render_formula(problem.goal)
    return (
        f"(define (problem plan)\n(:domain alfred)\n(:objects\n{objects}\n)\n"
        f"(:init\n(= (total-cost) 0)\n{facts}\n)\n(:goal {goal})\n)\n"
    )


def _expression(text: str) -> list[Any]:
    """The s-expression in `text` as nested lists of lower-case words."""
    stack: list[list[Any]] = [[]]
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise DataError("PDDL: a parenthesis is closed that was never opened")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if len(stack) != 1 or not stack[0] or not isinstance(stack[0][0], list):
        raise DataError("PDDL: parentheses do not match")
    return stack[0][0]


def _typed(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """`a b - object c - agent` as (name, type) pairs."""
    names: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "-":
            kind = next(rest, "object")
            yield from ((name, kind) for name in names)
            names = []
        else:
            names.append(word)
    yield from ((name, "object") for name in names)


def _formula(node: list[Any]) -> Formula:
    match node:
        case ["and" | "or" as connective, *parts]:
            return (connective, *map(_formula, parts))
        case ["not", part]:
            return ("not", _formula(part))
        case ["exists" | "forall" as quantifier, list(variables), body]:
            return (quantifier, tuple(_typed(variables)), _formula(body))
        case []:
            return ("and",)
        case [str(predicate), *arguments] if all(isinstance(argument, str) for argument in arguments):
            return ("atom", predicate, tuple(arguments))
    raise DataError(f"PDDL goal: cannot read {node}")


def _render_formula(formula: Formula) -> str:
    match formula:
        case ("atom", predicate, arguments):
            return f"({' '.join([predicate, *arguments])})"
        case ("exists" | "forall" as quantifier, variables, body):
            typed = " ".join(f"{name} - {kind}" for name, kind in variables)
            return f"({quantifier} ({typed}) {_render_formula(body)})"
    connective, *parts = formula
    return f"({' '.join([connective, *map(_render_formula, parts)])})"
