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
"""PowerSGD: averages low-rank approximations of gradients.

T. Vogels, S. P. Karimireddy, M. Jaggi: PowerSGD: Practical Low-Rank Gradient
Compression for Distributed Optimization, NeurIPS 2019.
"""

from __future__ import annotations

import warnings
import zlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import paddle
from paddle.distributed.data_parallel.communication import start_mean
from paddle.distributed.data_parallel.future import Future

if TYPE_CHECKING:
    from collections.abc import Callable

    from paddle import Tensor
    from paddle.base.core import Place
    from paddle.distributed.communication.group import Group
    from paddle.distributed.data_parallel.buckets import Bucket


class PowerSGDState:
    """The state that PowerSGD keeps from step to step.

    Gradients are averaged exactly in the first `start_powerSGD_iter` steps.
    Afterwards a matrix is approximated if that compresses it by a factor of at
    least `min_compression_rate`. With `use_error_feedback`, the approximation
    error is added to the next gradient. With `warm_start`, an approximation
    starts from the previous one. `state_dict` and `set_state_dict` save and
    restore the state of a rank. Each ``DataParallel`` needs its own state. The
    names are those of torch.

    Args:
        process_group (Group|None, optional): The group to average over. None
            means the group of the ``DataParallel``. Default: None.
        matrix_approximation_rank (int, optional): The number of columns of the
            two matrices that approximate a gradient. Default: 1.
        start_powerSGD_iter (int, optional): The number of steps that send full
            gradients. Default: 1000.
        min_compression_rate (float, optional): The least factor by which an
            approximation must reduce the number of elements. Default: 2.
        use_error_feedback (bool, optional): Whether to add the approximation
            error to the next gradient. Default: True.
        warm_start (bool, optional): Whether an approximation starts from the
            previous one. Default: True.
        random_seed (int, optional): The seed of the first approximations, the
            same on all ranks. Default: 0.

    Raises:
        ValueError: ``matrix_approximation_rank`` is too small, or
            ``random_seed`` is out of range.

    Examples:
        .. code-block:: python

            >>> from paddle.distributed import comm_hooks
            >>> state = comm_hooks.PowerSGDState(start_powerSGD_iter=2)
            >>> print(state.state_dict()["iteration"])
            0
            >>> # The example of powerSGD_hook averages gradients with a state.
    """

    def __init__(
        self,
        process_group: Group | None = None,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        random_seed: int = 0,
    ):
        if matrix_approximation_rank < 1:
            raise ValueError(
                "matrix_approximation_rank must be at least 1, but received "
                f"{matrix_approximation_rank}. Use 1 to 4, for example."
            )
        _check_seed(random_seed)
        # None means the group of the DataParallel that uses the state.
        self.group = process_group
        self.matrix_approximation_rank = matrix_approximation_rank
        self.start_powerSGD_iter = start_powerSGD_iter
        self.min_compression_rate = min_compression_rate
        self.use_error_feedback = use_error_feedback
        self.warm_start = warm_start
        self.random_seed = random_seed
        self.iteration = 0
        # The keys are names of parameters. A resumed process has other buckets
        # in its first step.
        self.errors: dict[str, Tensor] = {}
        self.factors: dict[str, Tensor] = {}
        # Names of the restored state that no gradient has had yet.
        self._unseen: set[str] = set()

    def state_dict(self) -> dict:
        """Returns the state for `set_state_dict`; `paddle.save` can save it.

        Returns:
            dict: The step, the random seed, and arrays by parameter name.
        """
        return {
            "iteration": self.iteration,
            "random_seed": self.random_seed,
            "errors": {key: each.numpy() for key, each in self.errors.items()},
            "factors": {
                key: each.numpy() for key, each in self.factors.items()
            },
        }

    def set_state_dict(self, state: dict) -> None:
        """Restores a state that `state_dict` returned.

        Args:
            state (dict): The state of the same rank.

        Raises:
            ValueError: ``state`` is not by parameter name, such as a state of
                an earlier version.
        """
        _check_form(state)
        _check_seed(state["random_seed"])
        self.iteration = state["iteration"]
        self.random_seed = state["random_seed"]
        self.errors = _tensors(state["errors"])
        self.factors = _tensors(state["factors"])
        self._unseen = {*self.errors, *self.factors}

    def _drop_unseen(self) -> None:
        """Drops what was restored for parameters that the model lacks."""
        if not self._unseen:
            return
        warnings.warn(
            f"The restored PowerSGD state is for {sorted(self._unseen)}, too, "
            "which this model lacks; it is dropped. Restore the state of the "
            "same model: the names of its parameters must be the same.",
            stacklevel=2,
        )
        for name in self._unseen:
            self.errors.pop(name, None)
            self.factors.pop(name, None)
        self._unseen = set()

    def _add_error(self, name: str, matrix: Tensor) -> Tensor:
        """Returns a gradient plus the error of its previous approximation."""
        self._unseen.discard(name)
        error = self.errors.get(name)
        if error is None:
            return matrix
        if error.shape != matrix.shape:
            raise ValueError(
                "The PowerSGD state has an error of shape "
                f"{list(error.shape)} for '{name}', whose gradient has the "
                f"shape {list(matrix.shape)} as a matrix. Restore a state of "
                "the same model, and give each DataParallel its own state."
            )
        return matrix + _on(matrix.place, error)

    def _first_factor(
        self, name: str, shape: list[int], place: Place
    ) -> Tensor:
        """Returns the initial orthogonal matrix, the same on all ranks."""
        factor = self.factors.get(name) if self.warm_start else None
        if factor is None or factor.shape != shape:
            # Independent of the other parameters, whose order changes when the
            # buckets are rebuilt.
            seed = [self.random_seed, self.iteration, zlib.crc32(name.encode())]
            numbers = np.random.RandomState(seed).randn(*shape)
            factor = paddle.to_tensor(numbers, "float32", place)
        return _orthogonal(_on(place, factor))


