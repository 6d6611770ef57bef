"""Goals: a quantified PDDL formula over one problem becomes a disjunction of conjunctions of facts that can change."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product

from actors.envs.household.pddl import Formula, Problem
from protos.errors import DataError

Atom = tuple[str, tuple[str, ...]]  # predicate, arguments
Literal = tuple[bool, Atom]  # positive?
Conjunction = frozenset[Literal]
Binding = Mapping[str, str]
Variables = Sequence[tuple[str, str]]  # (name, type)

TRUE: list[Conjunction] = [frozenset()]
FALSE: list[Conjunction] = []

# The predicates that some action changes. (`checked` is changed too; it serves the engine's bookkeeping alone.)
_PROPERTIES = ("isclean", "ishot", "iscool", "issliced", "istoggled", "ison")
FLUENTS = frozenset(["inreceptacle", "objectatlocation", "atlocation", "opened", "holds", "holdsany", *_PROPERTIES])


class Grounder:
    """Grounds formulas over one problem.

    `frozen(atom)` says of a fluent that this instance of it keeps its first truth in every play: a lamp that nobody can
    lift stays where it is. Conjunctions that could never hold are left out.
    """

    def __init__(self, problem: Problem, frozen: Callable[[Atom], bool]) -> None:
        self._frozen = frozen
        self._types = problem.objects
        self._facts = problem.facts

    def ground(self, formula: Formula, binding: Binding, positive: bool = True) -> list[Conjunction]:
        """Disjunctive normal form of `formula` (of its negation, where not `positive`) under `binding`."""
        match formula:
            case ("atom", predicate, arguments):
                return self._atom((predicate, tuple(binding.get(a, a) for a in arguments)), positive)
            case ("not", part):
                return self.ground(part, binding, not positive)
            case ("and" | "or" as connective, *parts):
                cases = (self.ground(part, binding, positive) for part in parts)
                return _conjoin(cases) if (connective == "and") == positive else _disjoin(cases)
            case ("exists", variables, body) if positive:
                return _disjoin(self.ground(body, each) for each in self._witnesses(variables, body, binding))
            case ("exists" | "forall" as quantifier, variables, body):
                cases = (self.ground(body, each, positive) for each in self._every(variables, binding))
                return _conjoin(cases) if (quantifier == "forall") == positive else _disjoin(cases)
        raise AssertionError(formula)

    def _atom(self, atom: Atom, positive: bool) -> list[Conjunction]:
        predicate, arguments = atom
        if predicate == "=":
            return TRUE if (arguments[0] == arguments[1]) == positive else FALSE
        if predicate == "checked":
            raise DataError("PDDL goal: it asks for (checked ...), which this game does not keep")
        if predicate not in FLUENTS or self._frozen(atom):
            return TRUE if (arguments in self._facts.get(predicate, ())) == positive else FALSE
        return [frozenset([(positive, atom)])]

    def _every(self, variables: Variables, binding: Binding) -> Iterator[Binding]:
        names = [name for name, _ in variables]
        domains = [[name for name, kind in self._types.items() if kind == wanted] for _, wanted in variables]
        for values in product(*domains):
            yield {**binding, **dict(zip(names, values, strict=True))}

    def _witnesses(self, variables: Variables, body: Formula, binding: Binding) -> Iterator[Binding]:
        """Bindings of `variables` that satisfy the unchanging atoms of the conjunction `body`: a join over their facts."""
        if body[0] == "exists":  # its atoms narrow down the outer variables too
            return self._witnesses((*variables, *body[1]), body[2], binding)
        types = dict(variables)
        parts = body[1:] if body[0] == "and" else (body,)
        atoms = [p[1:] for p in parts if p[0] == "atom" and p[1] in self._facts and p[1] not in FLUENTS]
        outer = {name: value for name, value in binding.items() if name not in types}
        return self._complete(variables, self._join(atoms, outer, types))

    def _complete(self, variables: Variables, bindings: Iterator[Binding]) -> Iterator[Binding]:
        for binding in bindings:
            yield from self._every([(name, kind) for name, kind in variables if name not in binding], binding)

    def _join(self, atoms: Sequence[Atom], binding: Binding, types: Mapping[str, str]) -> Iterator[Binding]:
        if not atoms:
            yield binding
            return
        predicate, arguments = atoms[0]
        for row in self._facts[predicate]:
            extended = self._match(arguments, row, binding, types)
            if extended is not None:
                yield from self._join(atoms[1:], extended, types)

    def _match(
        self, arguments: tuple[str, ...], row: tuple[str, ...], binding: Binding, types: Mapping[str, str]
    ) -> Binding | None:
        extended = dict(binding)
        for argument, value in zip(arguments, row, strict=True):
            if not argument.startswith("?"):
                if argument != value:
                    return None
            elif argument not in extended:
                if self._types.get(value) != types.get(argument):
                    return None
                extended[argument] = value
            elif extended[argument] != value:
                return None
        return extended


def _disjoin(cases: Iterable[list[Conjunction]]) -> list[Conjunction]:
    return list(dict.fromkeys(conjunction for case in cases for conjunction in case))


def _conjoin(cases: Iterable[list[Conjunction]]) -> list[Conjunction]:
    """Every way to satisfy all cases at once, less the contradictions."""
    result = TRUE
    for case in cases:
        unions = (left | right for left in result for right in case)
        result = list(dict.fromkeys(u for u in unions if not any((not positive, atom) in u for positive, atom in u)))
    return result
