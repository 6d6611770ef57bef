"""What stands in which room, what may lie where, and what can be done with it: the tables that games are generated from.

The placements are those of alfworld.gen.constants.VAL_RECEPTACLE_OBJECTS (MIT licence), less sliced things, lamps and boxes.
"""

from collections.abc import Mapping

# Room -> receptacle type -> (fewest, most) instances.
Rooms = Mapping[str, Mapping[str, tuple[int, int]]]

SMALL: Rooms = {
    "Kitchen": {
        "Cabinet": (1, 2),
        "CounterTop": (1, 1),
        "Drawer": (1, 1),
        "Fridge": (1, 1),
        "Microwave": (1, 1),
        "SinkBasin": (1, 1),
    },
    "Bedroom": {"Bed": (1, 1), "Desk": (1, 1), "Drawer": (1, 2), "SideTable": (1, 1)},
    "LivingRoom": {"Sofa": (1, 1), "CoffeeTable": (1, 1), "SideTable": (1, 1), "Drawer": (1, 1)},
    "Bathroom": {"Cabinet": (1, 2), "CounterTop": (1, 1), "SinkBasin": (1, 1), "Toilet": (1, 1)},
}
FULL: Rooms = {
    "Kitchen": {
        "Cabinet": (2, 6),
        "CounterTop": (1, 3),
        "Drawer": (1, 4),
        "Fridge": (1, 1),
        "Microwave": (1, 1),
        "SinkBasin": (1, 1),
        "StoveBurner": (1, 4),
        "GarbageCan": (1, 1),
        "CoffeeMachine": (1, 1),
        "Toaster": (1, 1),
        "DiningTable": (0, 1),
        "Shelf": (0, 2),
    },
    "LivingRoom": {
        "Sofa": (1, 1),
        "CoffeeTable": (1, 1),
        "ArmChair": (0, 2),
        "SideTable": (1, 2),
        "Shelf": (0, 3),
        "Drawer": (0, 4),
        "GarbageCan": (1, 1),
        "DiningTable": (0, 1),
        "TVStand": (0, 1),
        "Dresser": (0, 1),
    },
    "Bedroom": {
        "Bed": (1, 1),
        "Desk": (1, 2),
        "Drawer": (1, 5),
        "Shelf": (0, 4),
        "SideTable": (1, 2),
        "GarbageCan": (1, 1),
        "Dresser": (0, 1),
        "Safe": (0, 1),
        "LaundryHamper": (0, 1),
    },
    "Bathroom": {
        "BathtubBasin": (0, 1),
        "Cabinet": (1, 4),
        "CounterTop": (1, 1),
        "GarbageCan": (1, 1),
        "SinkBasin": (1, 2),
        "Toilet": (1, 1),
        "ToiletPaperHanger": (1, 1),
        "TowelHolder": (1, 1),
        "Drawer": (0, 3),
        "HandTowelHolder": (1, 1),
    },
}
ROOMS: Mapping[str, Rooms] = {"small": SMALL, "full": FULL}

