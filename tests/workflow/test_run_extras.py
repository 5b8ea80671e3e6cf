"""What a cell says about a text beside its rounds."""

import pytest
import torch

from specdec.decode import Request, autoregressive, speculative
from specdec.drafters import Chain, LanguageModel
from specdec.growth import build_rule
from specdec.sampling import Sampling
from tests.helpers import tiny
from workflow.study.run_extras import negative_log_likelihood


@pytest.mark.parametrize("length", [1, 9])
@pytest.mark.parametrize("drafted", [False, True])
def test_the_likelihood_of_a_text_is_that_of_a_fresh_pass_over_it(drafted, length):
    target, small = tiny.transformer("llama"), tiny.transformer("llama", layers=1, seed=4)
    request = Request(tiny.prompt_of(length), 20, sampling=Sampling(1.0))
    generation = autoregressive(target, request)
    if drafted:
        generation = speculative(target, Chain(LanguageModel(small), build_rule("fixed", 3)), request, k=3)
    output = generation.run().output_ids
    text = [*request.prompt, *output]
    laws = target.forward(text, target.new_cache(len(text))).logits.double().log_softmax(-1)
    chosen = laws[length - 1 : -1].gather(-1, torch.tensor(output)[:, None])
    for _ in range(2):
        found = negative_log_likelihood(target, generation.cache, request.prompt, output)
        assert found == pytest.approx(-float(chosen.sum()), rel=1e-5)
