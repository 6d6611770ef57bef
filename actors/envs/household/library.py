"""ALFWorld's goal library: what each task type asks for in PDDL, and the sentences that say so.

The goals and templates are those of alfworld.gen.goal_library (MIT licence, Mohit Shridhar and others).
"""

from dataclasses import dataclass
from typing import Literal

TaskType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]

# In {0}: what else must hold of the object ?o beside type and place.
_PLACE = """(and (exists (?r - receptacle) (exists (?o - object) (and
    {0} (objectType ?o {{object}}Type) (receptacleType ?r {{destination}}Type) (inReceptacle ?o ?r)))))"""
_PLACE_TWO = """(and (exists (?r - receptacle) (exists (?o1 - object) (and
    (objectType ?o1 {object}Type) (receptacleType ?r {destination}Type) (inReceptacle ?o1 ?r)
    (exists (?o2 - object) (and
        (not (= ?o1 ?o2)) (objectType ?o2 {object}Type) (receptacleType ?r {destination}Type) (inReceptacle ?o2 ?r)))))))"""
_LIGHT = """(and
    (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and
        (objectType ?ot {lamp}Type) (toggleable ?ot) (isToggled ?ot)
        (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
    (exists (?o - object ?a - agent) (and (objectType ?o {object}Type) (holds ?a ?o))))"""


@dataclass(frozen=True, slots=True)
class Goal:
    """A task type: the PDDL goal over {object}, {destination} and {lamp}, its sentences, and those about a sliced object."""

    pddl: str
    templates: tuple[str, str]
    sliced: tuple[str, str]


GOALS: dict[str, Goal] = {
    "pick_and_place_simple": Goal(
        _PLACE.format(""),
        ("put a {object} in {destination}", "put some {object} on {destination}"),
        ("slice {object} and put in {destination}", "put sliced {object} in {destination}"),
    ),
    "look_at_obj_in_light": Goal(
        _LIGHT,
        ("look at {object} under the {lamp}", "examine the {object} with the {lamp}"),
        ("look at sliced {object} under the {lamp}", "examine the sliced {object} with the {lamp}"),
    ),
    "pick_clean_then_place_in_recep": Goal(
        _PLACE.format("(cleanable ?o) (isClean ?o)"),
        ("put a clean {object} in {destination}", "clean some {object} and put it in {destination}"),
        ("put a clean slice of {object} in {destination}", "clean some sliced {object} and put it in {destination}"),
    ),
    "pick_heat_then_place_in_recep": Goal(
        _PLACE.format("(heatable ?o) (isHot ?o)"),
        ("put a hot {object} in {destination}", "heat some {object} and put it in {destination}"),
        ("put a hot slice of {object} in {destination}", "heat some sliced {object} and put it in {destination}"),
    ),
    "pick_cool_then_place_in_recep": Goal(
        _PLACE.format("(coolable ?o) (isCool ?o)"),
        ("put a cool {object} in {destination}", "cool some {object} and put it in {destination}"),
        ("put a cool slice of {object} in {destination}", "cool some sliced {object} and put it in {destination}"),
    ),
    "pick_two_obj_and_place": Goal(
        _PLACE_TWO,
        ("put two {object} in {destination}", "find two {object} and put them in {destination}"),
        ("put two sliced {object} in {destination}", "find two sliced {object} and put them in {destination}"),
    ),
}


@dataclass(frozen=True, slots=True)
class Task:
    """What a game asks for, as its task sentence says it. Names are lower-case entity types; '' where there is none."""

    type: str
    sentence: str
    object: str = ""
    destination: str = ""
    lamp: str = ""
    sliced: bool = False
    room: str = ""
