"""DDTree: the best-first tree of draft tokens under the product of the block's marginals.

Source: "DDTree", arXiv 2604.12989, and its code liranringel/ddtree (`build_ddtree_tree`). This module builds one tree,
node by node, and is the authority here; `best_first` finds what many trees accept at once and is held equal to it.
"""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["Node", "Tree", "build_tree"]


class Node(NamedTuple):
    """One draft node.

    Attributes:
        token: token id.
        depth: 1..L; the node predicts the token at anchor + depth.
        parent: number of the parent node from 1, 0 for the root (the anchor).
        ranks: place of each token on the way from the root in its row, from 0.
        score: log-probability of the prefix under the product of marginals, float64.
    """

    token: int
    depth: int
    parent: int
    ranks: tuple[int, ...]
    score: float


class Tree(NamedTuple):
    """Nodes in the order they were taken (number n is `nodes[n-1]`), the root excluded.

    Attributes:
        nodes: the nodes; the first M are the tree of any smaller budget M.
        num_exact: how many of them are certainly those of the full rows: all when every row was given far enough.
    """

    nodes: tuple[Node, ...]
    num_exact: int

    def accepted(self, continuation: ArrayLike) -> int:
        """Length of the longest prefix of the target's own continuation that is in the tree.

        At temperature 0 the target picks its own continuation at every node, so this is what verification of the whole
        tree accepts (bonus not counted); no target pass over the tree is needed.
        """
        tokens = np.asarray(continuation).tolist()
        at, children = 0, {(node.parent, node.token): number for number, node in enumerate(self.nodes, start=1)}
        for depth, token in enumerate(tokens):
            if (at, token) not in children:
                return depth
            at = children[at, token]
        return len(tokens)


def build_tree(logprobs: ArrayLike, ids: ArrayLike, *, budget: int, vocab_size: int | None = None) -> Tree:
    """Take the `budget` most probable prefixes, one at a time.

    A heap starts with the best token of the first row. Taking a node pushes its next sibling, with score
    `score - lp[d][r] + lp[d][r+1]`, and its first child, with score `score + lp[d+1][0]`: float64 sums of float32 terms
    in exactly this order, because another order rounds otherwise and decides ties otherwise. Equal scores are taken in
    lexicographic order of ranks, a prefix before its extensions. A candidate of probability zero is never a node.

    A budget of M looks at the min(M, V) best of each row. With fewer candidates k, the tree is still the true one up to
    and including the first node taken at the last known place, k-1: only its next sibling would have been unknown, and
    a node of place r is never among the first r nodes.

    Args:
        logprobs: [L, k], log-probabilities over the whole vocabulary, each row from best to worst; used as float32.
        ids: [L, k], their token ids.
        budget: M, draft nodes to take, the root excluded.
        vocab_size: V; rows with k = V are complete. None means that they are not.

    Raises:
        ValueError: the shapes differ, or the budget is less than 1.
    """
    rows = np.asarray(logprobs, dtype=np.float32).astype(np.float64)
    tokens = np.asarray(ids)
    if rows.ndim != 2 or rows.shape != tokens.shape or not rows.size:
        raise ValueError(
            f"logprobs {list(rows.shape)} and ids {list(tokens.shape)}: expected the same [L, k], not empty"
        )
    if budget < 1:
        raise ValueError(f"budget={budget}: a tree takes at least 1 node")
    depth_limit, top_k = rows.shape
    lp, token_at = rows.tolist(), tokens.tolist()
    is_complete = vocab_size is not None and top_k >= vocab_size

    nodes: list[Node] = []
    num_exact: int | None = None
    first = lp[0][0]
    heap: list[tuple[float, tuple[int, ...], int]] = [(-first, (0,), 0)] if first > -np.inf else []
    while heap and len(nodes) < budget:
        negative, ranks, parent = heapq.heappop(heap)
        score, depth, rank = -negative, len(ranks), ranks[-1]
        row = lp[depth - 1]
        nodes.append(Node(token_at[depth - 1][rank], depth, parent, ranks, score))
        number = len(nodes)
        if rank + 1 < top_k:
            if row[rank + 1] > -np.inf:
                heapq.heappush(heap, (-(score - row[rank] + row[rank + 1]), (*ranks[:-1], rank + 1), parent))
        elif num_exact is None and not is_complete:
            num_exact = number
        if depth < depth_limit and lp[depth][0] > -np.inf:
            heapq.heappush(heap, (-(score + lp[depth][0]), (*ranks, 0), number))
    return Tree(tuple(nodes), len(nodes) if num_exact is None else num_exact)
