"""Who a planned rank is, in the words of those whose environment a plan may be made in."""

from __future__ import annotations

from distdebug.rank.plan.child import RankPlace, answer_for_schedulers

PLACE = RankPlace(rank=13, size=32, local_rank=5, local_size=8, node=1, nodes=4)


def test_of_a_job_of_slurm_all_is_said_that_a_step_of_it_would_have() -> None:
    environment = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}
    answer_for_schedulers(PLACE, environment)
    assert environment["SLURM_PROCID"] == "13"
    assert environment["SLURM_LOCALID"] == "5"
    assert environment["SLURM_NTASKS"] == "32"
    assert environment["SLURM_NODEID"] == "1"
    assert "OMPI_COMM_WORLD_RANK" not in environment


def test_what_an_mpi_has_said_is_said_of_this_rank() -> None:
    environment = {"OMPI_COMM_WORLD_RANK": "0", "PMI_SIZE": "1"}
    answer_for_schedulers(PLACE, environment)
    assert environment == {"OMPI_COMM_WORLD_RANK": "13", "PMI_SIZE": "32"}


def test_where_there_is_none_nothing_is_said() -> None:
    environment = {"HOME": "/root"}
    answer_for_schedulers(PLACE, environment)
    assert environment == {"HOME": "/root"}
