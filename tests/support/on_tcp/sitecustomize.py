"""Put on PYTHONPATH, it makes programs that ask for gloo run on distcore's tcp, or another backend
of ours: ON_TCP_EVERYWHERE=1, or ON_TCP_EVERYWHERE=mpi.

With nccl (torch's own) or distcore_nccl what they compute lies on the first GPU, which all ranks
share: NCCL refuses two ranks of one host on one GPU, so each gives itself another host's name."""

import os
import sys
from importlib import import_module

if os.environ.get("ON_TCP_EVERYWHERE"):
    import wrapt

    BACKEND = {"1": "tcp"}.get(os.environ["ON_TCP_EVERYWHERE"], os.environ["ON_TCP_EVERYWHERE"])

    ON_A_GPU = BACKEND.endswith("nccl")
    if ON_A_GPU:

        @wrapt.when_imported("torch")
        def compute_on_the_gpu(torch):
            torch.set_default_device("cuda:0")

    @wrapt.when_imported("torch.distributed.distributed_c10d")
    def redirect(c10d):
        def redirected(create, instance, args, kwargs):
            import_module("distcore")
            if ON_A_GPU:
                os.environ.update(NCCL_HOSTID=f"process-{os.getpid()}", NCCL_NET="Socket")
            args = tuple(BACKEND if one == "gloo" else one for one in args)
            if kwargs.get("backend") == "gloo":
                kwargs["backend"] = BACKEND
            if BACKEND == "mpi" and create.__name__ == "init_process_group":
                # As if the program had asked for it: distcore's own is in front of this one.
                create = import_module("distcore.mpi.torch_api").initialisation(create)
            return create(*args, **kwargs)

        # The program must look as it does without this: to the debugger it is a part of torch.
        redirected.__code__ = redirected.__code__.replace(co_filename=c10d.__file__)
        for name in ("init_process_group", "new_group"):
            wrapped = wrapt.FunctionWrapper(getattr(c10d, name), redirected)
            setattr(c10d, name, wrapped)
            package = sys.modules.get("torch.distributed")
            if package is not None and hasattr(package, name):
                setattr(package, name, wrapped)
