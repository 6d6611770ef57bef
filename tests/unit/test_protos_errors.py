"""One tree of errors; each kind ends the program with a code of its own."""

import inspect

import pytest

from protos import errors

KINDS = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, errors.TandemError)]


def test_every_error_is_drawn_in_the_tree():
    assert errors.__doc__ is not None
    drawn = {word for word in errors.__doc__.replace("─", " ").split() if word.isidentifier()}
    assert {kind.__name__ for kind in KINDS} <= drawn


def test_exit_codes_are_not_zero_and_tell_the_branches_apart():
    branches = [kind for kind in KINDS if kind.__base__ is errors.TandemError]
    codes = [kind.exit_code for kind in branches]
    assert len(set(codes)) == len(codes)
    assert 0 not in {kind.exit_code for kind in KINDS}


@pytest.mark.parametrize("kind", [errors.ConfigError, errors.DataError, errors.TokenizerMismatch])
def test_mistakes_in_values_are_value_errors_too(kind):
    assert issubclass(kind, ValueError)
