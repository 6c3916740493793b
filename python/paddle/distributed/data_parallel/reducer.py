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
"""The reducer: averages gradients over ranks during the backward pass."""

from __future__ import annotations

import concurrent.futures
import contextlib
import enum
import functools
import threading
import time
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import paddle
import paddle.distributed as dist
from paddle.base.dygraph.backward_end import at_end_of_backward
from paddle.distributed.exact_operators import exact_operators

from .buckets import Bucket, assign_buckets
from .communication import allreduce_hook, broadcast_first, gather, timeout_of
from .skipped_passes import SkippedPasses
from .sparse_bucket import SparseBucket
from .statistics import StepTimes
from .unused_parameters import find_tensors, find_unused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from paddle import Tensor
    from paddle.distributed.communication.group import Group

    from .buckets import ReducedParameter
    from .future import Future


@dataclass(frozen=True)
class ReducerOptions:
    """The `DataParallel` options that the reducer needs; sizes in bytes."""

    comm_buffer_size: int
    last_comm_buffer_size: int
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False


# Backward needs the reducer even if the DataParallel was dropped after forward.
# The graph of the outputs keeps the reducer alive. This set does so for outputs
# that are parameters or are hidden in objects of other types.
_expecting_gradients: set[Reducer] = set()

# All reducers; several of them may have the same parameters. Not a WeakSet,
# which needs a lock: a child could inherit it locked, from a fork on another
# thread.
_reducers: set[weakref.ref[Reducer]] = set()


# How to let `find_unused_parameters` see all outputs.
_HOW_OUTPUTS_ARE_FOUND = (
    "DataParallel finds output tensors only in tuples, lists, dicts and "
    "dataclasses, so forward must return them in one of these"
)


class _NextGradients(enum.Enum):
    """How to treat the next gradients."""

    # Leave them: no forward pass was done yet, or the last was under no_sync().
    LOCAL = enum.auto()
    # Average them: a forward pass expects them.
    EXPECTED = enum.auto()
    # Refuse them: the gradients of the last forward pass are averaged already.
    AVERAGED = enum.auto()


