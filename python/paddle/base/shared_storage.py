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
"""The binding of the allocators of memory that processes share."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Callable, NoReturn

if TYPE_CHECKING:
    from types import ModuleType

    import paddle

from . import libpaddle


class _Unavailable:
    """Stands for the binding where Paddle was built without it."""

    def __getattr__(self, name: str) -> NoReturn:
        raise NotImplementedError(
            "This Paddle was built without memory that processes share, which "
            "needs Linux."
        )


def _binding() -> ModuleType | None:
    """Part of libpaddle, or a module of its own beside it."""
    if hasattr(libpaddle, "_shared_storage"):
        return libpaddle._shared_storage
    try:
        from . import _shared_storage
    except ImportError:
        # One that is there and cannot be loaded is not to be passed over.
        if find_spec("._shared_storage", __package__) is not None:
            raise
        return None
    return _shared_storage


_found = _binding()
is_available = _found is not None
native = _found or _Unavailable()


def ipc_collect() -> None:
    """
    Frees GPU memory that this process has sent and dropped and that no other
    process uses any more, of processes that were killed too. It happens by
    itself when tensors are sent, and when memory runs out.
    """
    if is_available:
        native.collect_cuda()
    libpaddle._ipc_collect()


def keeping_inside_alive(
    get_tensor: Callable[[paddle.Tensor], paddle.base.core.DenseTensor],
) -> Callable[[paddle.Tensor], paddle.base.core.DenseTensor]:
    """
    Returns `Tensor.get_tensor` such that the DenseTensor can be used when the
    Tensor, which it refers into, is gone or has got other contents.
    """
    if not is_available:
        return get_tensor

    def get_tensor_kept(self):
        inside = get_tensor(self)
        native.keep_alive(inside, self)
        return inside

    get_tensor_kept.__name__ = get_tensor.__name__
    get_tensor_kept.__doc__ = get_tensor.__doc__
    return get_tensor_kept
