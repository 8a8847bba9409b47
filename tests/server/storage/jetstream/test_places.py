"""Sets of places, against sets of numbers."""

from __future__ import annotations

import random
from itertools import pairwise

from gradwatch_server.storage.jetstream.places import Places


def test_places_are_a_set_of_numbers() -> None:
    """However they come together, and over encoding."""
    chosen = random.Random(3)
    places, numbers = Places(), set[int]()
    for _ in range(300):
        first = chosen.randrange(1, 60)
        last = first + chosen.randrange(-1, 5)
        one = chosen.randrange(1, 60)
        places |= Places([(first, last)]) | Places.of([one])
        numbers |= {one, *range(first, last + 1)}
        assert len(places) == len(numbers)
        if chosen.random() < 0.1:
            first = chosen.randrange(70)
            places, numbers = places.since(first), {own for own in numbers if own >= first}
        places = Places.decode(places.encode())
        low, high = sorted((chosen.randrange(70), chosen.randrange(70)))
        assert [own in places for own in range(70)] == [own in numbers for own in range(70)]
        assert places.count(low, high) == sum(low <= own <= high for own in numbers)
        gaps = [own for a, b in places.gaps(low, high) for own in range(a, b + 1)]
        assert gaps == [own for own in range(low, high + 1) if own not in numbers]
        assert all(b + 1 < c for (_, b), (c, _) in pairwise(places.ranges))
