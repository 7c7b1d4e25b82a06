"""Writes a small linguistic-acceptability task in the layout of CoLA: train.tsv, dev.tsv, test.tsv.

    python scripts/make_acceptability_data.py --output_dir data/acceptability

`train.tsv` and `dev.tsv` have no header and four columns: phenomenon, label (1 acceptable, 0 not), the
annotation ('' or '*'), sentence. `test.tsv` has the header `index<TAB>sentence` and no labels.

Four phenomena of equal size fill the first column: `agr` (subject-verb agreement, also across attractors),
`refl` (reflexives: person, number, gender and c-command), `order` (word order: a bad sentence has the very
words of its good partner) and `args` (argument structure). 60 per cent of each phenomenon is acceptable.

The grammar is a finite list of frames. A frame is one choice of content words in one construction and holds
all minimal pairs these give, e.g. both the singular and the plural one. What is guaranteed:
  * A frame gives at most one pair to the whole data set: its good sentence and, in two cases of three, its
    bad one. So the partners of a pair are in one split, and what else a sentence turns into by another number
    or gender ("The girl hurt himself again" from "The boy hurt himself again") is in none.
  * No sentence of the grammar is in two frames or has both labels, so none occurs twice in the data.
  * The same flags give the same bytes. (A change of one size changes all three files.)
Not guaranteed: the splits share words and constructions, so dev tells about grammar, not about unseen words.
Left out, since speakers differ: order among adjectives, collective nouns, `themselves` for `the nurse`. But
`themselves` for one boy, he or king counts as bad.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from functools import lru_cache
from itertools import permutations, product
from string import Formatter
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from errors import UserError, exits_on_user_error  # noqa: E402  needs the path above

Pair = Tuple[str, str]  # the good and the bad sentence
Frame = List[Pair]

# Not a half, so that the majority class is a baseline to beat; CoLA itself has 70 per cent.
ACCEPTABLE_SHARE = 0.6
MIN_SIZE = 8  # one sentence of each label for each of the four phenomena


class Example(NamedTuple):
    """One line of the data: the phenomenon it tests, whether it is acceptable, and its text."""

    source: str
    label: int
    sentence: str


# --- Words. Any combination that a template can make of them has to be clearly good, or clearly bad.

# The same people are subjects, attractors and objects: a noun alone says nothing about the label.
PEOPLE = ("teacher", "student", "doctor", "farmer", "lawyer", "pilot", "singer", "nurse", "writer", "driver")
AGE = ("young", "old", "tall", "friendly", "famous")
SIDES = ("near", "behind", "beside")
# Never bare noun phrases such as `yesterday`: after a transitive verb those could be read as its object.
TAILS = ("at the party", "again", "on Monday", "during the meeting", "after lunch", "in London")

# Slots of the templates. A slot in capitals varies within a frame, the others tell frames apart.
LEXICON: Dict[str, Sequence] = {
    "p": PEOPLE, "q": PEOPLE, "a": AGE, "side": SIDES, "tail": TAILS, "met": ("met", "visited", "thanked"),
    # Agreement: (singular, plural). No verb whose plural is its past tense too (`cost`): it would fit both.
    "w": (("is tired", "are tired"), ("was late", "were late"), ("has a garden", "have a garden"),
          ("laughs loudly", "laugh loudly"), ("works hard", "work hard"), ("sings well", "sing well"),
          ("does not smoke", "do not smoke"), ("lives in London", "live in London")),
    "u": (("is expensive", "are expensive"), ("was sold", "were sold"), ("looks strange", "look strange"),
          ("has disappeared", "have disappeared"), ("belongs to Anna", "belong to Anna")),
    "ask": (("is", "are", "tired"), ("was", "were", "late"), ("has", "have", "left"),
            ("does", "do", "smoke"), ("is", "are", "working today"), ("does", "do", "live in London")),
    "know": (("knows", "know"), ("likes", "like"), ("admires", "admire")),
    "EVERY": (("every", "many"), ("each", "several"), ("every", "most")),
    "ONE": (("one", "two"), ("one", "some"), ("one", "most")),
    "x": ("picture", "painting", "photo", "drawing", "sketch"),
    "y": ("house", "horse", "tree", "bridge", "garden", "boat", "castle", "river"),
    # Word order. The verbs take -ed and -ing as they stand and make no resultative (`painted the door red`).
    "v": ("open", "clean", "repair", "lock", "inspect", "touch"),
    "t": ("cupboard", "door", "gate", "window", "suitcase", "drawer"),
    "size": ("small", "large", "heavy", "old"),
    "adv": ("quickly", "carefully", "slowly", "never", "rarely", "always"),
    "can": ("will", "must", "should", "could", "might"),
    "sat": ("slept", "waited", "sang", "laughed", "worked"),
    "up": (("picked", "up"), ("threw", "away"), ("gave", "back"), ("wrote", "down"), ("took", "apart"),
           ("used", "up"), ("brought", "back"), ("figured", "out")), "IT": ("it", "them"),
    # Argument structure.
    "iv": ("slept", "sneezed", "yawned", "fainted", "snored", "arrived", "hesitated", "giggled", "blushed"),
    "tv": ("damaged", "destroyed", "discovered", "mentioned", "fetched", "misplaced", "described", "admired"),
    "broke": ("damaged", "destroyed", "fetched", "misplaced", "repaired", "obtained"),
    "o": ("camera", "guitar", "lamp", "radio", "ring", "ticket", "map", "bicycle"),
    "put": ("put", "placed"), "gave": ("gave", "handed", "lent"),
    "place": ("in the garage", "near the stairs", "behind the door", "beside the window"),
    "told": ("explained", "described", "mentioned", "revealed", "reported", "announced"),
    "idea": ("plan", "problem", "solution", "idea", "mistake"),
    "thought": ("thought", "hoped", "insisted", "complained", "bragged"),
    "WAS": ("was expensive", "was old", "was broken", "was missing", "was new"),
    "do": ("sell", "buy", "paint", "clean", "repair", "carry"),
    "to_do": ("decided", "hoped", "agreed", "wanted", "pretended", "promised"),
    "doing": ("enjoyed", "avoided", "considered", "denied", "kept", "imagined"),
    "about": ("talked", "joked", "complained", "lied", "spoke"),
    "no_about": ("discussed", "mentioned", "described", "rejected", "ignored"),
    "to": ("spoke", "listened", "talked", "apologized", "replied"),
    "no_to": ("greeted", "thanked", "praised", "hugged", "interviewed"),
    "at": ("looked", "stared", "glanced", "smiled"),
    "no_at": ("noticed", "examined", "photographed", "touched"),
    "for": ("waited", "longed", "hoped", "prayed"), "no_for": ("received", "expected", "noticed", "rejected"),
    "prize": ("prize", "reward", "letter", "present"),
}
LEXICON.update(O=LEXICON["o"], PLACE=LEXICON["place"])

# --- Templates: (good, bad, more bad ones). `(n)` is the plural -s, `[n]` the form of that number, `[-n]`
# the other form; `n` and `m` run over singular and plural within a frame.

AGREEMENT = (
    ("the {a} {p}(n) {w[n]}.", "the {a} {p}(n) {w[-n]}."),
    ("{EVERY[n]} {a} {p}(n) {w[n]}.", "{EVERY[n]} {a} {p}(n) {w[-n]}."),
    ("{ONE[n]} of the {a} {p}s {w[n]}.", "{ONE[n]} of the {a} {p}s {w[-n]}."),
    ("the {x}(n) of the {y}(m) {u[n]}.", "the {x}(n) of the {y}(m) {u[-n]}."),
    ("the {p}(n) {side} the {q}(m) {w[n]}.", "the {p}(n) {side} the {q}(m) {w[-n]}."),
    ("the {p}(n) who {met} the {q}(m) {w[n]}.", "the {p}(n) who {met} the {q}(m) {w[-n]}."),
    ("the {p}(n) that the {q}(m) {know[m]} {w[n]}.", "the {p}(n) that the {q}(m) {know[m]} {w[-n]}.",
     "the {p}(n) that the {q}(m) {know[-m]} {w[n]}."),
    ("the {p}(n) and the {q}(m) {w[1]}.", "the {p}(n) and the {q}(m) {w[0]}."),
    ("{ask[n]} the {p}(n) {side} the {q}(m) {ask[2]}?", "{ask[-n]} the {p}(n) {side} the {q}(m) {ask[2]}?"),
)
ORDER = (
    ("the {p} {v}ed the {t} {tail}.", "{p} the {v}ed the {t} {tail}.", "the {p} {v}ed {t} the {tail}.",
     "{v}ed the {p} the {t} {tail}.", "the {v}ed {p} the {t} {tail}."),
    ("the {a} {p} {v}ed the {t}.", "the {p} {a} {v}ed the {t}.", "{a} the {p} {v}ed the {t}."),
    ("the {p} {v}ed the {size} {t}.", "the {p} {v}ed the {t} {size}.", "the {p} {v}ed {size} the {t}."),
    ("the {p} {v}ed the very {size} {t}.", "the {p} {v}ed the {size} very {t}.",
     "the {p} {v}ed very the {size} {t}."),
    ("the {p} {v}ed these three {t}s.", "the {p} {v}ed three these {t}s."),
    ("the {p} {v}ed all the {t}s.", "the {p} {v}ed the all {t}s."),
    ("the {p} {v}ed the {q}'s {t}.", "the {p} {v}ed {q}'s the {t}.", "the {p} {v}ed the {t} {q}'s."),
    ("the {p} {adv} {v}ed the {t}.", "the {p} {v}ed {adv} the {t}.", "the {adv} {p} {v}ed the {t}."),
    ("the {p} {can} have {v}ed the {t}.", "the {p} have {can} {v}ed the {t}."),
    ("the {p} {can} not {v} the {t}.", "the {p} not {can} {v} the {t}.", "the {p} {v} {can} not the {t}."),
    ("the {p} has been {v}ing the {t}.", "the {p} been has {v}ing the {t}.",
     "the {p} has {v}ing been the {t}."),
    ("what {can} the {p} {v} {tail}?", "what the {p} {can} {v} {tail}?"),
    ("why has the {p} {v}ed the {t}?", "why the {p} has {v}ed the {t}?", "why has {v}ed the {p} the {t}?"),
    ("the {q} knows what the {p} {can} {v}.", "the {q} knows what {can} the {p} {v}."),
    ("the {q} forgot why the {p} had {v}ed the {t}.", "the {q} forgot why had the {p} {v}ed the {t}."),
    ("the {p} {sat} {side} the {t} {tail}.", "the {p} {sat} the {t} {side} {tail}."),
    ("the {p} {up[0]} {IT} {up[1]} {tail}.", "the {p} {up[0]} {up[1]} {IT} {tail}."),
)
ARGUMENTS = (
    ("the {p} {iv} {tail}.", "the {p} {iv} the {O} {tail}."),
    ("the {p} {tv} the {O} {tail}.", "the {p} {tv} {tail}."),
    ("the {p} {tv} the {O} {place}.", "the {p} {tv} {place}."),
    ("the {p} {put} the {o} {PLACE}.", "the {p} {put} the {o}."),
    ("the {p} {put} the {O} {place} {tail}.", "the {p} {put} {place} {tail}."),
    ("the {p} {gave} the {q} the {O}.", "the {p} {gave} the {q}."),
    ("the {p} {told} the {idea} to the {q}.", "the {p} {told} the {q} the {idea}."),
    ("the {p} {thought} that the {o} {WAS}.", "the {p} {thought} the {o}."),
    ("the {p} {broke} the {o}.", "the {p} {broke} that the {o} {WAS}."),
    ("the {p} {to_do} to {do} the {o}.", "the {p} {to_do} {do}ing the {o}."),
    ("the {p} {doing} {do}ing the {o}.", "the {p} {doing} to {do} the {o}."),
    ("the {p} {about} about the {idea} {tail}.", "the {p} {about} the {idea} {tail}."),
    ("the {p} {no_about} the {idea} {tail}.", "the {p} {no_about} about the {idea} {tail}."),
    ("the {p} {to} to the {q} {tail}.", "the {p} {to} the {q} {tail}."),
    ("the {p} {no_to} the {q} {tail}.", "the {p} {no_to} to the {q} {tail}."),
    ("the {p} {at} at the {o} {tail}.", "the {p} {at} the {o} {tail}."),
    ("the {p} {no_at} the {o} {tail}.", "the {p} {no_at} at the {o} {tail}."),
    ("the {p} {for} for the {prize} {tail}.", "the {p} {for} the {prize} {tail}."),
    ("the {p} {no_for} the {prize} {tail}.", "the {p} {no_for} for the {prize} {tail}."),
)


def capitalised(text: str) -> str:
    """The text with a capital first letter; `str.capitalize` would lower the names in it."""
    return text[0].upper() + text[1:]


def in_all_numbers(templates: Sequence[str]) -> List[List[str]]:
    """The templates with `n` and `m` set to singular and plural in all ways that differ."""
    variants = []
    for n, m in product((0, 1), repeat=2):
        filled = list(templates)
        for letter, number in (("n", n), ("m", m)):
            for mark, form in (("({})", "s" * number), ("[{}]", f"[{number}]"), ("[-{}]", f"[{1 - number}]")):
                filled = [template.replace(mark.format(letter), form) for template in filled]
        if filled not in variants:
            variants.append(filled)
    return variants


def frames_of(templates: Sequence[str]) -> Iterator[Frame]:
    """All frames that one row of templates gives with the lexicon."""
    fields = {name for template in templates for _, name, _, _ in Formatter().parse(template) if name}
    slots = sorted({name.split("[")[0] for name in fields})
    outer = [slot for slot in slots if slot.islower()]
    inner = [slot for slot in slots if slot.isupper()]
    variants = in_all_numbers(templates)
    for outer_words in product(*(LEXICON[slot] for slot in outer)):
        words = dict(zip(outer, outer_words))
        if words.get("p") == words.get("q", ""):
            continue  # nobody is met, thanked or stood beside by himself
        frame = []
        for variant, inner_words in product(variants, product(*(LEXICON[slot] for slot in inner))):
            words.update(zip(inner, inner_words))
            good, *bad = (capitalised(template.format(**words)) for template in variant)
            frame += [(good, sentence) for sentence in bad]
        yield frame


# --- Reflexives: the bad form depends on the features of two phrases, which templates cannot say.

SELF_VERBS = ("hurt", "blamed", "defended", "praised", "described", "introduced", "admired", "criticized",
              "injured", "surprised", "protected", "embarrassed")
GENDERED = (("boy", "girl"), ("king", "queen"), ("prince", "princess"), ("waiter", "waitress"),
            ("man", "woman"), ("duke", "duchess"), ("monk", "nun"))
KIN = (("brother", "sister"), ("uncle", "aunt"), ("nephew", "niece"), ("grandfather", "grandmother"))
NAMES = (("John", "Mary"), ("Peter", "Susan"), ("David", "Anna"), ("Robert", "Laura"), ("Thomas", "Alice"))
# No `helped`: in `who helped the boy hurt himself` the boy may be the one who hurts.
LINKS = ("{head} near {other}", "{head} behind {other}", "{head} beside {other}", "{head} who met {other}",
         "{head} who visited {other}", "{head} that {other} thanked")
# No overlapping reference (`We blamed myself`): speakers differ on it.
PERSONS = {
    ("I", "myself"): ("yourself", "himself", "themselves"), ("we", "ourselves"): ("yourself", "themselves"),
    ("you", "yourself"): ("myself", "herself", "themselves"), ("he", "himself"): ("herself", "themselves"),
    ("she", "herself"): ("himself", "myself"), ("they", "themselves"): ("himself", "myself", "ourselves"),
}


def in_both_genders(nouns: Sequence[str], article: str = "the ") -> List[Pair]:
    """The phrases of a man's and a woman's noun in singular and plural, each with the reflexive it binds."""
    plurals = [{"man": "men", "woman": "women"}.get(noun, noun + ("es" if noun.endswith("ss") else "s"))
               for noun in nouns]
    forms = zip((*nouns, *plurals), ("himself", "herself", "themselves", "themselves"))
    return [(article + form, reflexive) for form, reflexive in forms]


def reflexive_pairs(subjects: Sequence[Tuple[str, str, str]], rest: str) -> Frame:
    """The pairs of each (subject, its reflexive, a wrong one); `{}` in `rest` is where the reflexive goes."""
    return [(capitalised(f"{subject} {rest}".format(good)), capitalised(f"{subject} {rest}".format(bad)))
            for subject, good, bad in subjects]


def binding(heads: Sequence[Pair], others: Sequence[Pair], subject: str, rest: str) -> Frame:
    """The pairs whose bad reflexive matches another phrase of the sentence, which cannot bind it."""
    return reflexive_pairs(
        [(subject.format(head=head, other=other), good, bad)
         for (head, good), (other, bad) in product(heads, others) if good != bad], rest)


def reflexives() -> List[Iterator[Frame]]:
    """The constructions with reflexives."""
    verbs, named = SELF_VERBS, [list(zip(names, ("himself", "herself"))) for names in NAMES]
    both = {nouns: in_both_genders(nouns) for nouns in GENDERED}
    wrong = ("herself", "himself", "himself", "herself")  # `themselves` for one boy is for `binding` to test
    persons = [(*subject, bad) for subject, all_bad in PERSONS.items() for bad in all_bad]
    return [
        # The girl hurt herself / *himself again. The girls hurt themselves / *herself again.
        (reflexive_pairs([(*head, bad) for head, bad in zip(heads, wrong)], f"{verb} {{}} {tail}.")
         for heads, verb, tail in product(both.values(), verbs, TAILS)),
        # We almost blamed ourselves / *themselves again.
        (reflexive_pairs(persons, f"{adverb}{verb} {{}} {tail}.")
         for adverb, verb, tail in product(("almost ", "really ", "never ", ""), verbs, TAILS)),
        # Mary's uncle hurt himself / *herself again.
        (binding(in_both_genders(kin, ""), names, "{other}'s {head}", f"{verb} {{}} {tail}.")
         for kin, names, verb, tail in product(KIN, named, verbs, TAILS)),
        # The king near the girls hurt himself / *themselves. The nun who met the boy hurt herself / *himself.
        (binding(both[head], both[other], link, verb + " {}.")
         for (head, other), link, verb in product(permutations(both, 2), LINKS, verbs)),
        # Mary said that the boys hurt themselves / *herself. The boys said Mary hurt herself / *themselves.
        (binding(*phrases[::turn], f"{{other}} {claim} that {{head}}", verb + " {}.")
         for phrases in product(both.values(), named)
         for turn, claim, verb in product((1, -1), ("said", "thought", "knew"), verbs)),
        # The young king praised himself. *Himself praised the young king.
        ([(capitalised(f"{head} {verb} {reflexive}."), capitalised(f"{reflexive} {verb} {head}."))
          for head, reflexive in in_both_genders(nouns, f"the {adjective} ")]
         for adjective, nouns, verb in product(AGE, GENDERED, verbs)),
    ]


# --- From the grammar to the files.

PHENOMENA = ("agr", "refl", "order", "args")


@lru_cache(maxsize=1)
def grammar() -> Dict[str, List[List[Frame]]]:
    """For each phenomenon its constructions, each as the list of all its frames."""
    tables = {"agr": AGREEMENT, "order": ORDER, "args": ARGUMENTS}
    constructions = {name: [frames_of(templates) for templates in table] for name, table in tables.items()}
    constructions["refl"] = reflexives()
    return {name: [list(frames) for frames in constructions[name]] for name in PHENOMENA}


def draw_frames(pools: List[List[Frame]], count: int, rng: random.Random) -> List[Frame]:
    """Draws frames at random, in equal parts from all constructions for as long as these last."""
    pools = [rng.sample(pool, len(pool)) for pool in pools]
    frames: List[Frame] = []
    while len(frames) < count:
        pools = [pool for pool in pools if pool]
        frames += [pool.pop() for pool in pools]
    # Cut before the shuffle, which spreads all constructions evenly over splits and labels.
    return rng.sample(frames[:count], count)


def check_sizes(sizes: Dict[str, int], capacity: int) -> None:
    """Raises a `UserError` for a size that cannot be; `capacity` is the frames of the poorest phenomenon."""
    for split, size in sizes.items():
        if size < MIN_SIZE:
            raise UserError(f"--{split}_size is {size}; it has to be at least {MIN_SIZE}, to hold both "
                            "labels of each phenomenon.")
    total, most = sum(sizes.values()), int(len(PHENOMENA) * (capacity - 3) / ACCEPTABLE_SHARE)
    if total > most:  # the 3 above: each of the splits may round up
        raise UserError(f"--train_size, --dev_size and --test_size are {total} together; the grammar has "
                        f"only enough for {most}, ask for fewer.")


def make_splits(sizes: Dict[str, int], seed: int) -> Dict[str, List[Example]]:
    """Makes all splits.

    Args:
      sizes: for each split how many sentences to make.
      seed: the same seed gives the same splits.

    Returns:
      For each split its examples, in random order.

    Raises:
      UserError: a size is too small to hold each label of each phenomenon, or larger than the grammar.
    """
    check_sizes(sizes, min(sum(map(len, pools)) for pools in grammar().values()))
    splits: Dict[str, List[Example]] = {split: [] for split in sizes}
    for position, (phenomenon, pools) in enumerate(grammar().items()):
        # A generator of its own, so that a change to one phenomenon leaves the sentences of the others alone.
        rng = random.Random(f"{seed} {phenomenon}")
        totals = {split: (size + position) // len(PHENOMENA) for split, size in sizes.items()}
        goods = {split: round(ACCEPTABLE_SHARE * total) for split, total in totals.items()}
        frames = iter(draw_frames(pools, sum(goods.values()), rng))
        for split, examples in splits.items():
            for index in range(goods[split]):
                good, bad = rng.choice(next(frames))
                examples.append(Example(phenomenon, 1, good))
                if index < totals[split] - goods[split]:
                    examples.append(Example(phenomenon, 0, bad))
    for split, examples in splits.items():
        random.Random(f"{seed} {split}").shuffle(examples)
    return splits


def as_tsv(split: str, examples: Sequence[Example]) -> str:
    """The text of a split's file, in CoLA's layout."""
    if split == "test":
        rows = ["index\tsentence"] + [f"{index}\t{e.sentence}" for index, e in enumerate(examples)]
    else:
        rows = ["\t".join((e.source, str(e.label), "" if e.label else "*", e.sentence)) for e in examples]
    return "".join(row + "\n" for row in rows)


def write_files(texts: Dict[str, str], overwrite: bool) -> List[str]:
    """Writes each text to its path, whole or not at all.

    Args:
      texts: for each path its text.
      overwrite: whether to replace files that hold something else.

    Returns:
      The paths that were written; files which held their text already are not touched.

    Raises:
      UserError: files with other contents are there (then nothing is written), or the disk refuses.
    """
    try:
        existing = {}
        for path in filter(os.path.exists, texts):
            with open(path, "rb") as file:
                existing[path] = file.read()
        different = [path for path, data in existing.items() if data != texts[path].encode("utf-8")]
        if different and not overwrite:
            raise UserError(f"There already, with other contents: {', '.join(different)}; give another "
                            "--output_dir, or --overwrite to replace them.")
        to_write = [path for path in texts if path not in existing or path in different]
        for path in to_write:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + ".tmp", "wb") as file:
                file.write(texts[path].encode("utf-8"))
            os.replace(path + ".tmp", path)
    except OSError as error:
        raise UserError(f"Cannot write the data: {error}; give another --output_dir.") from error
    return to_write


def summary(splits: Dict[str, List[Example]]) -> str:
    """A table of the number of sentences by split and phenomenon, and the share that is acceptable."""
    lines = [" ".join(f"{head:>10}" for head in ("split", *PHENOMENA, "all", "acceptable"))]
    for split, examples in splits.items():
        counts = [sum(e.source == phenomenon for e in examples) for phenomenon in PHENOMENA]
        share = f"{sum(e.label for e in examples) / len(examples):.1%}"
        lines.append(" ".join(f"{cell:>10}" for cell in (split, *counts, len(examples), share)))
    return "\n".join(lines)


@exits_on_user_error
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Makes the splits, writes their files and prints what is in them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="where to write train.tsv, dev.tsv and test.tsv")
    for split, size in (("train", 4000), ("dev", 500), ("test", 500)):
        parser.add_argument(f"--{split}_size", type=int, default=size, help="sentences (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all random choices (default %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace files that hold something else")
    args = parser.parse_args(argv)

    splits = make_splits({"train": args.train_size, "dev": args.dev_size, "test": args.test_size}, args.seed)
    output_dir = os.path.abspath(args.output_dir)
    texts = {os.path.join(output_dir, f"{split}.tsv"): as_tsv(split, splits[split]) for split in splits}
    written = write_files(texts, args.overwrite)
    for path in texts:
        print("{}: {}".format(path, "written" if path in written else "already there, unchanged"))
    print(summary(splits))


if __name__ == "__main__":
    main()
