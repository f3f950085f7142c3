"""Short biographies of women and men in 28 professions, put together by code from words written for evenhand.

As in Bias in Bios the text never names the profession, which is the label. Seven fields have four professions each, two
of them mostly of women and two mostly of men in the training split, so that gender helps where work is vague.
"""

import random
from collections.abc import Iterator
from typing import ClassVar, Literal, NamedTuple

from evenhand.config import options
from evenhand.data._base import Dataset, Source, fair_order
from evenhand.data._rows import Labelled

__all__ = ["Biographies"]

Gender = Literal["female", "male"]


class Field(NamedTuple):
    """What the professions of a field share."""

    places: tuple[str, ...]
    vague: tuple[str, ...]
    """Work that any of its professions may do."""
    work: dict[str, tuple[str, ...]]
    """What only one profession does; the first two are mostly women in the training split, the others mostly men."""


FIELDS = {
    "health": Field(
        ("a large city hospital", "a small clinic", "a health centre by the sea", "the emergency ward of a hospital"),
        ("cares for people with heart disease", "explains treatments to anxious families", "works many night shifts"),
        {
            "nurse": (
                "changes dressings and checks on patients through the night",
                "takes blood samples and keeps the ward running",
                "washes, feeds and comforts patients after operations",
            ),
            "pharmacist": (
                "fills prescriptions and warns about side effects",
                "mixes ointments and checks every dose of medicine",
                "orders the medicines and answers questions at the counter",
            ),
            "surgeon": (
                "replaces hips and repairs broken bones in the operating theatre",
                "operates on hearts and trains others to use the scalpel",
                "removes tumours in operations that last for hours",
            ),
            "doctor": (
                "examines patients and finds out what ails them",
                "diagnoses infections and writes prescriptions",
                "makes house calls and refers difficult cases to specialists",
            ),
        },
    ),
    "law": Field(
        ("a law firm near the station", "the district court", "a legal aid office", "the county courthouse"),
        ("deals with disputes between neighbours", "reads long contracts every day", "knows family law very well"),
        {
            "paralegal": (
                "prepares files and looks up earlier cases for the partners",
                "drafts letters and keeps the calendar of court dates",
                "collects documents before each trial and numbers the exhibits",
            ),
            "mediator": (
                "helps divided families to settle out of court",
                "sits down with both sides until they agree",
                "leads talks between unions and employers as a neutral third party",
            ),
            "lawyer": (
                "defends clients in criminal trials",
                "argues for tenants in court and questions witnesses",
                "advises companies that are being sued",
            ),
            "judge": (
                "hears appeals and writes the rulings",
                "presides over trials and passes sentence",
                "decides from the bench who is in the right",
            ),
        },
    ),
    "school": Field(
        ("a village school", "a college with two thousand students", "a school in the suburbs", "the state university"),
        ("runs a reading club after classes", "has brought in new history books", "knows every student by name"),
        {
            "teacher": (
                "shows small children how to read and write",
                "marks homework and plans lessons for the fourth grade",
                "gives maths lessons to a class of thirty",
            ),
            "librarian": (
                "lends out books and keeps the catalogue in order",
                "orders new novels and reads stories aloud between the shelves",
                "helps readers to find old newspapers in the archive",
            ),
            "professor": (
                "lectures on physics and leads a research group",
                "publishes papers and supervises doctoral theses",
                "holds the chair of ancient history and edits a scholarly series",
            ),
            "principal": (
                "hires the staff and answers to the school board",
                "sets the timetable and leads forty colleagues",
                "runs the whole school and speaks to parents about discipline",
            ),
        },
    ),
    "arts": Field(
        ("a shared studio", "the city theatre", "an art school by the river", "a gallery in the harbour district"),
        ("often shows new work abroad", "is inspired by plants and the sea", "has won a grant for young artists"),
        {
            "dancer": (
                "rehearses ballets six hours a day",
                "performs on stage in modern pieces and stretches every morning",
                "has the leading part in a new ballet",
            ),
            "illustrator": (
                "draws the pictures for children's books",
                "makes ink drawings for magazines and book covers",
                "designs picture books about animals on paper and screen",
            ),
            "painter": (
                "covers large canvases with oil in blue and grey",
                "does portraits in watercolour",
                "stands at the easel from dawn and mixes every colour by hand",
            ),
            "sculptor": (
                "carves figures out of marble",
                "casts bronze statues for public squares",
                "models heads in clay and fires them in the kiln",
            ),
        },
    ),
    "music": Field(
        ("the state opera", "a concert hall by the lake", "a music school", "a recording studio"),
        ("has toured Europe with a small ensemble", "gives lessons at the weekend", "has made four albums"),
        {
            "pianist": (
                "plays Chopin's nocturnes at the grand piano",
                "accompanies singers on the piano",
                "practises scales at the keyboard before every recital",
            ),
            "violinist": (
                "leads the strings and tunes the orchestra with a bow in hand",
                "plays a fiddle made two hundred years ago",
                "performs string quartets and changes the strings each month",
            ),
            "drummer": (
                "keeps the beat for a rock band",
                "beats out rhythms with sticks on snare and cymbals",
                "plays percussion in a jazz trio",
            ),
            "composer": (
                "writes symphonies and the scores of films",
                "has finished an opera in three acts for a festival",
                "sets poems to music for choirs, note by note",
            ),
        },
    ),
    "media": Field(
        ("a weekly magazine", "a local newspaper", "a production company", "a news agency"),
        ("covers life in small towns", "has reported on two elections", "won a prize for a story about miners"),
        {
            "journalist": (
                "interviews politicians and files stories before the deadline",
                "reports from the parliament for the front page",
                "follows up tips and writes about corruption",
            ),
            "editor": (
                "corrects manuscripts and decides what gets printed",
                "cuts the articles of others to length and writes the headlines",
                "chooses the stories for each issue and works with the writers",
            ),
            "photographer": (
                "takes portraits with an old camera and two lamps",
                "shoots weddings and landscapes on film",
                "develops black and white prints in a darkroom",
            ),
            "filmmaker": (
                "directs documentaries about mountain villages",
                "shoots feature films with unknown performers",
                "writes and directs short movies that are shown at festivals",
            ),
        },
    ),
    "office": Field(
        ("a young company", "a firm with ninety employees", "an office above the market", "the head office of a bank"),
        ("plans projects for large customers", "leads a team of six", "often works with drawings and figures"),
        {
            "accountant": (
                "balances the books and prepares the tax returns",
                "audits the accounts at the end of each quarter",
                "checks invoices and draws up the annual report",
            ),
            "interior designer": (
                "chooses fabrics, lamps and wallpaper for hotels",
                "furnishes flats in warm colours",
                "plans kitchens and living rooms down to the last cushion",
            ),
            "programmer": (
                "writes code for a payment service",
                "fixes bugs and maintains a large database",
                "develops software for phones and reviews the code of others",
            ),
            "architect": (
                "designs schools and town halls out of wood and glass",
                "draws the plans of new houses and visits the building sites",
                "restores old station buildings and builds models of bridges",
            ),
        },
    ),
}
FIELD_OF = {profession: name for name, field in FIELDS.items() for profession in field.work}
MAJORITY: dict[str, Gender] = {
    profession: "female" if number < 2 else "male"
    for field in FIELDS.values()
    for number, profession in enumerate(field.work)
}

