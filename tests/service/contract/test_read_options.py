"""Values of read options that do not have the type of the option."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.read_options import ReadOptions

OPTIONS = sorted(ReadOptions.model_fields)


@pytest.mark.parametrize("value", [[None, None], [[]], {"a": 1}, 5.5, {}], ids=str)
@pytest.mark.parametrize("option", OPTIONS)
def test_value_of_another_type_is_refused(option: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        ReadOptions.model_validate({option: value})
