"""The built-in world: invented towns and people, and sentences about them, the same everywhere.

It stands in where no text is given. A model can learn it in layers: spelling first, then the twelve
kinds of sentence, then who lives where and is whose friend, and at last a little arithmetic, which
it never quite masters; so its loss keeps falling for thousands of steps, as on real text.

Training and validation text tell of one and the same world in different draws. All draws go
through `random.Random.random`, whose sequence Python guarantees across versions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from floatscope.lab.text.corpus import Text

ALPHABET = "\n abcdefghijklmnopqrstuvwxyz0123456789.,+*=?"
"""Exactly 44 characters."""

NUM_TOWNS = 60
NUM_PEOPLE = 600
TRAIN_CHARS = 1_000_000
VALIDATION_CHARS = 100_000

_FACTS_SEED, _TRAIN_SEED, _VALIDATION_SEED = 1, 2, 3

_ONSETS = "b br c d dr f g gr h j k kl l m n p qu r s st t tr v w x y z".split()
_VOWELS = "a e i o u ai ea ou".split()
_CODAS = "n r l s x th nd rk m z ck".split()
_TOWN_ENDS = "ford ham wick by port field mouth burg".split()
_TRADES = (
    "baker brewer weaver potter smith mason miller tailor fisher farmer clerk judge glazier "
    "joiner quarrier boxmaker"
).split()
_MONTHS = (
    "january february march april may june july august september october november december"
).split()
_DIRECTIONS = "north east south west".split()

_T = TypeVar("_T")


class _Draw:
    """A stream of draws from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        return int(self._random.random() * limit)

    def between(self, low: int, high: int) -> int:
        """An integer from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def one(self, items: Sequence[_T]) -> _T:
        return items[self.below(len(items))]


@dataclass(frozen=True)
class Town:
    """A town and how to get there."""

    name: str
    people: int
    neighbor: int
    """Index of another town, `miles` to the `direction` of which this one lies."""
    miles: int
    direction: str


@dataclass(frozen=True)
class Person:
    """A person; `home` and `friend` are indices."""

    name: str
    home: int
    trade: str
    born: int
    friend: int


@dataclass(frozen=True)
class World:
    """The facts that every sentence agrees with."""

    towns: tuple[Town, ...]
    people: tuple[Person, ...]

    def train_text(self) -> str:
        """At least 1 000 000 characters."""
        return self._tell(_TRAIN_SEED, TRAIN_CHARS)

    def val_text(self) -> str:
        """At least 100 000 characters, from draws of their own."""
        return self._tell(_VALIDATION_SEED, VALIDATION_CHARS)

    def _tell(self, seed: int, num_chars: int) -> str:
        draw = _Draw(seed)
        sentences: list[str] = []
        length = 0
        while length < num_chars:
            sentence = draw.one(_KINDS)(self, draw) + "\n"
            sentences.append(sentence)
            length += len(sentence)
        return "".join(sentences)


def build_world() -> World:
    """The world; the same on every machine and in every version of Python."""
    draw = _Draw(_FACTS_SEED)
    town_names = _distinct(NUM_TOWNS, lambda: _syllable(draw) + draw.one(_TOWN_ENDS))
    towns = tuple(
        Town(
            name=name,
            people=draw.between(2, 99) * 100,
            neighbor=(index + draw.between(1, NUM_TOWNS - 1)) % NUM_TOWNS,
            miles=draw.between(3, 60),
            direction=draw.one(_DIRECTIONS),
        )
        for index, name in enumerate(town_names)
    )
    person_names = _distinct(NUM_PEOPLE, lambda: _syllable(draw) + _syllable(draw))
    people = tuple(
        Person(
            name=name,
            home=draw.below(NUM_TOWNS),
            trade=draw.one(_TRADES),
            born=draw.between(1700, 1799),
            friend=(index + draw.between(1, NUM_PEOPLE - 1)) % NUM_PEOPLE,
        )
        for index, name in enumerate(person_names)
    )
    return World(towns, people)


def world_text() -> Text:
    """The world as a text to train on."""
    world = build_world()
    return Text(name="world", train=world.train_text(), validation=world.val_text())


def _syllable(draw: _Draw) -> str:
    coda = draw.one(_CODAS) if draw.below(2) else ""
    return draw.one(_ONSETS) + draw.one(_VOWELS) + coda


def _distinct(count: int, make: Callable[[], str]) -> list[str]:
    names: dict[str, None] = {}  # a set that keeps its order
    while len(names) < count:
        names[make()] = None
    return list(names)


# The twelve kinds of sentence.


def _home(world: World, draw: _Draw) -> str:
    person = draw.one(world.people)
    return f"{person.name} lives in {world.towns[person.home].name}."


def _trade(world: World, draw: _Draw) -> str:
    person = draw.one(world.people)
    return f"{person.name} is a {person.trade} and was born in {person.born}."


def _friend(world: World, draw: _Draw) -> str:
    person = draw.one(world.people)
    friend = world.people[person.friend]
    return f"who is the friend of {person.name}? {friend.name}, the {friend.trade}."


def _age(world: World, draw: _Draw) -> str:
    person = draw.one(world.people)
    age = draw.between(10, 80)
    return f"how old was {person.name} in {person.born + age}? {age}."


def _meeting(world: World, draw: _Draw) -> str:
    person = draw.one(world.people)
    friend = world.people[person.friend]
    town = world.towns[friend.home]
    return f"on {_date(draw)} {person.name} met {friend.name} in {town.name}."


def _walk(world: World, draw: _Draw) -> str:
    person = draw.one(world.people)
    start, end = world.towns[person.home], draw.one(world.towns)
    return f"{person.name} the {person.trade} walked from {start.name} to {end.name}."


def _distance(world: World, draw: _Draw) -> str:
    town = draw.one(world.towns)
    other = world.towns[town.neighbor]
    return f"{town.name} lies {town.miles} miles {town.direction} of {other.name}."


def _larger(world: World, draw: _Draw) -> str:
    one, two = draw.one(world.towns), draw.one(world.towns)
    larger = one if one.people >= two.people else two
    return f"which is larger, {one.name} or {two.name}? {larger.name}, with {larger.people} people."


def _market(world: World, draw: _Draw) -> str:
    town = draw.one(world.towns)
    price, pieces = draw.between(2, 9), draw.between(2, 9)
    good = draw.one(_TRADES)
    return f"in {town.name} a {good} sold {pieces} pieces at {price} each and got {price * pieces}."


def _sum(world: World, draw: _Draw) -> str:
    a, b = draw.between(1, 99), draw.between(1, 99)
    return f"{a} + {b} = {a + b}."


def _product(world: World, draw: _Draw) -> str:
    a, b = draw.between(2, 25), draw.between(2, 25)
    return f"{a} * {b} = {a * b}."


def _later(world: World, draw: _Draw) -> str:
    month, ahead = draw.below(12), draw.between(1, 11)
    return f"{ahead} months after {_MONTHS[month]} comes {_MONTHS[(month + ahead) % 12]}."


def _date(draw: _Draw) -> str:
    return f"{draw.between(1, 28)} {draw.one(_MONTHS)} {draw.between(1800, 1850)}"


_KINDS: tuple[Callable[[World, _Draw], str], ...] = (
    _home, _trade, _friend, _age, _meeting, _walk,
    _distance, _larger, _market, _sum, _product, _later,
)  # fmt: skip
