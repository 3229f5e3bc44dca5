"""What a program can ask Python, torch and the operating system about itself, as JSON, in three
moments: before its first import of torch, after it, and with a group. The file is the argument."""

import json
import os
import sys


def process():
    import atexit
    import faulthandler
    import gc
    import resource
    import signal
    import threading
    import warnings

    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # that of the listing itself
        kind = target.partition(":")[0] if ":" in target else os.path.basename(target)
        descriptors[name] = f"{kind}, inheritable: {os.get_inheritable(int(name))}"
    return {
        "sys.path": sys.path,
        "sys.argv": sys.argv,
        "sys.orig_argv": sys.orig_argv,
        "sys.flags": str(sys.flags),
        "sys.warnoptions": sys.warnoptions,
        "sys.modules": sorted(sys.modules),
        "sys.meta_path": [repr(getattr(one, "__name__", type(one))) for one in sys.meta_path],
        "sys.path_hooks": len(sys.path_hooks),
        "sys.excepthook": sys.excepthook is sys.__excepthook__,
        "sys.unraisablehook": sys.unraisablehook is sys.__unraisablehook__,
        "sys.tracing": [str(sys.gettrace()), str(sys.getprofile())],
        "threading.excepthook": threading.excepthook is threading.__excepthook__,
        "os.wait*": [type(one).__name__ for one in (os.wait, os.wait3, os.wait4, os.waitpid)],
        "os._exit": type(os._exit).__name__,
        "sys.exit": type(sys.exit).__name__,
        "recursion": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "gc": [gc.isenabled(), gc.get_threshold()],
        "warnings": [str(one) for one in warnings.filters],
        "warnings.showwarning": warnings.showwarning is warnings._showwarning_orig,
        "signals": {
            number.name: str(signal.getsignal(number)).partition(" at ")[0]
            for number in signal.valid_signals()
            if isinstance(number, signal.Signals)
        },
        "signal mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "faulthandler": faulthandler.is_enabled(),
        "descriptors": descriptors,
        "threads": sorted(one.name for one in threading.enumerate()),
        "atexit": atexit._ncallbacks(),
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": oct(os.umask(0o22) | os.umask(0o22)),
        "limits": [resource.getrlimit(one) for one in range(16)],
        "streams": [
            [one.isatty(), one.encoding, one.errors, one.line_buffering, one.write_through]
            for one in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "main": [__name__, __file__, str(__spec__), sorted(globals())],
    }


def answers():
    import torch
    import torch.distributed as dist

    backend = dist.Backend
    names = ("tcp", "mpi", "gloo", "nccl", "ucc", "xccl", "fake", "distcore_nccl", "distcore_mpi")
    asked = [name for name in dir(dist) if name.startswith("is_") and name.endswith("_available")]
    asked.remove("is_backend_available")
    found = {name: getattr(dist, name)() for name in asked}
    found["is_available"] = dist.is_available()
    found["backends available"] = [name for name in names if dist.is_backend_available(name)]
    found["backend_list"] = list(backend.backend_list)
    found["Backend"] = sorted(vars(backend))
    found["default backends"] = dict(backend.default_device_backend_map)
    found["capabilities"] = {name: list(one) for name, one in backend.backend_capability.items()}
    found["backend types"] = sorted(backend.backend_type_map)
    # From 2.15 on torch registers its own at their first use.
    found["plugins"] = sorted(set(backend._plugins) - {"GLOO", "NCCL", "UCC", "XCCL", "FAKE"})
    found["default of the accelerator"] = str(dist.get_default_backend_for_device("cpu"))
    found["debug level"] = str(dist.get_debug_level())
    found["names"] = sorted(dir(dist))
    found["initialized"] = [dist.is_initialized(), dist.is_torchelastic_launched()]
    found["torch"] = [torch.get_num_threads(), torch.is_grad_enabled(), torch.initial_seed() > 0]
    if dist.is_initialized():
        world = dist.group.WORLD
        found["group"] = [
            dist.get_backend(),
            str(dist.get_backend_config()),
            dist.get_rank(),
            dist.get_world_size(),
            dist.get_process_group_ranks(world),
            world.group_name,
            world.group_desc,
            world.name(),
            dist.get_node_local_rank(0),
            sorted(map(str, world._device_types)),
        ]
    return found


if __name__ == "__main__":
    seen = {"at the start": {"process": process()}}
    import torch.distributed as dist

    seen["with torch"] = {"torch": answers(), "process": process()}
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    seen["with a group"] = {"torch": answers(), "process": process()}
    dist.destroy_process_group()
    with open(sys.argv[1], "w") as file:
        json.dump(seen, file)
    import distcore

    dist.is_backend_available("tcp") or sys.exit("distcore was imported, and tcp is not there")
    "distcore.backend" in sys.modules or sys.exit("distcore has lost its modules")
    distcore.errors.PeerLost.__module__ == "distcore.errors" or sys.exit("its names have changed")
    dist.is_mpi_available() and sys.exit("nobody has asked for mpi, and it is there")
