"""Who drafts which round, and what the other hears of it."""

import pytest

from specdec.decode import Request, speculative
from specdec.drafters import LookupFirst, NGram, build_drafter
from specdec.drafters.base import Budget
from specdec.errors import UserError
from specdec.growth.grower import Grower
from specdec.tree import Draft
from tests.helpers import tiny

GUESS = 9


class Guesser(Grower):
    """Guesses one token, and keeps what it was told."""

    class Silent:
        taps = (2,)

        def start(self, prompt, features, context):
            self.heard = []

        def commit(self, tokens, features, scored):
            self.heard += tokens

    def __init__(self):
        super().__init__(self.Silent())
        self.learned, self.skipped = [], []

    def open(self, prompt, context):
        pass

    def propose(self, budget):
        return Draft.chain([GUESS])

    def learn(self, tokens):
        self.learned += tokens

    def skip(self, tokens):
        self.skipped += tokens


def test_the_lookup_drafts_where_it_finds_something_and_the_other_hears_all():
    guesser = Guesser()
    drafter = LookupFirst(NGram(min_ngram=2), guesser)
    drafter.start([1, 2, 3], None, None)
    budget = Budget(2, 2)
    assert drafter.propose(budget).tokens == (GUESS,)
    drafter.commit([1, 2], None, None)
    assert drafter.propose(budget).tokens == (3, 1)
    drafter.commit([3], None, None)
    assert drafter.propose(budget).tokens == (1, 2)
    drafter.commit([7], None, None)
    assert drafter.propose(budget).tokens == (GUESS,)
    drafter.commit([8], None, None)
    assert guesser.learned == [1, 2, 8] and guesser.skipped == [3, 7]
    assert drafter.model.heard == [1, 2, 3, 7, 8] and drafter.taps == (2,)


def test_a_round_without_a_draft_is_the_growers_own():
    guesser = Guesser()
    drafter = LookupFirst(NGram(min_ngram=1), guesser)
    drafter.start([1, 2, 1], None, None)
    assert len(drafter.propose(Budget(1, 1)))
    drafter.commit([2], None, None)
    drafter.commit([5], None, None)  # the loop asked for nothing, as before a text's last token
    assert guesser.skipped == [2] and guesser.learned == [5]


def test_it_is_built_from_an_entry_and_refused_where_it_says_nothing():
    target = tiny.transformer("llama", layers=3)
    entry = {"kind": "layer_skip", "layers": 2, "lookup": {"rule": "first", "max_ngram": 2, "min_ngram": 1}}
    drafter = build_drafter(entry, target, policy="fixed", k=3)
    assert isinstance(drafter, LookupFirst) and (drafter.lookup.rule, drafter.lookup.max_ngram) == ("first", 2)
    assert not isinstance(build_drafter(entry | {"lookup": None}, target, policy="fixed", k=3), LookupFirst)
    record = speculative(target, drafter, Request(tiny.prompt_of(9), 12), k=3).run()
    assert len(record.output_ids) == 12
    with pytest.raises(UserError, match="draft ngram: it looks the text up already"):
        build_drafter({"kind": "ngram", "lookup": {"min_ngram": 2}}, target, policy="fixed", k=3)
