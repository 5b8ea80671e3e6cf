"""What every script shares: the project on the import path, errors a user can act on, and a log beside the terminal."""

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
