"""What every script shares: the project on the import path, errors a user can act on, and a log beside the terminal.

Scripts that time anything also hold the machine's lock: timed jobs never overlap, whatever --cores says.
"""

import hashlib
import os
import platform
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))


class Tee:
    """Writes to the terminal and to the log, so that progress can be watched and read afterwards."""

    def __init__(self, *streams):
        self.streams = streams

    def write(self, text):
        for stream in self.streams:
            stream.write(text)
            stream.flush()
        return len(text)

    def flush(self):
        for stream in self.streams:
            stream.flush()

    def isatty(self):
        return False


@contextmanager
def job(snakemake):
    """Run a script's body: a mistake of the user's is one line and exit code 1, a defect keeps its traceback."""
    from specdec.errors import UserError

    path = Path(str(snakemake.log))
    path.parent.mkdir(parents=True, exist_ok=True)
    out, err = sys.stdout, sys.stderr
    with path.open("w", encoding="utf-8") as log:
        sys.stdout, sys.stderr = Tee(out, log), Tee(err, log)
        try:
            yield
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(1)
        except Exception:
            traceback.print_exc()
            sys.exit(1)
        finally:
            sys.stdout, sys.stderr = out, err


def hold_machine(name, threads):
    """Wait for the machine's lock, held until this process ends, however it ends, and set the threads of arithmetic.

    Before torch is imported, which reads the variables then; loading a model would disturb another job's clock as well.
    """
    from filelock import FileLock, Timeout

    # Snakemake sets these to the cores it was given, which is 1 under --cores 1; arithmetic has the machine to itself
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(threads)
    # one lock a machine: nodes of a cluster that share this folder need not wait for each other
    node = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
    path = Path("resources") / f"timed-{node}.lock"
    path.parent.mkdir(exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"{name}: waiting for another timed job ({path})", file=sys.stderr)
        lock.acquire()
    return lock
