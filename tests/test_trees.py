"""Trees: every sequence is found again, nothing sees more than its own beginning, and batches keep to their budget."""

import random

import numpy as np

from evenhand.trees import LARGEST, LEAST_SHARED, batches, plant, sees

Rows = list[tuple[int, ...]]


def random_rows(draw: random.Random) -> Rows:
    """Short rows over few tokens, so that they share many beginnings."""
    rows = {tuple(draw.randrange(3) for _ in range(draw.randint(1, 9))) for _ in range(draw.randint(1, 30))}
    return draw.sample(sorted(rows), len(rows))


def test_every_sequence_stands_on_its_path() -> None:
    draw = random.Random(0)
    saved = 0
    for _ in range(300):
        rows = random_rows(draw)
        trees, places = plant(rows, True)
        for row, place in zip(rows, places, strict=True):
            tree = trees[place.tree]
            assert tuple(tree.tokens[token] for token in place.path) == row
            assert [tree.depths[token] for token in place.path] == list(range(len(row)))
        run = sum(len(tree.tokens) for tree in trees)
        assert run <= sum(map(len, rows))
        saved += sum(map(len, rows)) - run
    assert saved > 1000


def test_a_token_sees_its_own_beginning_and_nothing_else() -> None:
    draw = random.Random(1)
    for _ in range(100):
        rows = random_rows(draw)
        trees, places = plant(rows, True)
        for number, tree in enumerate(trees):
            size = len(tree.tokens) + draw.randint(0, 3)
            expected = np.eye(size, dtype=bool)
            for place in places:
                if place.tree == number:
                    for depth, token in enumerate(place.path):
                        expected[token, place.path[: depth + 1]] = True
            count = len(tree.tokens)
            found = sees([tree], size)[0].numpy()
            np.testing.assert_array_equal(found[:count, :count], expected[:count, :count])
            assert found.diagonal().all(), "what pads a row looks at itself at least"
            assert not np.triu(found, 1).any()
            assert tree.is_chain == bool((found[:count, :count] == np.tri(count, dtype=bool)).all())


def test_unshared_sequences_are_chains_of_their_own() -> None:
    rows = random_rows(random.Random(2))
    trees, places = plant(rows, False)
    assert sorted(place.tree for place in places) == list(range(len(rows)))
    assert all(tree.is_chain for tree in trees)


def test_a_tree_does_not_outgrow_its_room() -> None:
    rows = [(1, 2, 3, *(10 + number, 4, 5, 6)) for number in range(200)]
    trees, _ = plant(rows, True)
    assert len(trees) > 1
    assert all(len(tree.tokens) <= LARGEST for tree in trees)
    long = [(*range(300), number) for number in range(3)]
    assert [len(tree.tokens) for tree in plant(long, True)[0]] == [303]
    apart = [(*range(LEAST_SHARED - 1), 50 + number, 7) for number in range(3)]
    assert len(plant(apart, True)[0]) == 3


def test_batches_hold_every_tree_once_within_the_budget() -> None:
    draw = random.Random(3)
    for _ in range(200):
        trees, _ = plant(random_rows(draw), draw.random() < 0.7)
        budget = draw.randint(1, 60)
        found = batches(trees, budget)
        assert sorted(number for part in found for number in part) == list(range(len(trees)))
        for part in found:
            widest = max(len(trees[number].tokens) for number in part)
            assert len(part) == 1 or len(part) * widest <= budget
            assert len({trees[number].is_chain for number in part}) == 1