_TABLETOP = """
    AlarmClock Apple BaseballBat BasketBall Book Bowl Bread ButterKnife CD Candle CellPhone Cloth CreditCard
    Cup DishSponge Egg Fork Glassbottle HandTowel Kettle KeyChain Knife Ladle Laptop Lettuce Mug Newspaper Pan
    PaperTowel Pen Pencil PepperShaker Plate Pot Potato RemoteControl SaltShaker SoapBar SoapBottle Spatula
    Spoon SprayBottle Statue TennisRacket TissueBox ToiletPaper ToiletPaperRoll Tomato Vase Watch WateringCan
    WineBottle
"""
_LYING: Mapping[str, str] = {
    "ArmChair": "BasketBall Book CellPhone Cloth CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
    "BathtubBasin": "Cloth DishSponge HandTowel SoapBar",
    "Bed": "BaseballBat BasketBall Book CellPhone Laptop Newspaper Pillow TennisRacket",
    "Cabinet": """
        Book Bowl CD Candle Cloth Cup DishSponge Glassbottle HandTowel Kettle Ladle Mug Newspaper Pan
        PepperShaker Plate Plunger Pot SaltShaker SoapBar SoapBottle SprayBottle TissueBox ToiletPaper
        ToiletPaperRoll Vase WateringCan WineBottle
    """,
    "CoffeeMachine": "Mug",
    "CoffeeTable": _TABLETOP,
    "CounterTop": _TABLETOP,
    "Desk": """
        AlarmClock BasketBall Book Bowl CD Candle CellPhone Cloth CreditCard Cup Glassbottle KeyChain Laptop
        Mug Newspaper Pen Pencil Plate RemoteControl SoapBottle SprayBottle Statue TennisRacket TissueBox
        ToiletPaper ToiletPaperRoll Vase Watch WateringCan WineBottle
    """,
    "DiningTable": _TABLETOP,
    "Drawer": """
        Book ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Fork HandTowel KeyChain Knife Ladle
        Newspaper Pen Pencil PepperShaker RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon
        SprayBottle TissueBox ToiletPaper ToiletPaperRoll Watch WateringCan
    """,
    "Dresser": """
        AlarmClock BasketBall Book Bowl CD Candle CellPhone Cloth CreditCard Cup Glassbottle KeyChain Laptop
        Mug Newspaper Pen Pencil Plate RemoteControl SprayBottle Statue TennisRacket TissueBox ToiletPaper
        ToiletPaperRoll Vase Watch WateringCan WineBottle
    """,
    "Fridge": "Apple Bowl Bread Cup Egg Glassbottle Lettuce Mug Pan Plate Pot Potato Tomato WineBottle",
    "GarbageCan": """
        Apple Bread CD Cloth DishSponge Egg HandTowel Lettuce Newspaper PaperTowel Pen Pencil Potato SoapBar
        SoapBottle SprayBottle TissueBox ToiletPaper ToiletPaperRoll Tomato WineBottle
    """,
    "HandTowelHolder": "HandTowel",
    "LaundryHamper": "Cloth",
    "Microwave": "Apple Bowl Bread Cup Egg Glassbottle Mug Plate Potato Tomato",
    "Safe": "CD CellPhone CreditCard KeyChain Statue Vase Watch",
    "Shelf": """
        AlarmClock Book Bowl CD Candle CellPhone Cloth CreditCard Cup DishSponge Glassbottle HandTowel
        Kettle KeyChain Mug Newspaper PaperTowel Pen Pencil PepperShaker Plate Pot RemoteControl SaltShaker
        SoapBar SoapBottle SprayBottle Statue TissueBox ToiletPaper ToiletPaperRoll Vase Watch WateringCan
        WineBottle
    """,
    "SideTable": _TABLETOP,
    "SinkBasin": """
        Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Glassbottle HandTowel Kettle Knife Ladle
        Lettuce Mug Pan Plate Pot Potato SoapBar Spatula Spoon Tomato
    """,
    "Sofa": "BasketBall Book CellPhone Cloth CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
    "StoveBurner": "Kettle Pan Pot",
    "TVStand": "TissueBox",
    "Toilet": """
        Candle Cloth DishSponge HandTowel Newspaper PaperTowel SoapBar SoapBottle SprayBottle TissueBox
        ToiletPaper ToiletPaperRoll
    """,
    "ToiletPaperHanger": "ToiletPaper ToiletPaperRoll",
}
# Receptacle type -> the object types that may lie in or on it, sorted. (Toasters and towel holders take none of ours.)
HOLDS: Mapping[str, tuple[str, ...]] = {receptacle: tuple(objects.split()) for receptacle, objects in _LYING.items()}


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


OPENABLE = _types("Cabinet Drawer Fridge Microwave Safe")
ABLE: Mapping[str, frozenset[str]] = {
    "heatable": _types("Apple Bread Cup Egg Mug Plate Potato Tomato"),
    "coolable": _types("Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle"),
    "cleanable": _types(
        """Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan Plate Pot Potato SoapBar
        Spatula Spoon Tomato"""
    ),
    "sliceable": _types("Apple Bread Lettuce Potato Tomato"),
    "toggleable": _types("DeskLamp"),
}
LAMP = "DeskLamp"
LAMP_STANDS = ("CoffeeTable", "Desk", "Dresser", "Shelf", "SideTable")
# Not asked for as destinations: too special to find one's way by common sense.
NO_DESTINATION = _types("CoffeeMachine HandTowelHolder SinkBasin StoveBurner Toaster ToiletPaperHanger TowelHolder")
# Task type -> the rooms where it can be done, and the ability that its object needs. Absent: everywhere, none.
TASK_ROOMS: Mapping[str, tuple[str, ...]] = {
    "pick_heat_then_place_in_recep": ("Kitchen",),
    "pick_cool_then_place_in_recep": ("Kitchen",),
    "pick_clean_then_place_in_recep": ("Kitchen", "Bathroom"),
    "look_at_obj_in_light": ("LivingRoom", "Bedroom"),
}
TASK_ABILITY: Mapping[str, str] = {
    "pick_heat_then_place_in_recep": "heatable",
    "pick_cool_then_place_in_recep": "coolable",
    "pick_clean_then_place_in_recep": "cleanable",
}
