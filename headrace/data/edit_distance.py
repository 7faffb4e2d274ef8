"""Edit distance of two texts. Pure."""


def edit_distance(a: str, b: str) -> int:
    """Fewest insertions, deletions and replacements of a character that make `b` of `a`.

    A column of the table of distances is a few integers of len(a) bits, so a character of `b` costs
    a dozen operations on them. Source: Hyyro, "A bit-vector algorithm for computing Levenshtein and
    Damerau edit distances", 2003, after Myers, 1999.
    """
    if not a or not b:
        return len(a) + len(b)
    where: dict[str, int] = {}
    for place, character in enumerate(a):
        where[character] = where.get(character, 0) | 1 << place
    every, last, distance = (1 << len(a)) - 1, 1 << (len(a) - 1), len(a)
    more, less = every, 0  # rows of the column that are one more, one less than the row above
    for character in b:
        same = where.get(character, 0)
        diagonal = (((same & more) + more) ^ more) | same | less
        up = less | (every & ~(diagonal | more))
        down = diagonal & more
        distance += bool(up & last) - bool(down & last)
        up = (up << 1 | 1) & every
        down = (down << 1) & every
        more = down | (every & ~(diagonal | up))
        less = up & diagonal
    return distance