class _Outputs:
    """Lives as long as the graph of a forward pass's outputs."""

    def __init__(self, reducer: Reducer):
        self._reducer = reducer
        self._is_counted = False

    def expect_backward(self) -> None:
        self._is_counted = True
        self._reducer.skipped_passes.expect_backward()

    def begin_backward(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._reducer.skipped_passes.begin_backward()


class Reducer:
    """Averages the gradients of parameters over the ranks of a group.

    All ranks average the buckets in the same order, each bucket as soon as it
    and all earlier buckets are full. When `backward()` returns, the gradients
    are averages. Forward and backward must run on the same thread.
    """

    def __init__(
        self,
        parameters: Sequence[ReducedParameter],
        frozen: Sequence[ReducedParameter],
        group: Group,
        options: ReducerOptions,
    ):
        self._parameters = parameters
        self._tensors = [parameter.tensor for parameter in parameters]
        self._group = group
        # The current device may be another one.
        self.place = self._tensors[0].place
        self._options = options
        self._hook: Callable[[Bucket], Future | Tensor] = functools.partial(
            allreduce_hook, group
        )
        # Scales the averages. In a Join it may differ from 1.
        self.factor = 1.0
        self.times = StepTimes()
        self.skipped_passes = SkippedPasses(group, self.place)
        self._next = _NextGradients.LOCAL
        # For each parameter, how many hook calls are still expected.
        self._expected_hook_calls = [1] * len(parameters)
        # Recorded in the first step with `static_graph`: the hook calls per
        # step of each parameter.
        self._hooks_per_step: list[int] | None = None
        # Kept from the first step, unless `find_unused_parameters` finds them
        # in each: whether any rank uses a parameter, and which of them this
        # rank does not use. None before that step.
        self._used_anywhere: list[bool] | None = None
        self._unused: set[int] | None = None
        # In the first step: parameters that the outputs do not depend on. They
        # may still get gradients, such as those of a penalty term.
        self._optional: set[int] = set()
        # Parameters that were frozen in the last forward pass, but not when the
        # reducer was built.
        self._frozen: list[int] = []
        self._used_locally = [False] * len(parameters)
        self._use_flags: tuple[Tensor, object] | None = None
        self._arrivals: list[int] = []
        self._started = 0
        self._has_begun = False
        self._end_function_registered = False
        self._order_is_known = False
        self._has_warned = False
        self._error: Exception | None = None
        # Whether ranks may be in different steps, after an error on some ranks.
        self._steps_may_differ = False
        # Buckets of failed steps, whose hooks may communicate on threads.
        self._abandoned: list[Bucket] = []
        # Completed steps, including those without inputs in a Join.
        self._steps = 0
        self._outputs: Callable[[], _Outputs | None] = lambda: None
        self._reducers_with_same_parameters: list[weakref.ref[Reducer]] = []
        self._add_to_reducers()
        self._make_buckets(range(len(parameters) - 1, -1, -1))
        for index, tensor in enumerate(self._tensors):
            self._register(tensor, Reducer._on_gradient, index)
        for parameter in frozen:
            # Hooks can only be registered on trainable tensors.
            parameter.tensor.stop_gradient = False
            self._register(parameter.tensor, Reducer._on_frozen, parameter)
            parameter.tensor.stop_gradient = True

    def _register(
        self, tensor: Tensor, method: Callable, argument: object
    ) -> None:
        """Calls `method(self, argument)` at each gradient of a parameter."""
        # The garbage collector cannot see references held by a hook: a strong
        # reference to the reducer would leak the model.
        tensor._register_backward_hook(
            functools.partial(
                _call_reducer, weakref.ref(self), method, argument
            )
        )

    def _others(self) -> list[Reducer]:
        # Nothing runs during the copy that could change the set.
        every = (reference() for reference in _reducers.copy())
        return [each for each in every if each is not None and each is not self]

    def _add_to_reducers(self) -> None:
        """Finds reducers that would make the same gradients their views.

        Raises if one of them belongs to another rank, which is a thread.
        """
        _reducers.add(weakref.ref(self, _reducers.discard))
        for other in self._others():
            shared = self._first_shared_parameter(other)
            if shared is None:
                continue
            # The groups of the threads of one `new_thread_groups` share their
            # list of ranks. Other groups have lists of their own.
            if (
                other._group.ranks is self._group.ranks
                and other._group.rank != self._group.rank
            ):
                _reducers.discard(weakref.ref(self))
                raise ValueError(
                    f"Rank {self._group.rank} got the model of rank "
                    f"{other._group.rank}: both train the same tensor, "
                    f"{shared}. Build one model per thread."
                )
            if (
                self._options.gradient_as_bucket_view
                or other._options.gradient_as_bucket_view
            ):
                self._reducers_with_same_parameters.append(weakref.ref(other))
                other._reducers_with_same_parameters.append(weakref.ref(self))

    def _first_shared_parameter(
        self, other: Reducer
    ) -> ReducedParameter | None:
        theirs = set(map(id, other._tensors))
        return next(
            (each for each in self._parameters if id(each.tensor) in theirs),
            None,
        )

    @property
    def buckets(self) -> list[Bucket | SparseBucket]:
        return self._buckets

    def set_hook(self, hook: Callable[[Bucket], Future | Tensor]) -> None:
        """Sets the hook that averages all buckets without sparse gradients."""
        self._hook = hook

    def prepare_for_backward(self, outputs: object, is_training: bool) -> None:
        """Expects the gradients of the forward pass that returned `outputs`."""
        if self._next is _NextGradients.EXPECTED and self._has_begun:
            self._raise_missing()
        self._enforce_no_other_expects_views()
        self._next = _NextGradients.EXPECTED
        tensors = list(find_tensors(outputs))
        kept = self._stay_alive_for_backward(tensors, is_training)
        self._start_step()
        self._optional = self._find_optional(tensors)
        unused = self._find_unused(tensors)
        # Forward decides which gradients backward computes: freezing or
        # unfreezing a parameter in between has no effect.
        self._frozen = [
            index
            for index, tensor in enumerate(self._tensors)
            if tensor.stop_gradient
        ]
        for index in range(len(self._parameters)):
            if self._hooks_per_step is not None:
                self._expected_hook_calls[index] = self._hooks_per_step[index]
            else:
                self._expected_hook_calls[index] = 0 if index in unused else 1
        if len(unused) == len(self._parameters):
            # This rank computes no gradient, but other ranks may.
            kept.begin_backward()
            self._begin()
            self._complete()

    def skip_synchronization(self) -> None:
        """Keeps the gradients of the next backward pass local.

        The last forward decides this. Outputs that still exist do not: other
        ranks may have dropped theirs.
        """
        if self._next is _NextGradients.EXPECTED and self._has_begun:
            self._raise_missing()
        self._finish_step(_NextGradients.LOCAL)

    def _finish_step(self, following: _NextGradients) -> None:
        self._next = following
        _expecting_gradients.discard(self)

    def _stay_alive_for_backward(
        self, outputs: Sequence[Tensor], is_training: bool
    ) -> _Outputs:
        """Lets the graphs of the outputs keep the reducer alive.

        Also lets them tell whether the forward pass was followed by a backward
        pass, which an evaluation is not.
        """
        is_kept = bool(outputs)
        kept = _Outputs(self)
        self._outputs = weakref.ref(kept)
        has_hook = False
        for output in outputs:
            if output.stop_gradient:
                continue
            if output.is_leaf:
                # A parameter: its hook would keep the reducer alive forever.
                is_kept = False
            else:
                output.register_hook(
                    functools.partial(_hook_that_keeps_alive, kept)
                )
                has_hook = True
        if not is_kept:
            _expecting_gradients.add(self)
        if has_hook and is_training:
            kept.expect_backward()
        return kept

    def _start_step(self) -> None:
        self._has_begun = False
        self.times.forget()
        self._started = 0
        self._arrivals = []
        self._has_warned = False
        for bucket in self._buckets:
            bucket.missing = set(bucket.members)

    def _find_optional(self, outputs: Sequence[Tensor]) -> set[int]:
        """Returns the parameters that the first step may leave out."""
        if (
            self._options.find_unused_parameters
            or self._options.static_graph
            or self._unused is not None
        ):
            return set()
        optional = self._independent_of(outputs)
        # A forward pass whose outputs need no gradients shows nothing about
        # the next ones.
        return optional if len(optional) < len(self._parameters) else set()

    def _find_unused(self, outputs: Sequence[Tensor]) -> set[int]:
        """Returns the parameters that this step must leave out."""
        if self._hooks_per_step is not None:
            return {i for i, due in enumerate(self._hooks_per_step) if not due}
        if self._finds_unused_in_each_step:
            return self._independent_of(outputs)
        return self._unused or set()

    def _independent_of(self, outputs: Sequence[Tensor]) -> set[int]:
        # Without outputs, they are hidden in an object of another type.
        return set(find_unused(self._tensors, outputs)) if outputs else set()

    @property
    def _finds_unused_in_each_step(self) -> bool:
        options = self._options
        return options.find_unused_parameters and not options.static_graph

    @property
    def _is_learning(self) -> bool:
        """Whether this is the first step with `static_graph`."""
        return self._options.static_graph and self._hooks_per_step is None

    def _on_gradient(self, index: int) -> None:
        # A hook must not raise. Its error is raised at the end of backward.
        if self._error is not None:
            return
        if self._next is _NextGradients.LOCAL:
            self._used_locally[index] = True
            return
        self._register_end_function()
        try:
            if self._next is _NextGradients.EXPECTED:
                self._on_expected_gradient(index)
            elif not self._is_expected_by_another(index):
                self._refuse_late_gradient(index)
        except Exception as error:
            self._error = error

    def _is_expected_by_another(self, index: int) -> bool:
        """Returns whether another reducer of the parameter averages it."""
        own = self._tensors[index]
        return any(
            other._next is _NextGradients.EXPECTED
            and any(tensor is own for tensor in other._tensors)
            for other in self._others()
        )

    def _register_end_function(self) -> None:
        if not self._end_function_registered:
            at_end_of_backward(self._on_end_of_backward)
            self._end_function_registered = True

    def _on_frozen(self, parameter: ReducedParameter) -> None:
        if self._next is not _NextGradients.EXPECTED or self._error is not None:
            return
        if any(
            parameter.tensor is tensor
            for other in self._others()
            for tensor in other._tensors
        ):
            return
        self._register_end_function()
        self._error = RuntimeError(
            f"{parameter} has a gradient, but was frozen (stop_gradient=True) "
            "when DataParallel was built, so the gradient is not averaged. "
            "Unfreeze all trained parameters before you build DataParallel, or "
            "set the parameter's attribute no_sync to True before, to train it "
            "on each rank separately."
        )

    def _on_expected_gradient(self, index: int) -> None:
        if not self._has_begun:
            self._begin()
        self._expected_hook_calls[index] -= 1
        if self._is_learning or index in self._optional:
            self._used_locally[index] = True
        if self._is_learning:
            if self._expected_hook_calls[index] == 0:
                self._arrivals.append(index)
        elif self._expected_hook_calls[index] == 0:
            self._arrivals.append(index)
            self._copy_into_bucket(index)
            self._start_full_buckets(including_delayed=False)
        elif self._expected_hook_calls[index] < 0:
            raise RuntimeError(self._unexpected_message(index))

    def _begin(self) -> None:
        """Starts the communication of a step."""
        if self._frozen and not self._is_learning:
            self._refuse_frozen()
        self._has_begun = True
        self.times.mark("backward")
        if self._steps_may_differ:
            self._check_ranks_in_same_step()
        with paddle.no_grad():
            self._start_exchange_of_skipped_passes()
        if self._is_learning:
            return
        with paddle.no_grad():
            for index, due in enumerate(self._expected_hook_calls):
                if due == 0:
                    self._contribute_zeros_or_local(index)
                elif index not in self._optional:
                    self._used_locally[index] = True
            if self._finds_unused_in_each_step:
                self._start_exchange_of_use()

    def _refuse_frozen(self) -> None:
        """Raises if a bucket would wait for the gradient of a frozen parameter.

        This is not checked in forward: a forward pass whose parameters are all
        frozen, or that is an evaluation, starts no communication.
        """
        lacking = [
            index
            for index in self._frozen
            if self._expected_hook_calls[index] > 0
            and index not in self._optional
        ]
        if lacking:
            raise RuntimeError(
                f"{self._names_of(lacking)} had stop_gradient=True in the last "
                "forward pass, but not when DataParallel was built, so the "
                "gradients of this step cannot be averaged. Build DataParallel "
                f"again after freezing. {self._cure_of_changing_freezes()}"
            )

    def _cure_of_changing_freezes(self) -> str:
        options = self._options
        if options.static_graph:
            return (
                "If steps freeze different parameters, also replace "
                "static_graph=True by find_unused_parameters=True."
            )
        if options.find_unused_parameters:
            # Otherwise it would not expect their gradients.
            return f"{_HOW_OUTPUTS_ARE_FOUND}."
        return (
            "If steps freeze different parameters, also pass "
            "find_unused_parameters=True."
        )

    def _names_of(self, indices: Iterable[int]) -> str:
        return ", ".join(str(self._parameters[index]) for index in indices)

    def _check_ranks_in_same_step(self) -> None:
        """Raises unless all ranks failed in the same step.

        A rank that did not fail calls another operation, and the group reports
        the mismatch. Without this exchange, buckets of different steps could
        be averaged.
        """
        self._wait_for_abandoned()
        steps = paddle.to_tensor([self._steps], "int64", self.place)
        by_rank = [each.item() for each in gather(steps, self._group)]
        if len(set(by_rank)) > 1:
            raise RuntimeError(
                "After an error in backward, the ranks are in different steps: "
                f"they have completed {by_rank} steps, by rank. Restart "
                "all ranks."
            )
        self._steps_may_differ = False

    def _wait_for_abandoned(self) -> None:
        timeout = timeout_of(self._group)
        deadline = time.monotonic() + timeout
        while self._abandoned:
            bucket = self._abandoned[0]
            remaining = max(0, deadline - time.monotonic())
            remaining = min(remaining, threading.TIMEOUT_MAX)
            try:
                # Unlike concurrent.futures.wait, this returns when an executor
                # cancels the future in its shutdown().
                with contextlib.suppress(concurrent.futures.CancelledError):
                    bucket.result.exception(remaining)
            except concurrent.futures.TimeoutError:
                raise RuntimeError(
                    f"After an error in backward, rank {self._group.rank} "
                    f"waited {timeout:g} s, the timeout of its group, for the "
                    "communication hook of the failed step, whose future for "
                    f"{self._names_of(bucket.members)} is not done. Let the "
                    "hook complete or cancel its futures, or restart all ranks."
                ) from None
            del self._abandoned[0]

    def _contribute_zeros_or_local(self, index: int) -> None:
        """Takes zeros, or the local gradient of steps under `no_sync()`."""
        if self._tensors[index].grad is None:
            # If there was one, the caller has dropped it, so this rank does not
            # use the parameter.
            self._used_locally[index] = False
        elif (
            self._used_anywhere is not None
            and not self._used_anywhere[index]
            and self._used_locally[index]
        ):
            # Its average would be dropped.
            raise RuntimeError(self._unexpected_message(index))
        # Not as a view: the gradient stays if no rank uses it.
        self._bucket_of[index].copy_gradient_in(index, as_view=False)

    def _start_exchange_of_use(self, has_inputs: bool = True) -> None:
        # One flag is whether a rank takes part without inputs. What that rank
        # will use is not known yet.
        skipped = self.skipped_passes.by_rank()
        flags = [*self._used_locally, not has_inputs, *skipped]
        flags = paddle.to_tensor(flags, "int32", self.place)
        task = dist.all_reduce(
            flags, dist.ReduceOp.MAX, group=self._group, sync_op=False
        )
        self._use_flags = flags, task

    def _start_exchange_of_skipped_passes(self) -> None:
        """Starts to exchange the counts of skipped passes, in some steps.

        All ranks call this before they send the first bucket of a step. If they
        exchange in each step which parameters they use, the counts are part of
        that exchange instead.
        """
        if not self._finds_unused_in_each_step:
            self.skipped_passes.start_exchange(self._steps)

    def _copy_into_bucket(self, index: int) -> None:
        self._bucket_of[index].copy_gradient_in(
            index, self._options.gradient_as_bucket_view
        )

    def _start_full_buckets(self, including_delayed: bool) -> None:
        while self._started < len(self._buckets):
            bucket = self._buckets[self._started]
            if bucket.missing:
                return
            if self._is_delayed(bucket) and not including_delayed:
                return
            # Count first, so that a bucket whose hook fails is not restarted.
            self._started += 1
            self.times.mark("communication")
            self.times.mark("waiting")
            with exact_operators():
                bucket.start(self._hook)
            self.times.add("waiting")

    @staticmethod
    def _is_delayed(bucket: Bucket | SparseBucket) -> bool:
        return any(member.is_delayed for member in bucket.members.values())

    def _on_end_of_backward(self, succeeded: bool) -> None:
        self._end_function_registered = False
        error, self._error = self._error, None
        if error is None and not succeeded:
            self._abandon_step()
            return
        try:
            if error is not None:
                raise error
            if self._next is _NextGradients.EXPECTED and self._is_complete():
                self._complete()
        except BaseException:
            self._abandon_step()
            raise

    def _abandon_step(self) -> None:
        """Keeps the gradients as they are, and drops operations in flight."""
        if self._next is not _NextGradients.EXPECTED:
            # No step is in progress: the gradients are averages already.
            return
        self._steps_may_differ = True
        self._finish_step(_NextGradients.LOCAL)
        self._has_begun = False
        self._use_flags = None
        self.skipped_passes.forget()
        # Waiting for them here could delay the error until the group's timeout:
        # other ranks may have failed before they started these buckets.
        self._abandoned += [
            bucket
            for bucket in self._buckets
            if isinstance(bucket, Bucket)
            and isinstance(bucket.result, concurrent.futures.Future)
        ]
        # Operations in flight keep the old buffers. Gradients that are views of
        # them are invalid until the next step. All ranks have these buckets;
        # other ranks may not have failed, so the division must not change.
        self._set_buckets(self._parts)

    def _is_complete(self) -> bool:
        """Returns whether all gradients of the step were computed."""
        return self._is_learning or all(
            bucket.missing <= self._optional for bucket in self._buckets
        )

    def _complete(self) -> None:
        """Averages the remaining buckets, and sets the gradients."""
        with exact_operators():
            if self._is_learning:
                self._learn()
            elif not self._finds_unused_in_each_step and self._unused is None:
                self._record_unused()
            self._start_full_buckets(including_delayed=True)
            self.times.add("backward")
            self.times.mark("waiting")
            self._copy_averages_out()
            self.skipped_passes.finish_exchange()
            self.skipped_passes.end_step()
            self.times.add("waiting")
            self.times.add("communication")
            self.times.steps += 1
            self._rebuild_buckets()
            self._steps += 1
            self._finish_step(_NextGradients.AVERAGED)
            self._used_locally = [False] * len(self._parameters)

    def take_part_without_gradients(self) -> None:
        """Communicates like the other ranks in a step, and drops the averages.

        This is for a rank that has no inputs left.
        """
        self._start_step()
        with exact_operators():
            for bucket in self._buckets:
                bucket.take_zeros()
            self._used_locally = [False] * len(self._parameters)
            self._start_exchange_of_skipped_passes()
            if self._finds_unused_in_each_step:
                self._start_exchange_of_use(has_inputs=False)
            self._start_full_buckets(including_delayed=True)
            for _ in self._finish_buckets(has_inputs=False):
                pass
            self.skipped_passes.finish_exchange()
            self._rebuild_buckets()
        self.skipped_passes.end_step()
        self._steps += 1
        self._finish_step(_NextGradients.LOCAL)

    def _learn(self) -> None:
        """Records the hook calls of the first step, for all later steps."""
        self._hooks_per_step = [1 - due for due in self._expected_hook_calls]
        for index, calls in enumerate(self._hooks_per_step):
            if calls > 0:
                self._copy_into_bucket(index)
            else:
                self._contribute_zeros_or_local(index)

    def _record_unused(self) -> None:
        """Records the parameters without gradients in the first step."""
        self._unused = {
            i for i in self._optional if self._expected_hook_calls[i] > 0
        }
        for index in self._unused:
            self._contribute_zeros_or_local(index)

    def _finish_buckets(
        self, has_inputs: bool = True
    ) -> Iterator[tuple[Bucket | SparseBucket, list[bool]]]:
        """Yields each averaged bucket, and which parameters any rank uses.

        The reducer starts no operation of its own until all hooks are done: a
        hook may communicate on its own thread, so the order of its operations
        and the reducer's would differ between ranks.
        """
        with_hook = [each for each in self._buckets if isinstance(each, Bucket)]
        used = None if self._must_learn_use else self._find_used_anywhere()
        for bucket in with_hook:
            bucket.finish(self.factor)
            if used is not None:
                yield bucket, used
        if used is None:
            self._start_exchange_of_use(has_inputs)
            used = self._find_used_anywhere()
            yield from ((bucket, used) for bucket in with_hook)
        for bucket in self._buckets:
            if isinstance(bucket, SparseBucket):
                bucket.finish(self.factor)
                yield bucket, used

    @property
    def _must_learn_use(self) -> bool:
        """Whether this step finds which parameters all later steps use.

        Only the end of backward shows this, so the ranks cannot exchange it
        before the first bucket.
        """
        return not self._finds_unused_in_each_step and (
            self._used_anywhere is None
        )

    def _find_used_anywhere(self) -> list[bool]:
        """Returns for each parameter whether any rank has its gradient."""
        if self._use_flags is not None:
            flags, task = self._use_flags
            self._use_flags = None
            task.wait()
            values = flags.tolist()
            number = len(self._parameters)
            used = [flag > 0 for flag in values[:number]]
            lacks_inputs = values[number] > 0
            self.skipped_passes.compare(values[number + 1 :])
            if not self._finds_unused_in_each_step and not lacks_inputs:
                self._used_anywhere = used
            return used
        return self._used_anywhere or [True] * len(self._parameters)

    def _copy_averages_out(self) -> None:
        # Its own method: no variable may keep a bucket while they are rebuilt.
        for bucket, used in self._finish_buckets():
            for index in bucket.members:
                if used[index]:
                    self._copy_average_out(bucket, index)

    def _copy_average_out(
        self, bucket: Bucket | SparseBucket, index: int
    ) -> None:
        bucket.copy_gradient_out(index, self._options.gradient_as_bucket_view)
        # If the gradient was cleared to zero and this rank computed none since,
        # the next gradient would otherwise replace the average instead of being
        # added to it.
        self._tensors[index]._unset_fake_empty()

    def _rebuild_buckets(self) -> None:
        """Rebuilds the buckets in the order in which gradients were ready."""
        if self._order_is_known or self._finds_unused_in_each_step:
            return
        # The order of a rank without inputs is empty.
        order = broadcast_first(self._arrivals, self._group, self.place)
        if self._arrivals and self._arrivals != order:
            self._warn_of_order(order)
        unused = set(range(len(self._parameters))) - set(order)
        self._make_buckets([*order, *sorted(unused, reverse=True)])
        self._order_is_known = True

    def _make_buckets(self, order: Sequence[int]) -> None:
        self._set_buckets(
            assign_buckets(
                self._parameters,
                list(order),
                self._options.comm_buffer_size,
                self._options.last_comm_buffer_size,
            )
        )

    @exact_operators()
    def _set_buckets(self, parts: Sequence[list[int]]) -> None:
        """Replaces the buckets by new ones with these parameters."""
        last_with_hook = max(
            (
                number
                for number, part in enumerate(parts)
                if not self._parameters[part[0]].has_sparse_gradient
            ),
            default=None,
        )
        self._parts = parts
        # Frees the old buckets before there are new ones.
        self._buckets, self._bucket_of = [], {}
        self._buckets = [
            self._make_bucket(number, part, number == last_with_hook)
            for number, part in enumerate(parts)
        ]
        self._bucket_of = {
            index: bucket
            for bucket in self._buckets
            for index in bucket.members
        }

    def _make_bucket(
        self, number: int, part: list[int], is_last: bool
    ) -> Bucket | SparseBucket:
        members = {index: self._parameters[index] for index in part}
        if self._parameters[part[0]].has_sparse_gradient:
            return SparseBucket(part[0], members[part[0]], self._group)
        return Bucket(number, members, is_last, self._group)

    def _raise_missing(self) -> None:
        missing = set().union(*(bucket.missing for bucket in self._buckets))
        names = self._names_of(sorted(missing - self._optional))
        self._abandon_step()
        cure = (
            "static_graph=True requires that every step uses the same "
            "parameters; leave it out"
            if self._options.static_graph
            else "Use the whole output of the layer in the loss. "
            f"{_HOW_OUTPUTS_ARE_FOUND}"
            if self._options.find_unused_parameters
            else "If steps may leave out parameters, build DataParallel with "
            "find_unused_parameters=True"
        )
        raise RuntimeError(
            f"Rank {self._group.rank} got no gradient for {names} in the last "
            "step, so the gradients of that step were not averaged. "
            f"{cure}."
        )

    def may_get_gradients(self) -> bool:
        """Returns whether the graph of a forward pass may still exist."""
        if self._next is not _NextGradients.EXPECTED:
            return False
        return self._outputs() is not None or self in _expecting_gradients

    def _enforce_no_other_expects_views(self) -> None:
        for reference in self._reducers_with_same_parameters:
            other = reference()
            if other is not None and other.may_get_gradients():
                raise RuntimeError(
                    f"{self._first_shared_parameter(other)} belongs to two "
                    "DataParallel layers that both expect its gradient, but a "
                    "gradient cannot be a view of two buckets. Run backward of "
                    "one before forward of the other, or build both without "
                    "gradient_as_bucket_view."
                )

    def _unexpected_message(self, index: int) -> str:
        if self._options.static_graph:
            return (
                f"The gradient of {self._parameters[index]} was computed more "
                "often than in the first step, or in a second backward() of "
                "one forward. static_graph=True requires that every step uses "
                "the same parameters, in one backward(): call backward() once "
                "on the sum of the losses, or leave static_graph out."
            )
        if self._unused and index in self._unused:
            return (
                f"{self._parameters[index]} has a gradient, but had none in "
                "the first step, so the gradient cannot be averaged. If steps "
                "use different parameters, build DataParallel with "
                "find_unused_parameters=True."
            )
        if self._finds_unused_in_each_step and index not in self._arrivals:
            return (
                f"{self._parameters[index]} has a gradient, but no output that "
                f"DataParallel found depends on it. {_HOW_OUTPUTS_ARE_FOUND}. "
                "If the layer recomputes its activations, build DataParallel "
                "with static_graph=True. If the loss uses the parameter "
                "outside forward, use it in forward instead."
            )
        return (
            f"The gradient of {self._parameters[index]} was computed a second "
            "time in one step, after its bucket took the first. Call "
            "backward() once on the sum of the losses, run each forward but "
            "the last under no_sync(), or, if the layer recomputes its "
            "activations, build DataParallel with static_graph=True."
        )

    def _refuse_late_gradient(self, index: int) -> None:
        """Warns of a gradient after the averaging, or raises an error."""
        if self._options.static_graph:
            # The first step may have recorded only its first backward pass.
            raise RuntimeError(self._unexpected_message(index))
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"The gradient of {self._parameters[index]} was computed after the "
            "gradients of its forward pass were averaged, and is not averaged. "
            "Call backward() once on the sum of the losses, or run a forward "
            "for each backward(), each but the last under no_sync().",
            stacklevel=2,
        )

    def _warn_of_order(self, first: list[int]) -> None:
        """Warns if the order of gradients differs from that on rank 0.

        Ranks may also use different parameters.
        """
        own = self._arrivals
        pairs = list(zip(own, first))
        if all(one == other for one, other in pairs):
            return
        one, other = next(pair for pair in pairs if pair[0] != pair[1])
        warnings.warn(
            "Gradients were ready in a different order on rank "
            f"{self._group.rank} than on rank 0, first {self._parameters[one]} "
            f"instead of {self._parameters[other]}. The buckets follow the "
            "order of rank 0, so less communication overlaps with backward.",
            stacklevel=2,
        )


def _hook_that_keeps_alive(outputs: _Outputs, gradient: Tensor) -> None:
    """A hook of the outputs, whose graph keeps `outputs` alive."""
    outputs.begin_backward()


def _call_reducer(
    reference: weakref.ref[Reducer], method: Callable, argument: object
) -> None:
    reducer = reference()
    if reducer is not None:
        method(reducer, argument)
