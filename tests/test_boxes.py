"""Overlaps and gaps of boxes, against lists of their elements."""

from __future__ import annotations

import itertools
import random

from tload._tensors import index_boxes

Elements = set[tuple[int, ...]]


def elements(box: index_boxes.Box) -> Elements:
    return set(itertools.product(*(range(start, end) for start, end in box)))


def test_random_boxes_match_element_sets() -> None:
    any_of = random.Random(3)
    found = {"overlapping": 0, "complete": 0}

    def interval(length: int) -> tuple[int, int]:
        start = any_of.randrange(length)
        return start, any_of.randrange(start + 1, length + 1)

    for _ in range(4000):
        shape = [any_of.randrange(1, 6) for _ in range(any_of.randrange(4))]
        boxes = [tuple(map(interval, shape)) for _ in range(any_of.randrange(7))]
        pairs = {frozenset(pair) for pair in index_boxes.overlaps(boxes)}
        numbered = list(enumerate(map(elements, boxes)))
        both = {frozenset((i, j)) for (i, one), (j, other) in itertools.combinations(numbered, 2) if one & other}
        assert pairs == both, boxes
        gaps = list(index_boxes.missing(shape, boxes))
        lacking = elements(tuple((0, length) for length in shape)).difference(*map(elements, boxes))
        assert set().union(*map(elements, gaps)) == lacking, boxes
        assert sum(map(index_boxes.size, gaps)) == len(lacking), "no element twice"
        found["overlapping"] += bool(both)
        found["complete"] += not lacking
    assert min(found.values()) > 200, found


def test_gaps_are_boxes_of_missing_ranks() -> None:
    rows = [((start, start + 1024), (0, 8)) for start in range(0, 4096, 1024)]
    gaps = index_boxes.missing((4096, 8), [rows[0], rows[2]])
    assert list(map(index_boxes.show, gaps)) == ["[1024:2048, 0:8]", "[3072:4096, 0:8]"]
    assert list(index_boxes.missing((4096, 8), rows)) == []


def test_slabs_are_rows_of_a_box() -> None:
    box = ((3, 8), (2, 6))
    assert list(index_boxes.slabs(box, 8)) == [((3, 5), (2, 6)), ((5, 7), (2, 6)), ((7, 8), (2, 6))]
    assert len(list(index_boxes.slabs(box, 1))) == 5
    assert list(index_boxes.slabs((), 8)) == [()]
