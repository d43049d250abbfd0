import pytest
from gpu_or_cpu import HAS_GPU


@pytest.fixture(autouse=True, scope="session")
def _compilation(request: pytest.FixtureRequest) -> None:
    """Optimize kernels for a GPU only."""
    if not HAS_GPU:
        request.getfixturevalue("fast_compilation")
