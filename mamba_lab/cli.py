"""The command `mamba-lab`. Each subcommand's code is imported when it runs, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mamba_lab import __version__

EXAMPLES = """\
examples:
  mamba-lab doctor                    what works here, and the one command that mends what does not
  mamba-lab doctor --class 30         does a class of 30 fit on this host?
  mamba-lab build                     compile the C++ code now instead of on first use
  mamba-lab build --cache /srv/cache  compile it once for everyone (they set MAMBA_LAB_CACHE=/srv/cache)
  mamba-lab my                        copy the notebooks to my/, where you work
  mamba-lab reset 02                  restore notebook 02 in my/, keep the old one beside it
  mamba-lab course --only 02          execute notebook 02 and write its page
  mamba-lab pack my.jsonl             what packing saves on your documents, and how to pack them
  mamba-lab train pretrain-docs       train a small model on the course's documents, in a minute
  mamba-lab generate runs/docs --prompt "The"   read what it writes
  mamba-lab bench batching            measure the batching schemes, write data/results/batching.json
  mamba-lab bench packing             measure the packers, write data/results/packing.json
  mamba-lab bench model               measure a model's training step, write data/results/model.json
  mamba-lab bench schemes             train by every scheme, write data/results/schemes.json
  mamba-lab bench operators           measure scan and convolution, write data/results/operators.json
  mamba-lab bench ladder              time early versions of the scan's CUDA kernel, write data/results/ladder.json
  mamba-lab bench gpu-tests           run the tests that need a GPU, write data/results/gpu-tests.json
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, 1 (what was asked for failed), 2 (wrong usage), 130 (interrupted)."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("mamba_lab").setLevel(logging.INFO)
    if sys.stdout is None:  # closed by the caller (>&-)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without these signs still gets the words
    args = _parser().parse_args(argv)
    try:
        code = int(args.func(args))
        sys.stdout.flush()  # a reader that has gone is noticed here, not in the interpreter's last moments
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `mamba-lab doctor | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "mamba_lab":
            raise
        extra = "the package " + error.name + " is missing: pip install 'mamba-lab[course]' (in a checkout: make setup)"
        return _say(extra)
    except (ValueError, OSError) as error:
        return _say(str(error))
    except RuntimeError as error:
        from mamba_lab.ops import NativeUnavailable

        if not isinstance(error, NativeUnavailable):
            raise
        return _say(str(error))


def _say(message: str) -> int:
    print(f"mamba-lab: {message}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    from mamba_lab.course.commands import add_course, add_my, add_reset
    from mamba_lab.generate_command import add_generate
    from mamba_lab.pack_command import add_pack
    from mamba_lab.train_command import add_train

    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="mamba-lab",
        description="A course you run: train Mamba-1 on sequences of different lengths.",
        epilog=EXAMPLES,
        formatter_class=form,
    )
    parser.add_argument("--version", action="version", version=f"mamba-lab {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    doctor = commands.add_parser(
        "doctor",
        help="what works on this machine, and the one command that mends what does not",
        description="Looks at Python, PyTorch, GPU, compilers, backends, cache and peers. Exit code 1 when the course "
        "cannot run here (with --class: when the class does not fit).",
    )
    doctor.add_argument("--json", action="store_true", help="print the rows as JSON")
    doctor.add_argument(
        "--class",
        dest="students",
        type=_students,
        nargs="?",
        const=30,
        metavar="N",
        help="also check disk, memory, GPU memory and shared cache for a class of N on this host (30)",
    )
    doctor.set_defaults(func=_doctor)

    build = commands.add_parser(
        "build",
        help="compile the native code now instead of on first use",
        description="Compiles every source of csrc into the cache. What is there already is kept.",
    )
    build.add_argument("--cache", type=Path, metavar="DIR", help="a cache to share; readers set MAMBA_LAB_CACHE=DIR")
    build.add_argument("--device", choices=("cpu", "cuda"), help="only this one (cpu, and cuda where PyTorch has it)")
    build.set_defaults(func=_build)

    add_my(commands)
    add_reset(commands)
    add_course(commands)
    add_pack(commands)
    add_train(commands)
    add_generate(commands)

    bench = commands.add_parser(
        "bench",
        help="measure, and write a record with the machine, the versions and every sample",
        description="Writes data/results/NAME.json. Close other programs first: a busy machine is measured too.",
    )
    names = ("batching", "packing", "model", "schemes", "operators", "ladder", "gpu-tests")
    bench.add_argument("name", choices=names, help="what")
    bench.add_argument("--repeats", type=_positive, default=5, metavar="N", help="timed repeats of each part (5)")
    bench.add_argument("--output", type=Path, metavar="DIR", help="folder of the record (data/results)")
    bench.add_argument(
        "--full", action="store_true", help="packing: also 100 million lengths, in 4 GB of memory and about a minute"
    )
    bench.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="operators, model, schemes: where (cpu); cuda writes operators-cuda.json, model-cuda.json, "
        "schemes-cuda.json",
    )
    bench.add_argument(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="operators, model on cuda: other packages too, those that are installed (yes); one of them takes a minute",
    )
    bench.add_argument(
        "--commit", metavar="HASH", help="the commit that is measured, where the files have no history to tell it"
    )
    bench.set_defaults(func=_bench)
    return parser


def _doctor(args: argparse.Namespace) -> int:
    from mamba_lab import doctor

    return doctor.run(students=args.students, as_json=args.json)


def _build(args: argparse.Namespace) -> int:
    from mamba_lab.ops import prebuild

    return prebuild.run(cache=args.cache, device=args.device)


def _bench(args: argparse.Namespace) -> int:
    if args.output is not None:
        from mamba_lab.outputs import require_writable_folder

        require_writable_folder(args.output, "--output")
    if args.commit is not None:
        from mamba_lab.bench.record import told_commit

        told_commit(args.commit)
    on_gpu = args.device == "cuda" and args.name in ("operators", "model", "schemes")
    if args.name != "operators" and not on_gpu and (args.device != "cpu" or args.peers is not None):
        raise ValueError(
            f"--device and --peers belong to bench operators and to bench model --device cuda (--device to bench "
            f"schemes too), and name is {args.name}"
        )
    if args.name == "packing":
        from mamba_lab.bench import packing

        return packing.run(repeats=args.repeats, output=args.output, full=args.full)
    if args.full:
        raise ValueError(f"--full belongs to bench packing, and name is {args.name}")
    if args.name == "operators":
        from mamba_lab.bench import operators

        return operators.run(args.repeats, args.output, args.device, args.peers is not False)
    if args.name == "model" and on_gpu:
        from mamba_lab.bench import model_cuda

        return model_cuda.run(args.repeats, args.output, args.peers is not False)
    if args.name == "model":
        from mamba_lab.bench import model

        return model.run(repeats=args.repeats, output=args.output)
    if args.name == "schemes":
        from mamba_lab.bench import schemes

        if args.peers is not None:
            raise ValueError("--peers belongs to bench operators and bench model, and name is schemes")
        return schemes.run(output=args.output, device=args.device)
    if args.name == "ladder":
        from mamba_lab.bench import ladder

        return ladder.run(repeats=args.repeats, output=args.output)
    if args.name == "gpu-tests":
        from mamba_lab.bench import gpu_tests

        return gpu_tests.run(output=args.output)
    from mamba_lab.bench import batching

    return batching.run(repeats=args.repeats, output=args.output)


def _students(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of students; say for example --class 30")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
