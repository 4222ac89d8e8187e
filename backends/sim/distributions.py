"""How long things take in a simulation: named distributions, drawn from named streams.

=========================  ===================================================================
``2.5``, ``constant:2.5``  always 2.5 s
``lognormal:1.0``          log-normal with mean 1 s; the number is sigma, of the logarithm
``lognormal:1.0:30``       the same shape with mean 30 s
``empirical:RUN_DIR``      what a finished run measured, each of its values as likely as the others
=========================  ===================================================================
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist

import msgspec

from backends.ledgers import sqlite
from protocols.errors import UserError
from protocols.ledger import Graded
from protocols.sections import Site
from protocols.tracking import StepRecord

Draw = Callable[[str], float]
"""Name of a stream -> seconds. The same name gives the same seconds in every process."""

_NORMAL = NormalDist()
_METRICS = "metrics.jsonl"


def parse(text: str, measured: Callable[[Path], Sequence[float]]) -> Draw:
    """Return the distribution that a text names.

    Args:
        text: As above; a relative ``RUN_DIR`` starts from the working folder.
        measured: Reads the seconds that ``empirical`` draws from out of the folder of a finished run.

    Raises:
        UserError: It is no such text, or the run tells nothing of it.
    """
    kind, _, rest = text.partition(":") if ":" in text else ("constant", "", text)
    if kind == "empirical" and rest:
        return empirical(measured(Path(rest)))
    try:
        numbers = [float(number) for number in rest.split(":")]
    except ValueError:
        numbers = []
    if not all(0 <= number < math.inf for number in numbers):
        numbers = []
    match kind, numbers:
        case "constant", [seconds]:
            return constant(seconds)
        case "lognormal", [sigma]:
            return lognormal(sigma)
        case "lognormal", [sigma, mean_s]:
            return lognormal(sigma, mean_s=mean_s)
        case _:
            raise UserError("it names no distribution: constant:SECONDS, lognormal:SIGMA, empirical:RUN_DIR")


def constant(seconds: float) -> Draw:
    """Take the same time always."""
    return lambda _: seconds


def lognormal(sigma: float, *, mean_s: float = 1.0) -> Draw:
    """Draw from a log-normal distribution.

    Args:
        sigma: Standard deviation of the natural logarithm; 1.0: the slowest of 128 takes 9 times the mean.
        mean_s: Mean of the seconds themselves.
    """
    mu = -sigma * sigma / 2
    return lambda name: mean_s * math.exp(mu + sigma * _NORMAL.inv_cdf(uniform(name)))


def empirical(values: Sequence[float]) -> Draw:
    """Draw one of ``values``, each as likely as the others."""
    ordered = sorted(values)
    return lambda name: ordered[int(uniform(name) * len(ordered))]


def uniform(name: str) -> float:
    """Return the number in (0, 1) that a name stands for."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return ((int.from_bytes(digest) >> 12) + 0.5) / (1 << 52)


def step_seconds(run_dir: Path, metric: str) -> tuple[float, ...]:
    """Return a metric of every step of a finished run but the first one, which warms up.

    Raises:
        UserError: The folder holds no such metric.
    """
    path = run_dir / _METRICS
    try:
        records = [msgspec.json.decode(line, type=StepRecord) for line in path.read_bytes().splitlines()]
    except (OSError, msgspec.MsgspecError) as exc:
        raise UserError(f"{path} cannot be read: {exc}") from exc
    values = tuple(record.metrics[metric] for record in records if metric in record.metrics)
    if not values:
        raise UserError(f"{path} tells nothing of {metric}; name the folder of a run that has trained")
    return values[1:] or values


def sample_lengths(run_dir: Path) -> tuple[int, ...]:
    """Return the tokens of every sample that the record of a run still lists one by one.

    Raises:
        UserError: The folder holds no record, or an empty one.
    """
    record = sqlite.read(sqlite.Config(), Site(job_dir=str(run_dir), run_dir=str(run_dir)))
    graded = (event.receipt for event in record.events if isinstance(event, Graded))
    lengths = tuple(sample.tokens for receipt in graded for sample in receipt.samples)
    if not lengths:
        raise UserError(f"the record in {run_dir} tells nothing of samples; name the folder of a run that has trained")
    return lengths
