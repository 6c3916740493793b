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
"""Averages sparse gradients: the rows of an Embedding that a step used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle
from paddle.base import core

from .communication import divide, gather, gather_integers

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.distributed.communication.group import Group

    from .buckets import ReducedParameter


class SparseBucket:
    """The sparse gradient of one parameter.

    The average contains the rows of all ranks, in rank order. A row that
    several ranks used occurs several times, as in any sparse gradient.
    """

    def __init__(self, index: int, member: ReducedParameter, group: Group):
        self.members = {index: member}
        self.missing = {index}
        self._member = member
        self._group = group
        self._rows: list[int] = []
        self._values: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self._member.nbytes

    def copy_gradient_in(self, index: int, as_view: bool) -> None:
        """Takes the rows and values of the gradient, or no rows without one."""
        self.missing.discard(index)
        gradient = self._member.tensor.grad
        if gradient is None:
            self.take_zeros()
        elif gradient.is_selected_rows():
            self._rows = list(gradient.get_selected_rows().rows())
            self._values = gradient._get_tensor_from_selected_rows()
        else:
            raise TypeError(
                f"The gradient of {self._member} is dense, but its layer was "
                "built with sparse=True. Build it with sparse=False if its "
                "weight is also used elsewhere."
            )

    def take_zeros(self) -> None:
        """Contributes no rows.

        Used without a gradient, and by a rank that has finished its inputs in
        a Join.
        """
        self.missing.clear()
        self._rows = []
        self._values = self._member.tensor.detach()[:0]

    def start(self, hook: object) -> None:
        """Starts nothing: the ranks must first agree on the number of rows."""

    def finish(self, factor: float) -> None:
        """Gathers the rows and values of all ranks."""
        place = self._values.place
        rows = gather_integers(self._rows, self._group, place)
        most = max(len(each) for each in rows)
        missing = [most - len(self._rows), *self._values.shape[1:]]
        padding = paddle.zeros(missing, self._values.dtype, device=place)
        padded = paddle.concat([self._values, padding])
        # Collectives do not accept empty tensors.
        parts = gather(padded, self._group) if most else [padded] * len(rows)
        self._values = divide(
            paddle.concat([part[: len(own)] for part, own in zip(parts, rows)]),
            self._group.nranks,
        )
        if factor != 1:
            self._values.scale_(factor)
        self._rows = [row for own in rows for row in own]

    def copy_gradient_out(self, index: int, as_view: bool) -> None:
        """Sets the gradient of the parameter to the average."""
        parameter = self._member.tensor
        gradient = core.eager.Tensor(
            self._values.dtype,
            parameter.shape,
            f"{parameter.name}@GRAD",
            core.VarDesc.VarType.SELECTED_ROWS,
            False,
        )
        rows = gradient.get_selected_rows()
        rows.set_height(parameter.shape[0])
        rows.set_rows(self._rows)
        rows.get_tensor()._share_data_with(self._values.get_tensor())
        parameter.grad_ = gradient
