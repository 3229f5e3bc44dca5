"""What the scenarios of test_distcore_backend.py share."""

import contextlib
from datetime import timedelta

import torch

SECONDS = timedelta(seconds=1)


@contextlib.contextmanager
def raises(kind, *texts):
    raised = None
    try:
        yield
    except kind as error:
        raised = error
    assert raised is not None, f"no {kind.__name__}"
    for text in texts:
        assert text in str(raised), (text, str(raised))


def call(function, *args, use_async, **kwargs):
    if not use_async:
        assert function(*args, **kwargs) is None
        return
    work = function(*args, async_op=True, **kwargs)
    assert work.wait(30 * SECONDS)
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    work.get_future().wait()


def of(rank, count=6):
    return torch.arange(count, dtype=torch.float32) + 100 * rank


def gapped(tensor):
    """The same values, every second place of a larger tensor."""
    wide = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), -1.0)
    view = wide[..., ::2]
    view.copy_(tensor)
    return view