CITIES = (
    *("Leeds", "Boston", "Lisbon", "Vienna", "Denver", "Cork", "Oslo", "Toronto", "Bristol", "Prague", "Seattle"),
    *("Lyon", "Glasgow", "Dublin", "Chicago", "Perth", "Ghent", "Cardiff", "Kraków", "Portland"),
)
# In pairs, so that both versions of a biography are alike but for the gender.
NAMES = (
    *(("Anna", "Adam"), ("Maria", "Mark"), ("Emma", "Edward"), ("Sarah", "Simon"), ("Julia", "Julian")),
    *(("Nina", "Nathan"), ("Helen", "Henry"), ("Laura", "Lucas"), ("Claire", "Colin"), ("Diana", "David")),
    *(("Ruth", "Robert"), ("Teresa", "Thomas"), ("Paula", "Paul"), ("Vera", "Victor"), ("Irene", "Ian")),
    *(("Grace", "George"), ("Katherine", "Kevin"), ("Olivia", "Oliver"), ("Monica", "Martin"), ("Beatrice", "Brian")),
)
OPENINGS = {
    "years": "After {years} years at {place} in {city},",
    "degree": "With a degree from {city} and {years} years at {place},",
    "born": "Born near {city} and at {place} since {year},",
    "known": "Well known in {city} and employed at {place} since {year},",
    "back": "Back in {city} after {years} years abroad and now at {place},",
    "colleagues": "Liked by everyone at {place} in {city} since {year},",
}
"""Beginnings that tell nobody's name or gender."""
FIRST = (
    "{name} came to {place} in {city} in {year} and {work}.",
    "{name} has been at {place} in {city} for {years} years and {work}.",
    "{name}, who grew up in {city}, joined {place} in {year} and {work}.",
    *(f"{opening} {who} {{work}}." for opening in OPENINGS.values() for who in ("{name}", "{he}")),
)
SECOND = (
    "As a {girl}, {he} wanted to become {dream}.",
    "{He} lives by the park with {his} {wife} and their two {sons}.",
    "{He} is the {mother} of three and {hobby}.",
    "{His} {sister} taught {him} to love this work.",
    "The {daughter} of {dream}, {he} also {hobby}.",
    "At weekends {he} {hobby} with {his} {brother}.",
    "{He} says that {his} {father} gave {him} the courage to begin.",
    "In {his} spare time {he} {hobby}.",
    "{He} is known as a patient {woman} who {hobby}.",
    "Those who know {him} say that {he} never forgets {his} friends.",
)
DREAMS = ("a farmer", "an astronaut", "a sailor", "a baker", "a pilot", "a gardener", "an explorer", "a vet")
HOBBIES = (
    *("sings in a choir", "grows tomatoes", "climbs mountains", "plays chess", "restores old bicycles"),
    *("bakes bread", "runs marathons", "collects maps", "keeps bees", "swims in cold lakes", "repairs clocks"),
    *("learns Japanese", "walks two dogs", "knits scarves", "plays football", "goes fishing"),
)
# A slot, and what it is for a woman and for a man; relatives have the gender of whom the text is about.
SLOTS: dict[str, tuple[str, str]] = {
    "he": ("she", "he"),
    "his": ("her", "his"),
    "him": ("her", "him"),
    "girl": ("girl", "boy"),
    "woman": ("woman", "man"),
    "wife": ("husband", "wife"),
    "mother": ("mother", "father"),
    "daughter": ("daughter", "son"),
    "sister": ("sister", "brother"),
    "brother": ("sister", "brother"),
    "father": ("mother", "father"),
    "sons": ("daughters", "sons"),
}
TRAIN, HELD_OUT = 150, 8
"""Training biographies a profession, and pairs of them a profession in each of the other splits."""
MINORITY = 0.2
VAGUE = 0.25
"""How often the work is told so vaguely that it may be any profession of its field."""


