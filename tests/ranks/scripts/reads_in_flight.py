"""Looks at memory that a call under way writes, past torch's operators; and what is no look at it.

A line that ends in `# <- read` (or `written`) is to be told, and no other one.
"""

import copy
import io
import os
import pickle
import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

WRONG = [
    lambda t, a: a.sum(),  # <- read
    lambda t, a: t.numpy().sum(),  # <- read
    lambda t, a: t.numpy()[1:].reshape(-1, 3).mean(axis=0),  # <- read
    lambda t, a: a[::-1].max(),  # <- read
    lambda t, a: a[0:1].item(),  # <- read
    lambda t, a: a.copy(),  # <- read
    lambda t, a: a.tobytes(),  # <- read
    lambda t, a: np.sum(a),  # <- read
    lambda t, a: np.median(a),  # <- read
    lambda t, a: np.allclose(1, a),  # <- read
    lambda t, a: np.testing.assert_array_equal(a, a),  # <- read
    lambda t, a: np.save(io.BytesIO(), a),  # <- read
    lambda t, a: np.array(t),  # <- read
    lambda t, a: np.linalg.norm(np.asarray(t)),  # <- read
    lambda t, a: np.from_dlpack(t).min(),  # <- read
    lambda t, a: str(a),  # <- read
    lambda t, a: print(a, file=io.StringIO()),  # <- read
    lambda t, a: print(t, file=io.StringIO()),  # <- read
    lambda t, a: torch.from_numpy(a).sum(),  # <- read
    lambda t, a: t.tolist(),  # <- read
    lambda t, a: t.untyped_storage()[0],  # <- read
    lambda t, a: t.untyped_storage().tolist(),  # <- read
    lambda t, a: torch.save({"x": t}, io.BytesIO()),  # <- read
    lambda t, a: copy.deepcopy(t),  # <- read
    lambda t, a: a.fill(1),  # <- written
]
FINE = [
    lambda t, a: (t.numpy(), np.asarray(t), t.__dlpack__()),
    lambda t, a: (a.shape, a.T, a[1:].reshape(-1, 3), a.view(np.int32), np.shares_memory(a, a)),
    lambda t, a: (t.data_ptr(), t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()),
    lambda t, a: (torch.from_numpy(a), copy.copy(t), t.view(2, 5)),
    lambda t, a: (np.ones(10).sum(), str(np.ones(10)), pickle.dumps(np.ones(10))),
]
OF_OTHER_PARTS = [  # of a tensor, and its array, whose first half is under way
    lambda t, a: (a[5:].sum(), a.reshape(5, 2)[3:].T.mean(), np.sum(a[5:]), a.take([7])),
    lambda t, a: (a.reshape(2, 5)[1].tolist(), a[-1:].item(), np.take(a, [8]), a[::-1][:5].max()),
    lambda t, a: (t.index_select(0, torch.tensor([6])), t[torch.tensor([6])], t.gather(0, SEVEN)),
    lambda t, a: (t.untyped_storage()[30], torch.save(t[5:], io.BytesIO()), t[5:].numpy().sum()),
]
SEVEN = torch.tensor([7])


def in_a_child(t):
    """The parent's call is nothing to it."""
    child = os.fork()
    if not child:
        assert sys.getprofile() is None
        t.numpy().sum()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    early = torch.ones(10)
    array = early.numpy()
    for read in [*WRONG, *FINE]:
        work = dist.all_reduce(early, async_op=True)
        read(early, array)
        work.wait()
        assert sys.getprofile() is None
    for read in OF_OTHER_PARTS:
        work = dist.all_reduce(early[:5], async_op=True)
        read(early, array)
        work.wait()
    work = dist.all_reduce(early, async_op=True)
    in_a_child(early)
    compiled = torch.compile(lambda x: torch.from_numpy(x.numpy() + 1), backend="eager")
    assert compiled(torch.ones(3)).sum() == 6
    sys.setprofile(mine := lambda *_: None)
    work.wait()
    assert sys.getprofile() is mine  # it is left
    sys.setprofile(None)
    array.sum()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
