"""What we add to the Slurm plugin: jobs of unknown state."""

import asyncio
import logging

from shardwise.workflow.hooks import none_if_unheard


def test_a_silent_slurm_says_nothing_of_any_job(caplog) -> None:
    """Each job counts as running, and an outage is logged once; the plugin alone would drop all."""
    answers = iter([({"1": "FAILED"}, 0.1), (None, None), (None, None), ({}, 0.2), (None, None)])

    async def ask(command: str, logger: object) -> tuple:
        return next(answers)

    wrapped = none_if_unheard(ask)
    with caplog.at_level(logging.WARNING):
        found = [asyncio.run(wrapped("squeue", None)) for _ in range(5)]
    assert found == [({"1": "FAILED"}, 0.1), ({}, 0.0), ({}, 0.0), ({}, 0.2), ({}, 0.0)]
    assert caplog.messages == ["shardwise: Slurm does not answer; asking again"] * 2
