# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the recipes' tests."""

from pathlib import Path

import pytest

from tests.support.consumer.walk import Sampler, build_sampler
from tests.support.contrib import install_programs


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cfi2sframe, cfi2sframe-ld and cfi2sframe-cc."""
    return install_programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def sampler(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Sampler:
    """The stack sampler."""
    return build_sampler(tmp_path_factory.mktemp("sampler"), programs)
