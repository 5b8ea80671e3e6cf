"""Rules and drafts that are known to be biased: the enumeration sees each of them."""

import pytest
import torch

from specdec.tree import ROOT, WITH_REPLACEMENT, WITHOUT_REPLACEMENT, Draft
from specdec.verifiers import Verdict, build_verifier
from specdec.verifiers.residual import odds, remaining, residual
from tests.helpers.sampled import Custom, drawn, error, first, law_of_round, trees

P, Q = (0.5, 0.3, 0.2), (0.2, 0.5, 0.3)
MIXED = (227 / 560, 27 / 80, 9 / 35)  # .405, .338, .257
SEEN = 1e-3


def one_level(verifier, k=2, law=WITHOUT_REPLACEMENT):
    return first(drawn(verifier, [k], law, table=(Q,) * 3, target=(P,) * 3))


def zeroed(p, token):
    rest = p.index_fill(0, torch.tensor(token), 0.0)
    return rest / rest.sum()


def walk_down(test):
    """A rule that tests children in order with `test(draft, child, p) -> (odds, p if rejected)`."""

    def rule(draft, rows, stream):
        node, path = ROOT, []
        while True:
            p, children = rows.law(node + 1), draft.children(node)
            for child in children:
                chance, rest = test(draft, child, p)
                if stream.accept(chance):
                    break
                p = rest
            else:
                return Verdict(tuple(path), stream.draw(p), "correction" if children else "bonus")
            path.append(child)
            node = child

    return Custom(rule)


def test_two_siblings_by_both_exact_rules_and_by_their_mixture():
    exact = [one_level(build_verifier(name)) for name in ("recursive", "sample_and_match", "traversal")]
    assert max(abs(a - b) for law in exact for a, b in zip(law, P, strict=True)) <= 1e-12
    mixed = walk_down(lambda draft, child, p: (odds(draft, child, p), zeroed(p, draft.tokens[child])))
    assert max(abs(a - b) for a, b in zip(one_level(mixed), MIXED, strict=True)) <= 1e-12


def with_rows(draft: Draft, rows) -> Draft:
    return Draft(draft.tokens, draft.parents, draft.law, rows)


@pytest.mark.parametrize("name", ["recursive", "traversal"])
def test_siblings_without_replacement_need_the_row_that_was_in_force(name):
    p, q = ((0.4, 0.4, 0.2),) * 3, ((0.1, 0.2, 0.7),) * 3  # p - q leaves two tokens, and the second row matters
    drafts = trees(q, 0, (2,), WITHOUT_REPLACEMENT)
    assert error(law_of_round(build_verifier(name), drafts, p), 1, p) <= 1e-12
    first_row = [(with_rows(draft, draft.q[[0, 0]]), share) for draft, share in drafts]
    assert error(law_of_round(build_verifier(name), first_row, p), 1, p) > SEEN


@pytest.mark.parametrize("name", ["recursive", "traversal", "rejection", "block"])
def test_a_token_picked_by_its_rank_is_a_point(name):
    q = torch.tensor([Q], dtype=torch.float64)
    picked = [(Draft.chain([1], WITHOUT_REPLACEMENT, q), 1.0)]
    assert error(law_of_round(build_verifier(name), picked, (P,) * 3), 1, (P,) * 3) > SEEN
    assert error(law_of_round(build_verifier(name), [(Draft.chain([1]), 1.0)], (P,) * 3), 1, (P,) * 3) <= 1e-12


def without(draft: Draft, least: float) -> Draft:
    """Leaves out the nodes of a one-level tree that the draft found less likely than `least`: a choice by value."""
    keep = [j for j in range(len(draft)) if float(draft.q[j, draft.tokens[j]]) >= least]
    rows = draft.q[keep] if keep else None
    return Draft(tuple(draft.tokens[j] for j in keep), (ROOT,) * len(keep), draft.law, rows)


def test_pruning_by_value_is_exact_for_sample_and_match_and_for_nothing_that_uses_q():
    drafts = trees((Q,) * 3, 0, (2,), WITH_REPLACEMENT)
    pruned = [(without(draft, 0.25), share) for draft, share in drafts]
    laws = {name: law_of_round(build_verifier(name), pruned, (P,) * 3) for name in ("recursive", "traversal", "spectr")}
    assert all(error(law, 1, (P,) * 3) > SEEN for law in laws.values())
    matched = law_of_round(build_verifier("sample_and_match"), pruned, (P,) * 3)
    assert error(matched, 2, (P,) * 3) <= 1e-12