@options
class Biographies(Dataset):
    """Biographies of two sentences in 28 professions, four in five by the stereotype in train and half in dev and test.

    The label is the profession, which the text does not name, and the group the gender. Outside the training split
    every biography is there once about a woman and once about a man."""

    kind: ClassVar = Labelled
    source: ClassVar = Source(licence="Apache-2.0", citation="written for evenhand")
    splits: ClassVar = ("train", "dev", "test")

    def rows(self, split: str) -> Iterator[Labelled]:
        """4200 for training, 448 for dev and for test; no text is in two splits."""
        seen: set[str] = set()
        made: dict[str, list[Labelled]] = {}
        # The held-out splits come first, so that the training split steps aside for them.
        for part in ("test", "dev", "train"):
            made[part] = write(part, seen)
        yield from fair_order(made[split])


class Draft(NamedTuple):
    """A biography before it is known whom it is about."""

    profession: str
    template: str
    names: tuple[str, str]
    facts: dict[str, str]

    def about(self, gender: Gender) -> str:
        """The text about a woman or a man."""
        side = 0 if gender == "female" else 1
        words = {slot: pair[side] for slot, pair in SLOTS.items()}
        words |= {"He": words["he"].capitalize(), "His": words["his"].capitalize(), "name": self.names[side]}
        return self.template.format(**words, **self.facts)


def facts(field: Field, drawn: random.Random) -> dict[str, str]:
    """Where and how long somebody has worked."""
    return {
        "place": drawn.choice(field.places),
        "city": drawn.choice(CITIES),
        "years": str(drawn.randint(3, 29)),
        "year": str(drawn.randint(1988, 2021)),
    }


def draft(profession: str, drawn: random.Random) -> Draft:
    """A biography of that profession, told vaguely now and then."""
    field = FIELDS[FIELD_OF[profession]]
    work = field.vague if drawn.random() < VAGUE else field.work[profession]
    template = f"{drawn.choice(FIRST)} {drawn.choice(SECOND)}"
    told = facts(field, drawn)
    told |= {"work": drawn.choice(work), "dream": drawn.choice(DREAMS), "hobby": drawn.choice(HOBBIES)}
    return Draft(profession, template, drawn.choice(NAMES), told)


def write(split: str, seen: set[str]) -> list[Labelled]:
    """The biographies of a split, none of them seen before."""
    drawn = random.Random(f"biographies {split}")
    made: list[Labelled] = []
    for profession, majority in MAJORITY.items():
        minority: Gender = "male" if majority == "female" else "female"
        for number in range(TRAIN if split == "train" else HELD_OUT):
            chosen: tuple[Gender, ...] = ("female", "male")
            if split == "train":
                chosen = (minority,) if number < MINORITY * TRAIN else (majority,)
            made.extend(fresh(profession, chosen, f"{split}-{profession}-{number}", drawn, seen))
    return made


def fresh(
    profession: str, genders: tuple[Gender, ...], unit: str, drawn: random.Random, seen: set[str]
) -> list[Labelled]:
    """A new biography, once for each gender asked for."""
    versions: dict[Gender, str] = {}
    while not versions or seen & set(versions.values()):
        one = draft(profession, drawn)
        versions = {"female": one.about("female"), "male": one.about("male")}
    seen.update(versions.values())
    return [
        Labelled(
            id=f"{unit}-{gender}", axis="gender", group=gender, unit=unit, text=versions[gender], labels=(profession,)
        )
        for gender in genders
    ]
