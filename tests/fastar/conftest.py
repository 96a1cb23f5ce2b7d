"""Memory that nobody wrote is NaN here, so that reading it shows. The shapes are too small for threads."""

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # fills what torch.empty returns with NaN
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
