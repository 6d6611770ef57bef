"""The state machine: what each command does and says, by the rules of alfred.pddl and the words of alfred.twl2."""

from bisect import insort
from hashlib import blake2b

from actors.envs.household import texts
from actors.envs.household.game import APPLIANCES, KNIVES, Game
from actors.envs.household.layout import CLEAN, COOL, HOT, ON, PROPERTIES, SLICED, TOGGLED
from actors.envs.household.texts import enumerate_items

_ANYWHERE = ["help", "inventory", "look"]


class World:
    """One play of one game. Plays share nothing that changes, the game's table of commands apart, which only grows.

    state       int, the facts that hold now (`layout.Layout`); the attributes below restate parts of it for speed
    place       the location of the agent
    held        the object in hand, -1: none
    contents    the objects in each receptacle, sorted
    won         the goal holds now
    admissible  the commands that would be accepted now, sorted
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self._layout = game.layout
        self._bytes = (game.layout.bases[-1] + len(game.objects) * len(game.receptacles)) // 8 + 1
        self.reset()

    def reset(self) -> str:
        """Back to the start; returns the first observation."""
        game = self.game
        self.state = game.initial
        self.place, self.held = game.start, game.held
        self.contents = [list(objects) for objects in game.contents]
        self.won = game.won(self.state)
        self.admissible = self._commands()
        return texts.introduction(self._facing() if game.stands[self.place] else game.scene, game.task.sentence)

    def act(self, command: str) -> tuple[str, bool]:
        """Carry out a command: the observation, and whether it was accepted."""
        command = command.strip()
        operation = self.game.commands.operations.get(command)
        if operation is None or command not in self.admissible:
            return texts.REFUSAL, False
        effect, first, second = operation
        before = self.state
        observation = _EFFECTS[effect](self, first, second)
        if self.state != before:
            self.won = self.game.won(self.state)
            self.admissible = self._commands()
        return observation, True

    @property
    def key(self) -> str:
        """Equal exactly where the game is the same and the states are alike for its task (`Game.relevant`)."""
        here = sum(self._layout.opened(r) for r in self.game.stands[self.place])
        alike = self.state & (self.game.relevant | here)
        return blake2b(alike.to_bytes(self._bytes, "big"), digest_size=12, key=self.game.identity).hexdigest()

    def _commands(self) -> list[str]:
        """The groups follow the alphabet, as does each group: the whole is sorted."""
        game, commands, held = self.game, self.game.commands, self.held
        to_heat: set[str] = set()
        early, late = set(), set()  # clean .. examine, move .. use
        for r in game.stands[self.place]:
            early.add(commands.examine[r])
            within_reach = True
            if r in game.openable:
                if self._is_open(r):
                    early.add(commands.close[r])
                else:
                    late.add(commands.open[r])
                    within_reach = False
            if held < 0 and within_reach:
                pickupable = game.abilities["pickupable"]
                late.update([commands.pair("take", o, r) for o in self.contents[r] if o in pickupable])
            elif held >= 0:
                if within_reach and (held, r) in game.fits:
                    late.add(commands.pair("move", held, r))
                verb, ability = APPLIANCES.get(game.receptacle_types[r], ("", ""))
                if verb and held in game.abilities[ability]:
                    (to_heat if verb == "heat" else early).add(commands.pair(verb, held, r))
            if game.abilities["toggleable"]:
                late.update(commands.use[o] for o in self.contents[r] if o in game.abilities["toggleable"])
        if held >= 0:
            early.add(commands.inspect[held])
            if game.object_types[held] in KNIVES:
                late.update(commands.pair("slice", o, held) for o in game.abilities["sliceable"] if self._is_near(o))
        return [*sorted(early), *game.ways(self.place), *sorted(to_heat), *_ANYWHERE, *sorted(late)]

    def _is_open(self, r: int) -> bool:
        return bool(self.state & self._layout.opened(r))

    def _is_near(self, o: int) -> bool:
        return bool(self.state & self._layout.near(o, self.place))

    def _items(self, objects: list[int]) -> str:
        things = self.game.things
        return enumerate_items([things[o] for o in objects])

    def _view(self, r: int) -> str:
        name = self.game.receptacles[r]
        if r not in self.game.openable:
            return texts.SURFACE.format(name, self._items(self.contents[r]))
        if self._is_open(r):
            return texts.INSIDE.format(name, self._items(self.contents[r]))
        return texts.CLOSED.format(name)

    def _facing(self) -> str:
        """What stands here, and beside it the objects that were taken from one of these receptacles into another."""
        game, here = self.game, self.game.stands[self.place]
        strays = []
        if game.shared:
            strays = [
                o
                for o in range(len(game.objects))
                for r in here
                if self._is_near(o) and self.state & self._layout.taken(o, r)
            ]
        return texts.FACING.format(enumerate_items([game.receptacles[r] for r in here]), self._items(strays))

    # Effects: called with the indices of a command that is admissible, they change the state and say so.

    def _go(self, r: int, _: int) -> str:
        self.state ^= self._layout.at(self.place)
        self.place = self.game.place[r]
        self.state |= self._layout.at(self.place)
        return texts.ARRIVE.format(self.game.receptacles[r]) + self._view(r)

    def _open(self, r: int, _: int) -> str:
        self.state |= self._layout.opened(r)
        return texts.OPEN.format(self.game.receptacles[r]) + self._view(r)

    def _close(self, r: int, _: int) -> str:
        self.state &= ~self._layout.opened(r)
        return texts.CLOSE.format(self.game.receptacles[r])

    def _take(self, o: int, r: int) -> str:
        layout = self._layout
        self.contents[r].remove(o)
        self.held = o
        self.state &= ~(layout.inside(o, r) | layout.near(o, self.place))
        self.state |= layout.holds(o) | layout.holds_any
        if self.game.shared:
            self.state |= layout.taken(o, r)
        return texts.TAKE.format(self.game.objects[o], self.game.receptacles[r])

    def _move(self, o: int, r: int) -> str:
        layout = self._layout
        if o not in self.contents[r]:
            insort(self.contents[r], o)
        self.held = -1
        self.state |= layout.inside(o, r) | layout.near(o, self.place)
        self.state &= ~(layout.holds(o) | layout.holds_any | layout.taken(o, r))
        return texts.MOVE.format(self.game.objects[o], self.game.receptacles[r])

    def _clean(self, o: int, r: int) -> str:
        return self._treat("clean", o, r, CLEAN, None)

    def _heat(self, o: int, r: int) -> str:
        return self._treat("heat", o, r, HOT, COOL)

    def _cool(self, o: int, r: int) -> str:
        return self._treat("cool", o, r, COOL, HOT)

    def _treat(self, verb: str, o: int, r: int, gained: int, lost: int | None) -> str:
        if lost is not None:
            self.state &= ~self._layout.has(o, lost)
        self.state |= self._layout.has(o, gained)
        return texts.TREAT.format(verb, self.game.objects[o], self.game.receptacles[r])

    def _use(self, o: int, _: int) -> str:
        # The texts and goals ask for isToggled, which stays; isOn flips unseen.
        self.state |= self._layout.has(o, TOGGLED)
        self.state ^= self._layout.has(o, ON)
        return texts.USE.format(self.game.objects[o])

    def _slice(self, o: int, knife: int) -> str:
        self.state |= self._layout.has(o, SLICED)
        return texts.SLICE.format(self.game.objects[o], self.game.objects[knife])

    def _examine(self, r: int, _: int) -> str:
        return self._view(r)

    def _inspect(self, o: int, _: int) -> str:
        game, name = self.game, self.game.objects[o]
        if o in game.abilities["isreceptacleobject"]:
            return texts.CONTAINER.format(name, self._items(list(game.nested.get(o, ()))))
        true = {name for name, which in PROPERTIES.items() if self.state & self._layout.has(o, which)}
        true.update(ability for ability in ("toggleable", "sliceable") if o in game.abilities[ability])
        return next((text for needed, text in texts.CONDITIONS if true.issuperset(needed)), texts.PLAIN).format(name)

    def _look(self, _: int, __: int) -> str:
        return self._facing() if self.game.stands[self.place] else texts.ROOM.format("nothing")

    def _inventory(self, _: int, __: int) -> str:
        return texts.CARRYING.format(self.game.things[self.held]) if self.held >= 0 else texts.EMPTY_HANDED

    def _help(self, _: int, __: int) -> str:
        return texts.HELP


_EFFECTS = {
    "clean": World._clean,
    "close": World._close,
    "cool": World._cool,
    "examine": World._examine,
    "go": World._go,
    "heat": World._heat,
    "help": World._help,
    "inspect": World._inspect,
    "inventory": World._inventory,
    "look": World._look,
    "move": World._move,
    "open": World._open,
    "slice": World._slice,
    "take": World._take,
    "use": World._use,
}
