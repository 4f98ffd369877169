"""runner_timing.py: the timing patches are removed at the end."""

from contextlib import closing
from pathlib import Path

from chairlift.llm.build import prepare
from chairlift.model.backends.decoder_program import DecoderProgram
from chairlift.model.sampling.sampler import Sampler
from cpu_roofline.runner_timing import watching


def test_patches_are_taken_back(model: Path) -> None:
    originals = (DecoderProgram.run_step, DecoderProgram.score, Sampler.sample)
    prepared = prepare(str(model), {"dtype": "bfloat16", "num_blocks": 64})
    with closing(prepared.start().client) as client:
        with watching(client):
            patched = (DecoderProgram.run_step, DecoderProgram.score, Sampler.sample)
            assert all(new is not old for new, old in zip(patched, originals, strict=True))
        assert (DecoderProgram.run_step, DecoderProgram.score, Sampler.sample) == originals
