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
"""The binding of the C++ part of shared memory, loaded on first use.

A process joins its process tree when it first uses shared memory or starts its
first child, not when Paddle is imported.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from multiprocessing.process import AuthenticationString
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Callable

from . import libpaddle

if TYPE_CHECKING:
    import paddle

# Identifies a process tree; starting_processes.cc reads it, too.
_TREE_VARIABLE = "PADDLE_SHARED_MEMORY_TREE"

# Paddle's flag that selects the sharing strategy.
FILE_DESCRIPTOR_FLAG = "FLAGS_dataloader_use_file_descriptor"


def _binding() -> Any:
    return getattr(libpaddle, "_shared_storage", None)


@functools.cache
def is_available() -> bool:
    """
    Returns whether this Paddle was built with shared memory, and this system
    has what it needs.
    """
    binding = _binding()
    return binding is not None and binding.can_make_segments()


class _Native:
    """The functions of the binding, loaded on first use."""

    def __getattr__(self, name: str) -> Any:
        binding = _binding()
        if binding is None:
            raise NotImplementedError(
                "This Paddle was built without shared memory, a C++ part for "
                "Linux. Send a copy instead, for example tensor.numpy()."
            )
        function = getattr(binding, name)
        join_process_tree()
        return function


native = _Native()
_tree_id = ""  # the value of the variable, once this process has joined
# Held while a thread joins, and during a fork, so that a child never inherits
# it locked by a thread that does not exist there.
_joining = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_joining.acquire,
        after_in_parent=_joining.release,
        after_in_child=_joining.release,
    )


def is_in_use() -> bool:
    """
    Returns whether this process has joined its process tree. A process that has
    not joined has no tensors in shared memory.
    """
    return bool(vars(native))


def join_process_tree() -> None:
    """Makes this process join its process tree, unless it already has."""
    global _tree_id
    if is_in_use():
        return
    with _joining:
        if is_in_use():
            return
        from . import process_tree

        binding = _binding()
        _tree_id = process_tree.join(binding, _TREE_VARIABLE)
        # From now on, attribute lookup does not reach __getattr__.
        vars(native).update(
            (name, function)
            for name, function in vars(binding).items()
            if not name.startswith("_")
        )


def _before_child() -> None:
    """Ensures that a child that starts now belongs to this process tree."""
    if is_available():
        join_process_tree()
    # The program may have restored an older environment.
    if _tree_id:
        os.environ.setdefault(_TREE_VARIABLE, _tree_id)


def _before_fork() -> None:
    # This may fail: because no descriptor is free, or because the process has
    # changed its user or root folder and cannot load the code.
    with contextlib.suppress(ImportError, OSError):
        _before_child()


def _reduce_key(key: AuthenticationString) -> tuple:
    _before_child()
    return key.__reduce__()


def join_before_first_child() -> None:
    """
    Makes this process join its process tree before it starts its first child,
    so that the child inherits the tree; or now, if it has inherited one itself.
    """
    if _TREE_VARIABLE in os.environ:
        _before_child()
    os.register_at_fork(before=_before_fork)
    # multiprocessing pickles this key for each child that it does not fork.
    ForkingPickler.register(AuthenticationString, _reduce_key)


def collect_dead() -> None:
    """Frees the shared memory that processes held when they died."""
    if is_in_use():
        native.collect_dead()


def ipc_collect() -> None:
    """
    Frees the GPU memory of tensors that this process has sent to other
    processes and dropped since, if no living process uses it any more. It need
    not be called: Paddle does the same when a process sends or drops a tensor,
    and when GPU memory runs out. It helps a process that stopped sending, after
    its receivers have dropped the tensors or have been killed.

    ``paddle.device.ipc_collect``, ``paddle.device.cuda.ipc_collect`` and
    ``paddle.cuda.ipc_collect`` are the same function.

    Returns:
        None

    Examples:
        .. code-block:: python

            >>> # doctest: +REQUIRES(env:GPU)
            >>> import paddle
            >>> paddle.device.ipc_collect()
    """
    if is_in_use():
        native.collect_cuda()
    libpaddle._ipc_collect()


def keeping_tensor_alive(
    get_tensor: Callable[[paddle.Tensor], paddle.base.core.DenseTensor],
) -> Callable[[paddle.Tensor], paddle.base.core.DenseTensor]:
    """
    Wraps `Tensor.get_tensor`, whose result refers into the Tensor. The result
    stays valid when the Tensor is dropped, or gets another implementation by
    `tensor.data = other`.
    """

    # Python clears the globals of this module before it destroys all objects.
    library = libpaddle

    def get_tensor_keeping_tensor_alive(
        self: paddle.Tensor,
    ) -> paddle.base.core.DenseTensor:
        dense = get_tensor(self)
        # Not `native`, which would join the process tree.
        binding = getattr(library, "_shared_storage", None)
        if binding is not None:
            binding.keep_alive(dense, self)
        return dense

    get_tensor_keeping_tensor_alive.__name__ = get_tensor.__name__
    get_tensor_keeping_tensor_alive.__doc__ = get_tensor.__doc__
    return get_tensor_keeping_tensor_alive