class _Matrix(NamedTuple):
    """A gradient that is approximated by the product of two factors."""

    name: str
    gradient: Tensor
    matrix: Tensor
    right: Tensor


def powerSGD_hook(state: PowerSGDState, bucket: Bucket) -> Future:
    """Averages the factors of approximations, and small gradients exactly.

    The factors are float32, whatever the data type of the gradients.

    Args:
        state (PowerSGDState): The state of this rank.
        bucket (Bucket): Gradients of this rank.

    Returns:
        Future: A future of the averages, a tensor with the size and data type
        of ``bucket.buffer()``.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.distributed as dist
            >>> import paddle.multiprocessing as mp
            >>> from paddle.distributed import comm_hooks
            >>> groups = dist.new_thread_groups(2)
            >>> found = {}
            >>> def train(rank):
            ...     layer = paddle.nn.Linear(8, 8, bias_attr=False)
            ...     model = paddle.DataParallel(layer, group=groups[rank])
            ...     state = comm_hooks.PowerSGDState(start_powerSGD_iter=2)
            ...     model.register_comm_hook(state, comm_hooks.powerSGD_hook)
            ...     for _ in range(3):
            ...         layer.clear_gradients()
            ...         x = paddle.full([1, 8], rank + 1.0)
            ...         model(x).sum().backward()
            ...     mean = layer.weight.grad.mean().item()
            ...     found[rank] = state.iteration, round(mean, 3)
            >>> mp.start_threads(train, nthreads=2, devices="cpu")
            >>> print(sorted(found.items()))
            [(0, (3, 1.5)), (1, (3, 1.5))]
    """
    group = state.group or bucket.group
    if state.iteration < state.start_powerSGD_iter:
        future = start_mean(bucket.buffer(), group)
    else:
        future = _start_approximate_mean(state, group, bucket)
        if bucket.is_last():
            state._drop_unseen()
    if bucket.is_last():
        state.iteration += 1
    return future


def _start_approximate_mean(
    state: PowerSGDState, group: Group, bucket: Bucket
) -> Future:
    matrices, others = _split_bucket(state, bucket)
    lefts = _start_means([each.matrix @ each.right for each in matrices], group)
    means = _start_means(others, group)

    def finish() -> Tensor:
        bases = [_orthogonal(left) for left in lefts()]
        _approximate(state, group, matrices, bases)
        for gradient, mean in zip(others, means()):
            gradient.copy_(mean, False)
        return bucket.buffer()

    return Future(finish)


