"""Every error that Tandem raises on purpose, drawn in one place.

TandemError                 one clear line that says what to do; the CLI prints it and exits with `exit_code`
├── ConfigError             a setting, a flag or a config file (also a ValueError)
├── DataError               a file, record or checkpoint that cannot be used (also a ValueError)
│   └── TokenizerMismatch   two ends hold different tokenizers
├── EnvironmentFailure      an environment raised: the message names the environment and its task
├── TrainingError           the update was stopped before it touched the weights
│   ├── NonFiniteError      NaN or infinity in a loss or a gradient; names the batch
│   └── CollapseError       a collapse was detected and the policy says stop
├── DeadlineError           a wait ran past its deadline; says who waited for what
└── StorageError            the disk refused (full, read-only); what was saved before is intact
"""


class TandemError(Exception):
    """Base of all expected failures."""

    exit_code = 1


class ConfigError(TandemError, ValueError):
    exit_code = 2


class DataError(TandemError, ValueError):
    exit_code = 3


class TokenizerMismatch(DataError):
    pass


class EnvironmentFailure(TandemError):
    exit_code = 4


class TrainingError(TandemError):
    exit_code = 5


class NonFiniteError(TrainingError):
    pass


class CollapseError(TrainingError):
    pass


class DeadlineError(TandemError):
    exit_code = 6


class StorageError(TandemError):
    exit_code = 7
