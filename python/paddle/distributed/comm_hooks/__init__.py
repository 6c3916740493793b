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
"""Communication hooks for ``DataParallel.register_comm_hook(state, hook)``.

A hook receives the state and a bucket of gradients, and returns a tensor with
the averages, or a future of that tensor. The state of every hook but PowerSGD
is the group, or None for the group of the ``DataParallel``.

Hooks are imported at first use, because every import of Paddle imports this
module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paddle.distributed.data_parallel.communication import (  # noqa: F401
        allreduce_hook,
    )
    from paddle.distributed.data_parallel.future import Future  # noqa: F401

    from .compression import (  # noqa: F401
        bf16_compress_hook,
        fp16_compress_hook,
    )
    from .power_sgd import PowerSGDState, powerSGD_hook  # noqa: F401
    from .quantization import quantization_8bit_hook  # noqa: F401

_MODULES = {
    "Future": "paddle.distributed.data_parallel.future",
    "PowerSGDState": ".power_sgd",
    "allreduce_hook": "paddle.distributed.data_parallel.communication",
    "bf16_compress_hook": ".compression",
    "fp16_compress_hook": ".compression",
    "powerSGD_hook": ".power_sgd",
    "quantization_8bit_hook": ".quantization",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name], __name__)
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
