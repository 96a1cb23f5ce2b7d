"""Memory that nobody wrote is NaN here, so that reading it shows."""

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned():
    torch.use_deterministic_algorithms(True)  # fills what torch.empty returns with NaN
    yield
    torch.use_deterministic_algorithms(False)
