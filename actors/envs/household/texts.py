"""The sentences of ALFWorld's grammar (alfred.twl2), word for word, and how names and lists are put into them."""

from collections.abc import Iterable, Sequence

BANNER = "-= Welcome to TextWorld, ALFRED! =-"
TASK = "Your task is to: {}."
ROOM = "You are in the middle of a room. Looking quickly around you, you see {}."
FACING = "You are facing the {}. Next to it, you see {}."
ARRIVE = "You arrive at {}. "
OPEN = "You open the {}. "
CLOSE = "You close the {}."
TAKE = "You pick up the {} from the {}."
MOVE = "You move the {} to the {}."
USE = "You turn on the {}."
TREAT = "You {} the {} using the {}."
SLICE = "You sliced the {} with the {}."
INSIDE = "The {} is open. In it, you see {}."
CLOSED = "The {} is closed."
SURFACE = "On the {}, you see {}."
CARRYING = "You are carrying: {}."
EMPTY_HANDED = "You are not carrying anything."
CONTAINER = "This is a normal {}. In it, you see {}."
PLAIN = "There's nothing special about {}."
REFUSAL = "Nothing happens."
HELP = """
Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""

# Verb -> form of the command. A first argument is an object, except where the only argument is a receptacle.
COMMANDS = {
    "clean": "clean {} with {}",
    "close": "close {}",
    "cool": "cool {} with {}",
    "examine": "examine {}",
    "go": "go to {}",
    "heat": "heat {} with {}",
    "help": "help",
    "inventory": "inventory",
    "look": "look",
    "move": "move {} to {}",
    "open": "open {}",
    "slice": "slice {} with {}",
    "take": "take {} from {}",
    "use": "use {}",
}

# What `examine` says of an object, the first that applies: the properties it must have, and the words. (A lamp that was
# never used gets PLAIN: the grammar asks for an explicit "not toggled" fact, which the engine never makes.)
CONDITIONS = (
    (("isclean", "ishot", "issliced"), "This is a hot and clean sliced {}."),
    (("isclean", "iscool", "issliced"), "This is a cool and clean sliced {}."),
    (("isclean", "issliced"), "This is a clean sliced {}."),
    (("ishot", "issliced"), "This is a hot sliced {}."),
    (("iscool", "issliced"), "This is a cool sliced {}."),
    (("isclean", "ishot"), "This is a hot and clean {}."),
    (("isclean", "iscool"), "This is a cool and clean {}."),
    (("ishot",), "This is a hot {}."),
    (("isclean",), "This is a clean {}."),
    (("iscool",), "This is a cold {}."),
    (("toggleable", "istoggled"), "This {} is on."),
    (("sliceable", "issliced"), "This is a sliced {}."),
)


def enumerate_items(items: Sequence[str]) -> str:
    """'nothing', 'x', 'x, and y', 'x, y, and z'."""
    if len(items) < 2:
        return items[0] if items else "nothing"
    return f"{', '.join(items[:-1])}, and {items[-1]}"


def introduction(scene: str, task: str) -> str:
    return f"{BANNER}\n\n{scene}\n\n{TASK.format(task)}"


def sentences() -> Iterable[str]:
    """Every fixed wording that a game can say or take, with the names left out: the source of the vocabulary."""
    scalars = [value for name, value in sorted(globals().items()) if name.isupper() and isinstance(value, str)]
    return [*scalars, *(text for _, text in CONDITIONS), *COMMANDS.values(), "nothing, and"]
