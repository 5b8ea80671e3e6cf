"""Trees drawn from a table, every one of them with its probability, and what a rule emits on them.

The trees are enumerated once a setting; a rule is then walked on each of them.  Expected laws are products of rational
numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache

import torch
from torch import Tensor

from specdec.sampling import Sampling, Stream, warp
from specdec.tree import POINT, ROOT, WITHOUT_REPLACEMENT, Draft
from specdec.verifiers import TargetRows, Verdict, Verifier
from tests.helpers.enumerate import walk
from tests.helpers.toy import DRAFT, TARGET

PLAIN = Sampling(temperature=1.0)
Table = tuple[tuple[float, ...], ...]
Texts = dict[tuple[int, ...], float]


def draw_tree(stream: Stream, table: Table, root: int, widths: Sequence[int], law: str, ends=frozenset()) -> Draft:
    """`widths[d]` children for every node of depth d, level by level; none below a token of `ends`.

    `table[t]` is the draft's law after token t.  A point law takes its largest entries.  Without replacement, the row
    of a later sibling has the earlier ones removed; fewer are drawn where no mass is left.
    """
    tokens: list[int] = []
    parents: list[int] = []
    rows: list[Tensor] = []
    level = [ROOT]
    for width in widths:
        following = []
        for node in level:
            last = root if node == ROOT else tokens[node]
            if node != ROOT and last in ends:
                continue
            q = torch.tensor(table[last], dtype=torch.float64)
            ranked = q.argsort(descending=True, stable=True).tolist()
            for i in range(width):
                if law == WITHOUT_REPLACEMENT:
                    if not q.any():
                        break
                    q = q / q.sum()
                token = ranked[i] if law == POINT else stream.draw(q)
                following.append(len(tokens))
                tokens.append(token)
                parents.append(node)
                rows.append(q)
                if law == WITHOUT_REPLACEMENT:
                    q = q.index_fill(0, torch.tensor(token), 0.0)
        level = following
    return Draft(tuple(tokens), tuple(parents), law, None if law == POINT or not rows else torch.stack(rows))


@cache
def trees(table: Table, root: int, widths: tuple[int, ...], law: str, ends=frozenset()) -> list[tuple[Draft, float]]:
    """Every tree that can be drawn, with its probability."""
    seen: dict[tuple, Draft] = {}

    def run(branch):
        draft = draw_tree(branch, table, root, widths, law, ends)
        return (key := (draft.tokens, draft.parents), seen.setdefault(key, draft))[0]

    return [(seen[key], probability) for key, probability in walk(run).items()]


class CachedRows(TargetRows):
    """The target's rows for a draft; a row is warped once, so that a rule that changed it would be found out."""

    def __init__(self, table: Table, root: int, draft: Draft, sampling: Sampling = PLAIN):
        laws = torch.tensor([table[token] for token in (root, *draft.tokens)], dtype=torch.float64)
        super().__init__(laws.log(), sampling)
        self._rows = list(laws if sampling == PLAIN else warp(self.logits, sampling))

    def law(self, row: int) -> Tensor:
        return self._rows[row]


def emitted(draft: Draft, verdict: Verdict) -> tuple[int, ...]:
    """The tokens of a round; the path must hang together."""
    assert all(draft.parents[b] == a for a, b in itertools.pairwise((ROOT, *verdict.path)))
    last = verdict.path[-1] if verdict.path else ROOT
    assert verdict.source == ("correction" if draft.children(last) else "bonus")
    return (*(draft.tokens[node] for node in verdict.path), verdict.next_token)


def law_of_round(
    verifier: Verifier, drafts: Sequence[tuple[Draft, float]], target: Table = TARGET, root: int = 0, sampling=PLAIN
) -> Texts:
    """What one round emits, over every tree and every branch of the rule, which may change nothing it is given."""
    law: Texts = {}
    for draft, probability in drafts:
        verifier.check_draft(draft)
        rows, q = CachedRows(target, root, draft, sampling), None if draft.q is None else draft.q.clone()
        before = [row.clone() for row in rows._rows]
        for text, share in walk(lambda b, d=draft, r=rows: emitted(d, verifier.verify(d, r, b))).items():
            law[text] = law.get(text, 0.0) + probability * share
        assert q is None or torch.equal(q, draft.q)
        assert all(map(torch.equal, before, rows._rows))
    return law


def drawn(verifier: Verifier, widths, law: str, *, table=DRAFT, target=TARGET, root=0, ends=frozenset()) -> Texts:
    """`law_of_round` for trees drawn from `table`."""
    return law_of_round(verifier, trees(table, root, tuple(widths), law, ends), target, root)


def continued(law: Texts, count: int, target: Table = TARGET) -> Texts:
    """Texts of `count` tokens: a round's, cut or continued by the target alone."""
    texts: Texts = {}
    for text, probability in law.items():
        rest = texts_of(target, text[-1], count - len(text)) if len(text) < count else {(): Fraction(1)}
        for more, share in rest.items():
            whole = (text + more)[:count]
            texts[whole] = texts.get(whole, 0.0) + probability * float(share)
    return texts


@cache
def texts_of(table: Table, root: int, count: int) -> dict[tuple[int, ...], Fraction]:
    """What `table` alone says: rational products of its entries, read as the decimals they are written as."""
    law = {(): Fraction(1)}
    for _ in range(count):
        law = {
            (*text, token): probability * Fraction(str(share))
            for text, probability in law.items()
            for token, share in enumerate(table[text[-1] if text else root])
            if share
        }
    return law


def error(law: Texts, count: int, target: Table = TARGET, root: int = 0) -> float:
    """How far a round, continued by the target, is from the target's texts of `count` tokens."""
    texts, expected = continued(law, count, target), texts_of(target, root, count)
    return max(abs(texts.get(text, 0.0) - float(expected.get(text, 0))) for text in {*texts, *expected})


def length(law: Texts) -> float:
    """E[emitted] of a round."""
    return sum(len(text) * probability for text, probability in law.items())


def first(law: Texts, vocabulary: int = 3) -> list[float]:
    """The law of a round's first token."""
    return [sum(share for text, share in law.items() if text[0] == token) for token in range(vocabulary)]


def verdicts(verifier: Verifier, draft: Draft, rows: TargetRows) -> dict[Verdict, float]:
    """The law of the verdict on one draft."""
    return walk(lambda branch: verifier.verify(draft, rows, branch))


Rule = Callable[[Draft, TargetRows, Stream], Verdict]


class Custom(Verifier):
    """A rule from a function, for the wrong ones."""

    name = "custom"

    def __init__(self, rule: Rule):
        self.verify = rule
