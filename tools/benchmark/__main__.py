# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Runs the benchmarks one after another, each with its default rounds.

    python -m tools.benchmark

CONTRIBUTING.md says how to run one of them.
"""

from __future__ import annotations

import argparse
import sys

from tools.benchmark import (
    collectives,
    data_loader,
    data_loader_threads,
    data_parallel,
    data_parallel_death,
    data_parallel_overlap,
    devices,
    predictors,
    shared_tensors,
    streams,
)

if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m tools.benchmark",
        description="Run every benchmark. Each also has its own command.",
        epilog="For example: python -m tools.benchmark.streams --help",
    ).parse_args()
    benchmarks = (
        devices,
        streams,
        predictors,
        shared_tensors,
        data_loader,
        data_loader_threads,
        collectives,
        data_parallel,
        data_parallel_death,
        data_parallel_overlap,
    )
    sys.exit(max(benchmark.main([]) for benchmark in benchmarks))
