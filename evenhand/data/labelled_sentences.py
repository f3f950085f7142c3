"""Short sentences about a woman or a man in four topics, written for evenhand: classification without any download."""

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from evenhand.config import options
from evenhand.data._base import Dataset, Source, fair_order
from evenhand.data._rows import Labelled

__all__ = ["LabelledSentences"]


class Person(NamedTuple):
    """How a sentence speaks of somebody."""

    names: tuple[str, ...]
    he: str
    his: str
    him: str


PEOPLE = {
    "female": Person(("Anna", "Maria", "Laura", "Emma", "Sarah", "Julia", "Nina", "Helen"), "she", "her", "her"),
    "male": Person(("Peter", "Mark", "David", "Paul", "Simon", "Robert", "Daniel", "Thomas"), "he", "his", "him"),
}
TRAIN = 9
"""The first templates of each topic are for training; the other fifteen are for measuring."""
TOPICS: dict[str, tuple[str, ...]] = {
    "weather": (
        "{name} opened {his} umbrella when the rain began.",
        "The snow reached {his} knees before {name} was home.",
        "{name} said that the fog would lift by noon.",
        "A cold wind blew {his} hat across the street.",
        "{name} waited under the bridge until the storm had passed.",
        "The sun was so strong that {name} stayed in the shade.",
        "{name} heard thunder and shut {his} windows.",
        "There was ice on the lake when {he} woke up.",
        "{name} hoped for a clear sky at the weekend.",
        "{name} felt the first drops of rain on {his} face.",
        "The forecast promised {him} a week of sunshine.",
        "{name} watched dark clouds gather over the hills.",
        "A heavy frost had covered {his} garden overnight.",
        "{name} put on {his} coat because of the cold wind.",
        "The heat wave kept {name} awake all night.",
        "{name} could see nothing but snow from {his} window.",
        "Lightning struck the tree behind {his} house.",
        "{name} says that the autumn was unusually mild.",
        "The drizzle did not stop {name}, but the hail did.",
        "{name} read the temperature: ten degrees below zero.",
        "It had not rained for a month when {he} arrived.",
        "The morning mist made it hard for {him} to see the road.",
        "{name} loves the smell of the air after a storm.",
        "A warm breeze from the south surprised {name}.",
    ),
    "food": (
        "{name} baked two loaves of bread for {his} guests.",
        "The soup needed salt, so {he} added some.",
        "{name} ate an apple and a piece of cheese.",
        "{his} favourite dish is rice with beans.",
        "{name} fried the onions until they were brown.",
        "The cake that {he} made had three layers.",
        "{name} bought fresh tomatoes at the market.",
        "A pot of tea and some biscuits stood before {him}.",
        "{name} peeled the potatoes for dinner.",
        "{name} squeezed a lemon over {his} fish.",
        "The smell of roasted garlic filled {his} kitchen.",
        "{name} had pancakes with honey for breakfast.",
        "{he} stirred the sauce and tasted it again.",
        "{name} ordered a bowl of noodles with vegetables.",
        "The waiter brought {him} a plate of olives.",
        "{name} keeps {his} recipes in an old tin.",
        "The pasta was overcooked, but {name} ate it all.",
        "{name} spread butter and jam on {his} toast.",
        "A slice of melon was all that {he} wanted for dessert.",
        "{name} salted the cucumbers and left them in a jar.",
        "{his} lentil stew simmered for two hours.",
        "{name} shared {his} sandwich with a friend.",
        "The chocolate in {his} pocket had melted.",
        "{name} cracked four eggs into the pan.",
    ),
    "sport": (
        "{name} scored the winning goal in the last minute.",
        "The coach told {him} to run another lap.",
        "{name} won the tennis match in three sets.",
        "{he} trains for the marathon every morning.",
        "{name} swam the first length in thirty seconds.",
        "The referee showed {him} a yellow card.",
        "{name} threw the ball to the goalkeeper.",
        "{his} team lost the final by one point.",
        "{name} jumped higher than anyone else in the club.",
        "{name} cycled up the pass ahead of the other riders.",
        "The crowd cheered when {he} crossed the finish line.",
        "{name} tied {his} boots and ran onto the pitch.",
        "A sprained ankle kept {him} out of the tournament.",
        "{name} served an ace to win the match.",
        "{his} rowing crew reached the semi-final.",
        "{name} missed the penalty and the cup was lost.",
        "The team chose {name} as its captain for the season.",
        "{name} broke the club record in the long jump.",
        "{he} lifted twice {his} own weight at the contest.",
        "{name} blocked two shots in the first half.",
        "{his} skis were the fastest in the slalom.",
        "{name} plays basketball in the second league.",
        "The hurdles race ended with a fall for {him}.",
        "{name} warmed up beside the track before the sprint.",
    ),
    "work": (
        "{name} sent the report to {his} manager before noon.",
        "The meeting with {his} colleagues lasted two hours.",
        "{name} signed the contract for {his} new job.",
        "{his} office is on the third floor.",
        "{name} asked for a day off next week.",
        "The company gave {him} a better salary.",
        "{name} finished the invoice and filed it.",
        "{he} applied for a position in the sales department.",
        "{name} answered forty emails from customers.",
        "{name} presented the budget to the board.",
        "The deadline for {his} project was moved to Friday.",
        "{name} worked overtime to finish the order.",
        "{his} shift at the factory starts at six.",
        "{name} hired two new employees for the warehouse.",
        "The boss praised {him} for the careful accounts.",
        "{name} left {his} desk only for a short break.",
        "A client called {name} about a late delivery.",
        "{name} was promoted after five years in the firm.",
        "{he} wrote the minutes of the staff meeting.",
        "{name} trained an apprentice in the workshop.",
        "{his} resignation surprised the whole department.",
        "{name} prepared the slides for the conference.",
        "The agency offered {him} a permanent post.",
        "{name} checked the payroll twice before paying it out.",
    ),
}


@options
class LabelledSentences(Dataset):
    """192 sentences about a woman or a man in four topics; every sentence is there once for each."""

    kind: ClassVar = Labelled
    source: ClassVar = Source(licence="Apache-2.0", citation="written for evenhand")
    splits: ClassVar = ("train", "test")

    def rows(self, split: str) -> Iterator[Labelled]:
        """The topic is the label, the person's gender the group; a sentence's two versions are drawn together."""
        chosen = slice(None, TRAIN) if split == "train" else slice(TRAIN, None)
        made = [
            Labelled(
                id=f"{topic}-{number}-{gender}",
                axis="gender",
                group=gender,
                unit=f"{topic}-{number}",
                text=sentence(template, person, number),
                labels=(topic,),
            )
            for topic, templates in TOPICS.items()
            for number, template in list(enumerate(templates))[chosen]
            for gender, person in PEOPLE.items()
        ]
        yield from fair_order(made)


def sentence(template: str, person: Person, number: int) -> str:
    """A template about a person."""
    name = person.names[number % len(person.names)]
    text = template.format(name=name, he=person.he, his=person.his, him=person.him)
    return text[0].upper() + text[1:]
