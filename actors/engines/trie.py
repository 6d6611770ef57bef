"""The admissible replies of one turn as a token trie, for constrained decoding.

trie = TokenTrie([encode("go to fridge 1"), encode("look")], stop=eoa)
node = trie.root
node.allowed        # ids that may come next, sorted; `stop` where a reply is complete
node = node.next[token]
"""

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from protos.errors import DataError
from protos.records import TokenIds


class Node:
    """One prefix of the admissible replies."""

    def __init__(self) -> None:
        self.next: dict[int, Node] = {}

    @cached_property
    def allowed(self) -> TokenIds:
        """Ids that may follow this prefix, sorted. Read it when the trie is complete: it is computed once."""
        return np.array(sorted(self.next), dtype=np.int32)


class TokenTrie:
    """The set of `replies` (token sequences without the stop token), each closed by `stop`.

    Replies that encode alike share a path. Raises DataError where there is none: an empty set admits nothing to sample.
    """

    def __init__(self, replies: Iterable[TokenIds], stop: int) -> None:
        self.root = Node()
        for reply in replies:
            node = self.root
            for token in reply.tolist():
                node = node.next.setdefault(token, Node())
            node.next.setdefault(stop, Node())
        if not self.root.next:
            raise DataError(
                "constrained decoding needs at least one admissible command, and the environment lists none"
            )
