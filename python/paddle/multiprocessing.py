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
"""The short name of `paddle.incubate.multiprocessing`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paddle.incubate import multiprocessing as _module

if TYPE_CHECKING:
    # Type checkers do not see what __getattr__ returns.
    from multiprocessing import *  # noqa: F403

    from paddle.incubate.multiprocessing import (
        BatchSource as BatchSource,
        BlockingQueue as BlockingQueue,
        InterruptibleEvent as InterruptibleEvent,
        InterruptibleLock as InterruptibleLock,
        Pool as Pool,
        Prefetcher as Prefetcher,
        ProcessContext as ProcessContext,
        ProcessException as ProcessException,
        ProcessExitedException as ProcessExitedException,
        ProcessRaisedException as ProcessRaisedException,
        ShutDown as ShutDown,
        ThreadGroup as ThreadGroup,
        WorkerThread as WorkerThread,
        by_value as by_value,
        collect_shared_memory as collect_shared_memory,
        empty_shared as empty_shared,
        get_all_sharing_strategies as get_all_sharing_strategies,
        get_context as get_context,
        get_shared_memory_limit as get_shared_memory_limit,
        get_sharing_strategy as get_sharing_strategy,
        ipc_memory_stats as ipc_memory_stats,
        ipc_memory_summary as ipc_memory_summary,
        set_shared_memory_limit as set_shared_memory_limit,
        set_sharing_strategy as set_sharing_strategy,
        shared_allocation as shared_allocation,
        shared_memory_stats as shared_memory_stats,
        shared_memory_summary as shared_memory_summary,
        spawn as spawn,
        start_processes as start_processes,
        start_threads as start_threads,
        wait_for_key as wait_for_key,
        wait_for_result as wait_for_result,
    )

__doc__ = _module.__doc__
__all__ = list(_module.__all__)


def __getattr__(name: str) -> Any:
    """Returns an attribute of the module, loading it at its first use."""
    return getattr(_module, name)


def __dir__() -> list[str]:
    return dir(_module)
