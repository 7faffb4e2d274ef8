"""A rank's share of a batch from its parts.

In: the parts of one rank, each cut to fit into a message. Out: one `Shard`. Promises: each
trajectory has one sequence, the longest that any part brought, and all its windows stand in it;
only the order of the windows depends on how the share was cut.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from headrace.protocol.messages.batches import (
    BatchSequence,
    GroupScores,
    PolicyWindow,
    Shard,
    ValueTrajectory,
)


def merge_shards(parts: Iterable[Shard]) -> Shard:
    """Merge the parts of a rank's share into one shard."""
    place: dict[int, int] = {}
    sequences: list[BatchSequence] = []
    windows: list[PolicyWindow] = []
    values: list[ValueTrajectory] = []
    groups: dict[tuple[int, ...], GroupScores] = {}
    for part in parts:
        places = []
        for sequence in part.sequences:
            known = place.setdefault(sequence.trajectory_id, len(sequences))
            if known == len(sequences):
                sequences.append(sequence)
            elif sequence.token_ids.size > sequences[known].token_ids.size:
                sequences[known] = sequence
            places.append(known)
        windows += [replace(w, sequence=places[w.sequence]) for w in part.windows]
        values += [replace(v, sequence=places[v.sequence]) for v in part.values]
        groups |= {(g.group_id, *g.trajectory_ids): g for g in part.groups}
    return Shard(sequences=sequences, windows=windows, values=values, groups=list(groups.values()))
