"""Texts with their gendered English words exchanged: what is said of a woman is said of a man, and the other way.

Given names stay as they are, and so do words that only sometimes name a gender (host, lord, miss); a surname that is
such a word (King) is exchanged too."""

import re

from evenhand.words import FEMALE_WORDS, MALE_WORDS

__all__ = ["PAIRS", "swapped"]

# A word and its counterpart; the three that have two (her, his, and Ms beside Mrs) are decided in `counterpart`.
PAIRS: tuple[tuple[str, str], ...] = (
    *zip(MALE_WORDS, FEMALE_WORDS, strict=True),
    ("himself", "herself"),
    *(("mr", "mrs"), ("men", "women"), ("males", "females"), ("boys", "girls"), ("fathers", "mothers")),
    *(("sons", "daughters"), ("brothers", "sisters"), ("kings", "queens"), ("actors", "actresses")),
    *(("husbands", "wives"), ("uncles", "aunts"), ("gentleman", "lady"), ("gentlemen", "ladies")),
    *(("dad", "mom"), ("dads", "moms"), ("daddy", "mommy"), ("grandfather", "grandmother"), ("grandpa", "grandma")),
    *(("grandfathers", "grandmothers"), ("grandson", "granddaughter"), ("grandsons", "granddaughters")),
    *(
        ("stepfather", "stepmother"),
        ("stepson", "stepdaughter"),
        ("stepbrother", "stepsister"),
        ("godfather", "godmother"),
    ),
    *(("nephew", "niece"), ("nephews", "nieces"), ("boyfriend", "girlfriend"), ("boyfriends", "girlfriends")),
    *(("groom", "bride"), ("grooms", "brides"), ("widower", "widow"), ("widowers", "widows"), ("lad", "lass")),
    *(("prince", "princess"), ("princes", "princesses"), ("duke", "duchess"), ("emperor", "empress")),
    *(("hero", "heroine"), ("heroes", "heroines"), ("heir", "heiress"), ("waiter", "waitress")),
    *(
        ("waiters", "waitresses"),
        ("steward", "stewardess"),
        ("landlord", "landlady"),
        ("monk", "nun"),
        ("monks", "nuns"),
    ),
    *(("masculine", "feminine"), ("manhood", "womanhood"), ("fatherhood", "motherhood"), ("brotherhood", "sisterhood")),
    *(("chairman", "chairwoman"), ("businessman", "businesswoman"), ("businessmen", "businesswomen")),
    *(("policeman", "policewoman"), ("policemen", "policewomen"), ("spokesman", "spokeswoman")),
    *(("salesman", "saleswoman"), ("congressman", "congresswoman"), ("sportsman", "sportswoman")),
)
COUNTERPART: dict[str, str] = {
    **dict(PAIRS),
    **{female: male for male, female in PAIRS},
    "ms": "mr",
    "ma'am": "sir",
}
# What follows an object ("told her that") and never what is owned ("her book"): a word not listed is taken for a noun.
NOT_OWNED = frozenset(
    word.strip()
    for word in """
    a an the this that these those some any every each no another
    about above across after against along among around as at before behind below beside besides between beyond by
    despite down during except for from in inside into like near of off on onto out outside over regarding since
    through throughout to toward towards under until up upon via when whenever where wherever whether while with within
    without and but if nor or so than because although though unless yet what who whom why how which
    i you he she it we they me him us them her his my your our their its myself himself herself itself themselves
    is was are were be been has had have do does did will would can could may might must shall should not never
    again ago almost already also always away even ever everything everywhere here however instead just later maybe now
    nothing often once perhaps quite rather really something sometimes soon still then there today tomorrow tonight too
    twice well yesterday
    become come feel find get give go keep know laugh leave make see seem speak stay think understand
    """.replace("\n", " ").split()
)
WORD = re.compile(rf"\b(?:{'|'.join(sorted(map(re.escape, COUNTERPART), key=len, reverse=True))})\b", re.IGNORECASE)
# The word that follows: behind an opening quotation mark too, and behind the second of "his or her" and "his/her".
NEXT = re.compile(r"""(?:\s*(?:/|\bor\b)\s*(?:his|her)\b)?\s+["'“‘]?([\w'’-]+)""", re.IGNORECASE)


def swapped(text: str) -> str:
    """The text with every gendered word exchanged for its counterpart, in its own capitals."""

    def exchange(found: re.Match[str]) -> str:
        word = found.group()
        return in_capitals(counterpart(word.lower(), text[found.end() :]), word)

    return WORD.sub(exchange, text)


def counterpart(word: str, rest: str) -> str:
    """The word of the other gender: `her` and `his` are one word for two, and what follows tells them apart."""
    if word == "her":
        return "his" if owns(rest) else "him"
    if word == "his":
        return "her" if owns(rest) else "hers"
    return COUNTERPART[word]


def owns(rest: str) -> bool:
    """Whether what follows is something owned: a word that can be a noun or stand before one."""
    following = NEXT.match(rest)
    return following is not None and following.group(1).lower() not in NOT_OWNED


def in_capitals(word: str, model: str) -> str:
    """A word in the capitals of another: all, the first, or none."""
    if len(model) > 1 and model.isupper():
        return word.upper()
    return word.capitalize() if model[0].isupper() else word
