"""Makes the runs of `fixtures/values`, each with its values on record: `python -m
tests.support.values_runs FOLDER [RUN ...]`. torch is imported once, and all ranks are forked."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

VALUES = Path(__file__).resolve().parents[2] / "fixtures" / "values"


def main(folder: Path, wanted: Sequence[str]) -> None:
    import torch
    import torch.distributed as dist

    from distdebug.record.runs.run_directory import RunDirectory

    torch.set_num_threads(1)
    for name, run in json.loads((VALUES / "expected.json").read_text())["runs"].items():
        if wanted and name not in wanted:
            continue
        RunDirectory.create(explicit=folder / name)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        os.environ |= {"WORLD_SIZE": str(run["ranks"]), "DISTDEBUG_VALUES": "1"}
        ranks = []
        for rank in range(run["ranks"]):
            pid = os.fork()
            if not pid:
                _be_rank(rank, folder / name, run["arguments"])
            ranks.append(pid)
        while ranks:
            pid, status = os.wait()
            ranks.remove(pid)
            if status:
                for left in ranks:
                    os.kill(left, signal.SIGKILL)
                sys.exit(f"a rank of {name} failed")


def _be_rank(rank: int, directory: Path, arguments: Sequence[str]) -> None:
    code = 1
    try:
        os.environ["RANK"] = str(rank)
        from distdebug.rank.install import install

        assert install(str(directory)) is not None
        sys.argv = [str(VALUES / "train.py"), *arguments]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