def test_a_fresh_sample_for_every_path_is_seen():
    """The longest match over the paths, each with its own draws: the target is asked more than once a node."""

    def rule(draft, rows, stream):
        best, token = (), None
        leaves = [node for node in range(len(draft)) if not draft.children(node)]
        for leaf in leaves:
            path = [leaf]
            while draft.parents[path[0]] != ROOT:
                path.insert(0, draft.parents[path[0]])
            for depth, node in enumerate((ROOT, *path)):
                sample = stream.draw(rows.law(node + 1))
                if depth == len(path) or sample != draft.tokens[path[depth]]:
                    break
            if token is None or depth > len(best):
                best, token = tuple(path[:depth]), sample
        return Verdict(best, token, "correction" if draft.children(best[-1] if best else ROOT) else "bonus")

    assert error(drawn(Custom(rule), [2, 1], WITHOUT_REPLACEMENT), 3) > SEEN


def block(stop_early=False, scaled=True, row=0):
    """Block verification with its known mistakes."""

    def rule(draft, rows, stream):
        n, values = len(draft), [1.0]
        for i in range(n):
            values.append(odds(draft, i, rows.law(i), values[i]))
        value = [v if scaled else 1.0 for v in values]
        passes = [True]
        for i in range(1, n):
            at = max(0, i - row)
            passes.append(stream.accept(remaining(residual(draft, at, rows.law(at), value[i])[1], values[i])))
        passes.append(stream.accept(values[n]))
        last = passes.index(False) - 1 if stop_early and False in passes else max(i for i in range(n + 1) if passes[i])
        if last == n:
            return Verdict(tuple(range(n)), stream.draw(rows.law(n)), "bonus")
        return Verdict(
            tuple(range(last)), stream.draw(residual(draft, last, rows.law(last), value[last])[0]), "correction"
        )

    return Custom(rule)


def test_block_verification_tests_every_prefix_on_its_own_with_the_scaled_residual_behind_it():
    widths = [1, 1, 1]
    assert error(drawn(block(), widths, WITHOUT_REPLACEMENT), 4) <= 1e-12
    for mistake in ({"stop_early": True}, {"scaled": False}, {"row": 1}):
        assert error(drawn(block(**mistake), widths, WITHOUT_REPLACEMENT), 4) > SEEN


def traversal(over_siblings=False, new_value=True):
    def visit(node, value, path, draft, rows, stream):
        p, children = rows.law(node + 1), draft.children(node)
        for child in children:
            found = visit(child, odds(draft, child, p, value), (*path, child), draft, rows, stream)
            if found:
                return found
            rest, mass = residual(draft, child, p, value)
            if over_siblings:
                mass = float((rest * mass)[[draft.tokens[other] for other in children]].sum())
            p, value = rest, remaining(mass, value) if new_value else value
        if node == ROOT or stream.accept(value):
            return Verdict(path, stream.draw(p), "correction" if children else "bonus")
        return None

    return Custom(lambda draft, rows, stream: visit(ROOT, 1.0, (), draft, rows, stream))


@pytest.mark.parametrize("widths", [[1, 1], [2, 2]])
def test_traversal_sums_over_the_vocabulary_and_renews_the_value(widths):
    assert error(drawn(traversal(), widths, WITHOUT_REPLACEMENT), 3) <= 1e-12
    for mistake in ({"over_siblings": True}, {"new_value": False}):
        assert error(drawn(traversal(**mistake), widths, WITHOUT_REPLACEMENT), 3) > SEEN


def test_k_seq_needs_independent_candidates_and_a_factor_that_is_large_enough(monkeypatch):
    spectr = build_verifier("spectr")
    assert max(abs(a - b) for a, b in zip(one_level(spectr, law=WITH_REPLACEMENT), P, strict=True)) <= 1e-12
    # The declaration is right to refuse these: drawn without replacement, called by force.
    monkeypatch.setattr(type(spectr), "check_draft", lambda self, draft: None)
    assert max(abs(a - b) for a, b in zip(one_level(spectr), P, strict=True)) > SEEN
    monkeypatch.setattr("specdec.verifiers.spectr.division_factor", lambda p, q, k: 1.0)
    assert max(abs(a - b) for a, b in zip(one_level(spectr, law=WITH_REPLACEMENT), P, strict=True)) > SEEN