def _split_bucket(
    state: PowerSGDState, bucket: Bucket
) -> tuple[list[_Matrix], list[Tensor]]:
    """Returns the gradients to approximate, and the ones to average exactly."""
    matrices, others = [], []
    for member, gradient in zip(bucket.members.values(), bucket.gradients()):
        if gradient.size == 0:
            continue
        rows = gradient.shape[0] if gradient.ndim > 1 else 1
        columns = gradient.size // rows
        rank = min(state.matrix_approximation_rank, rows, columns)
        compressed = (rows + columns) * rank
        if compressed * state.min_compression_rate > gradient.size:
            others.append(gradient)
            continue
        matrix = gradient.astype("float32").reshape([rows, columns])
        matrix = state._add_error(member.name, matrix)
        right = state._first_factor(member.name, [columns, rank], matrix.place)
        matrices.append(_Matrix(member.name, gradient, matrix, right))
    return matrices, others


def _approximate(
    state: PowerSGDState,
    group: Group,
    matrices: list[_Matrix],
    lefts: list[Tensor],
) -> None:
    """Replaces each gradient by the product of its averaged factors."""
    rights = _start_means(
        [each.matrix.t() @ left for each, left in zip(matrices, lefts)],
        group,
    )
    for each, left, right in zip(matrices, lefts, rights()):
        product = left @ right.t()
        # The product is the same on all ranks. If it overflows, GradScaler
        # skips the step: keep the previous state for the next step.
        if paddle.isfinite(product).all():
            if state.use_error_feedback:
                state.errors[each.name] = each.matrix - product
            if state.warm_start:
                state.factors[each.name] = right
        shaped = product.reshape(each.gradient.shape)
        each.gradient.copy_(shaped.astype(each.gradient.dtype), False)


def _start_means(
    tensors: list[Tensor], group: Group
) -> Callable[[], list[Tensor]]:
    """Starts to average tensors in one operation.

    Returns a function that waits for the means and returns them.
    """
    if not tensors:
        return list
    flat = paddle.concat([tensor.flatten() for tensor in tensors])
    future = start_mean(flat, group)

    def wait() -> list[Tensor]:
        parts = future.wait().split([tensor.size for tensor in tensors])
        return [
            part.reshape(tensor.shape) for part, tensor in zip(parts, tensors)
        ]

    return wait


def _orthogonal(matrix: Tensor) -> Tensor:
    """Returns an orthogonal basis of the columns."""
    return paddle.linalg.qr(matrix)[0]


def _on(place: Place, tensor: Tensor) -> Tensor:
    """Returns a tensor on another place, such as one of a restored state."""
    return tensor if tensor.place == place else tensor._copy_to(place, True)


def _check_seed(random_seed: int) -> None:
    is_integer = isinstance(random_seed, (int, np.integer))
    if not is_integer or not 0 <= random_seed < 1 << 32:
        raise ValueError(
            "random_seed must be an integer from 0 to 2**32 - 1, but received "
            f"{random_seed!r}. Use the same small number on all ranks."
        )


def _check_form(state: dict) -> None:
    """Raises unless a state to restore is by parameter name."""
    if not isinstance(state, dict):
        raise ValueError(
            "The PowerSGD state to restore must be a dict, as state_dict() "
            f"returns it, but received {state!r}."
        )
    missing = {"iteration", "random_seed", "errors", "factors"} - state.keys()
    keys = [*state.get("errors", ()), *state.get("factors", ())]
    wrong = [key for key in keys if not isinstance(key, str)]
    if missing or wrong:
        found = (
            f"has the key {wrong[0]!r}" if wrong else f"lacks {sorted(missing)}"
        )
        raise ValueError(
            f"The PowerSGD state to restore {found}, but a state must be by "
            "parameter name, as state_dict() returns it. A state of an earlier "
            "version cannot be restored, because it does not tell which "
            "parameters its values belong to. Continue with a new "
            "PowerSGDState, which first averages start_powerSGD_iter steps "
            "exactly."
        )


def _tensors(arrays: dict) -> dict:
    """Returns tensors on the CPU: the device of the gradients is not known."""
    place = paddle.CPUPlace()
    return {
        key: paddle.to_tensor(array, place=place)
        for key, array in arrays.items()
    }
