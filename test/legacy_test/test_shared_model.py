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
"""Models shared between processes: layers, gradients, optimizers."""

from __future__ import annotations

import copy
import copyreg
import gc
import threading
import unittest
from collections import OrderedDict
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable, NamedTuple

import numpy as np
from concurrent_base import WAIT_S, in_thread
from shared_tensor_base import (  # noqa: F401
    SharingTestCase,
    describe_kept,
    description,
    echo,
    keep,
    over_every_way_to_send,
    setUpModule,
    tearDownModule,
)
from shared_tensor_leaks import no_leak
from test_share_memory import (
    Tied,
    initializers,
    loss_of,
    matrix,
    step,
    values_of,
)

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle import nn
from paddle.incubate.multiprocessing.tensor_reductions import by_value


def layers() -> dict[str, tuple[nn.Layer, paddle.Tensor]]:
    """Returns layers, each with an input."""
    image = paddle.rand([2, 1, 4, 4])
    sequence = paddle.rand([2, 3, 4])
    return {
        "linear": (nn.Linear(3, 2), matrix()),
        "convolution and batch norm": (
            nn.Sequential(nn.Conv2D(1, 2, 3), nn.BatchNorm2D(2)),
            image,
        ),
        "LSTM": (nn.LSTM(4, 3, num_layers=2), sequence),
        "transformer": (
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), 2
            ),
            sequence,
        ),
        "embedding": (nn.Embedding(5, 3), paddle.to_tensor([1, 4])),
        "a user's layer": (Tied(2.0), matrix()),
    }


def output_of(layer: nn.Layer, x: paddle.Tensor) -> np.ndarray:
    result = layer(x)
    return (result[0] if isinstance(result, tuple) else result).numpy()


def optimizers(parameters: list[paddle.Tensor]) -> dict[str, Any]:
    schedule = paddle.optimizer.lr.StepDecay(0.1, 2)
    return {
        "Adam": paddle.optimizer.Adam(0.1, parameters=parameters),
        "AdamW": paddle.optimizer.AdamW(0.1, parameters=parameters),
        "Momentum": paddle.optimizer.Momentum(0.1, parameters=parameters),
        "a schedule and clipping": paddle.optimizer.Adam(
            schedule,
            parameters=parameters,
            grad_clip=nn.ClipGradByGlobalNorm(1.0),
        ),
        "groups": paddle.optimizer.AdamW(
            0.1, parameters=[{"params": parameters, "weight_decay": 0.5}]
        ),
        "a user's class": UsersOptimizer(0.1, parameters=parameters),
    }


class UsersOptimizer(paddle.optimizer.Adam):
    pass


class RegisteredOptimizer(paddle.optimizer.SGD):
    pass


class OddOptimizer(paddle.optimizer.SGD):
    def __reduce__(self):
        return str, ("as its class has it",)


class SmallOptimizer(paddle.optimizer.SGD):
    def __init__(self, step):
        self.step_size = step  # and no other state of an optimizer


class RestoredOptimizer(paddle.optimizer.SGD):
    def __setstate__(self, state):
        self.__dict__.update(state, restored=True)


class Pair(NamedTuple):
    first: paddle.Tensor
    second: paddle.Tensor


@dataclass
class Sample:
    image: paddle.Tensor
    label: int


class UsersTensor(paddle.Tensor):
    def total(self) -> float:
        return self.sum().item() * self.scale


class UsersParameter(paddle.base.framework.EagerParamBase):
    pass


class OddTensor(paddle.Tensor):
    def __reduce_ex__(self, protocol):
        return str, ("as its class has it",)


# Functions for `Peer.call`.


def is_restored(kept, optimizer):
    return optimizer.restored


def output_in_peer(kept, layer, x):
    kept["layer"] = layer
    return output_of(layer, x)


def tensors_of(layer: nn.Layer) -> list[paddle.Tensor]:
    """Returns the tensors of a layer; a buffer of the LSTM has no values."""
    tensors = [*layer.parameters(), *layer.buffers()]
    return [tensor for tensor in tensors if tensor._is_initialized()]


def add_one_to_all(kept, layer):
    with paddle.no_grad():
        for tensor in tensors_of(layer):
            tensor.add_(paddle.ones(tensor.shape, tensor.dtype))


def tied_in_peer(kept, layer):
    return layer.first.weight is layer.second.weight


def attributes_in_peer(kept, layer):
    return layer.settings, layer._non_persistable_buffer_names_set


def backward(kept, layer):
    loss_of(layer).backward()


def has_grad(kept, tensor):
    return tensor.grad is not None


def grad_after_backward(kept, layer):
    """Returns the gradient and whether it is shared with other processes."""
    backward(kept, layer)
    return layer.weight.grad.tolist(), layer.weight.grad.is_shared()


def backward_of_embedding(layer):
    layer(paddle.to_tensor([3])).sum().backward()


def fill_rows(kept, grad, value):
    """Fills selected rows, after which it returns what was received."""
    rows, before = grad.get_selected_rows(), grad.tolist()
    paddle.Tensor(rows.get_tensor()).fill_(value)
    return grad.is_selected_rows(), rows.rows(), rows.height(), before


def parameters_are_the_optimizers(kept, layer, optimizer):
    theirs = optimizer._param_groups
    theirs = theirs[0]["params"] if isinstance(theirs[0], dict) else theirs
    return all(a is b for a, b in zip(layer.parameters(), theirs))


def step_in_peer(kept, layer, optimizer):
    step(layer, optimizer)
    return list(optimizer.state_dict())


def load_and_step(kept, layer, state):
    optimizer = paddle.optimizer.Adam(0.1, parameters=layer.parameters())
    optimizer.set_state_dict(state)
    step(layer, optimizer)


def rates_in_peer(kept, schedule):
    rates = []
    for _ in range(3):
        rates.append(schedule.get_lr())
        schedule.step()
    return rates


def fill_users(kept, tensor, value):
    tensor.fill_(value)
    return type(tensor).__name__, tensor.total()


def users_parameter(kept, parameter):
    return (
        type(parameter).__name__,
        parameter.tolist(),
        parameter.stop_gradient,
        parameter.persistable,
        parameter.optimize_attr,
    )


def are_one(kept, first, second):
    return first is second


def fill_all(kept, container, value):
    for tensor in tensors_in(container):
        tensor.detach().fill_(value)
    return type(container).__name__


def tensors_in(container: Any) -> list[paddle.Tensor]:
    if isinstance(container, paddle.Tensor):
        return [container]
    if isinstance(container, Sample):
        return [container.image]
    if isinstance(container, dict):
        container = list(container.values())
    if isinstance(container, (list, tuple)):
        return [tensor for each in container for tensor in tensors_in(each)]
    return []


def containers() -> dict[str, Any]:
    return {
        "dict": {"x": matrix(), "n": 3},
        "ordered dict": OrderedDict(b=matrix(), a=matrix()),
        "named tuple": Pair(matrix(), matrix()),
        "data class": Sample(matrix(), 7),
        "nested": [{"deep": (matrix(), [Pair(matrix(), matrix())])}, matrix()],
        "state dict": nn.Sequential(
            nn.Linear(2, 2), nn.BatchNorm1D(2)
        ).state_dict(),
    }


@over_every_way_to_send()
class TestModels(SharingTestCase):
    def test_layer_arrives_and_computes_the_same(self):
        for name, (layer, x) in layers().items():
            with self.subTest(name):
                layer.eval()
                np.testing.assert_array_equal(
                    self.peer.call(output_in_peer, layer, x),
                    output_of(layer, x),
                )

    def test_sender_sees_what_the_receiver_writes_into_a_layer(self):
        for name, (layer, _) in layers().items():
            with self.subTest(name):
                tensors = tensors_of(layer)
                before = [tensor.numpy().copy() for tensor in tensors]
                layer.eval()
                self.peer.call(add_one_to_all, layer)
                for tensor, value in zip(tensors, before):
                    np.testing.assert_array_equal(tensor.numpy(), value + 1)

    def test_weight_of_two_layers_arrives_as_one(self):
        layer = Tied(1.0)
        self.assertTrue(self.peer.call(tied_in_peer, layer))
        self.assertTrue(self.peer.call(tied_in_peer, layer.share_memory()))

    def test_attributes_of_a_users_layer_arrive(self):
        self.assertEqual(
            self.peer.call(attributes_in_peer, Tied(0.5)),
            ({"scale": 0.5, "sizes": [3, 3]}, {"seen"}),
        )

    def test_gradient_is_not_sent_with_its_parameter(self):
        layer = nn.Linear(3, 2)
        loss_of(layer).backward()
        self.assertFalse(self.peer.call(has_grad, layer.weight))

    def test_gradient_is_not_sent_with_a_plain_tensor(self):
        tensor = matrix()
        tensor.stop_gradient = False
        (tensor * 3).sum().backward()
        self.assertFalse(self.peer.call(has_grad, tensor))

    def test_sparse_gradient_is_not_sent_with_its_tensor(self):
        sparse = matrix().to_sparse_coo(2)
        sparse.stop_gradient = False
        paddle.sparse.nn.functional.relu(sparse).to_dense().sum().backward()
        self.assertTrue(sparse.grad.is_sparse())
        self.assertFalse(self.peer.call(has_grad, sparse))

    def test_each_trainer_of_one_parameter_has_its_own_gradient(self):
        layer = nn.Linear(3, 2)
        loss_of(layer).backward()
        once = layer.weight.grad.tolist()
        self.assertEqual(
            self.peer.call(grad_after_backward, layer), (once, False)
        )
        self.assertEqual(layer.weight.grad.tolist(), once)

    def test_gradient_that_is_sent_by_itself_is_shared(self):
        layer = nn.Linear(3, 2)
        loss_of(layer).backward()
        self.peer.call(fill_all, layer.weight.grad, 4)
        self.assertEqual(layer.weight.grad.tolist(), [[4.0] * 2] * 3)

    def test_gradient_of_selected_rows_that_is_sent_by_itself_is_shared(self):
        layer = nn.Embedding(5, 2, sparse=True)
        backward_of_embedding(layer)
        self.assertEqual(
            self.peer.call(fill_rows, layer.weight.grad, 4),
            (True, [3], 5, [[1.0, 1.0]]),
        )
        self.assertEqual(layer.weight.grad.tolist(), [[4.0, 4.0]])

    def test_optimizer_continues_with_its_state(self):
        for name in optimizers(nn.Linear(3, 2).parameters()):
            with self.subTest(name):
                layer = nn.Linear(3, 2)
                optimizer = optimizers(layer.parameters())[name]
                step(layer, optimizer)
                expected = nn.Linear(3, 2)
                expected.set_state_dict(copy.deepcopy(layer.state_dict()))
                state = copy.deepcopy(optimizer.state_dict())
                renamed = optimizers(expected.parameters())[name]
                for mine, theirs in zip(
                    layer.parameters(), expected.parameters()
                ):
                    theirs.name = mine.name
                renamed.set_state_dict(state)
                with paddle.utils.unique_name.guard():
                    step(expected, renamed)

                keys = self.peer.call(step_in_peer, layer, optimizer)
                self.assertEqual(keys, list(optimizer.state_dict()))
                for mine, theirs in zip(
                    layer.parameters(), expected.parameters()
                ):
                    np.testing.assert_array_equal(mine, theirs)

    def test_optimizer_arrives_with_the_parameters_of_its_layer(self):
        layer = nn.Linear(3, 2)
        for name, optimizer in optimizers(layer.parameters()).items():
            with self.subTest(name):
                self.assertTrue(
                    self.peer.call(
                        parameters_are_the_optimizers, layer, optimizer
                    )
                )

    def test_no_optimizer_gets_two_parameters_with_one_name(self):
        # They would have one state. The names are those of the sender.
        own = nn.Linear(3, 2)
        sent = own, paddle.optimizer.SGD(parameters=own.parameters())
        received, _ = ForkingPickler.loads(ForkingPickler.dumps(sent))
        both = [own.weight, received.weight]
        for parameters in (both, [{"params": [each]} for each in both]):
            with self.assertRaisesRegex(ValueError, own.weight.name):
                paddle.optimizer.Momentum(0.1, parameters=parameters)
        paddle.optimizer.Momentum(0.1, parameters=received.parameters())
        own.weight.name = "another"
        paddle.optimizer.Momentum(0.1, parameters=both)

    def test_optimizer_with_its_own_pickling_keeps_it(self):
        small = ForkingPickler.loads(ForkingPickler.dumps(SmallOptimizer(0.5)))
        self.assertEqual(vars(small), {"step_size": 0.5})
        odd = OddOptimizer(0.1, parameters=nn.Linear(3, 2).parameters())
        self.assertEqual(self.peer.call(echo, odd), "as its class has it")

    def test_optimizer_with_a_registered_reducer_keeps_it(self):
        copyreg.pickle(RegisteredOptimizer, lambda _: (str, ("by copyreg",)))
        self.addCleanup(copyreg.dispatch_table.pop, RegisteredOptimizer)
        optimizer = RegisteredOptimizer(
            0.1, parameters=nn.Linear(3, 2).parameters()
        )
        received = ForkingPickler.loads(ForkingPickler.dumps(optimizer))
        self.assertEqual(received, "by copyreg")

    def test_optimizer_is_restored_by_its_own_setstate(self):
        layer = nn.Linear(3, 2)
        optimizer = RestoredOptimizer(0.1, parameters=layer.parameters())
        self.assertTrue(self.peer.call(is_restored, optimizer))

    def test_optimizer_whose_attribute_contains_itself_arrives(self):
        weight = nn.Linear(3, 2).weight
        optimizer = paddle.optimizer.SGD(0.1, parameters=[weight])
        optimizer.users = [weight]
        optimizer.users.append(optimizer.users)
        received = ForkingPickler.loads(ForkingPickler.dumps(optimizer))
        self.assertEqual(received.users[0].name, weight.name)
        self.assertIs(received.users[1], received.users)

    def test_schedule_of_learning_rates_arrives(self):
        schedule = paddle.optimizer.lr.StepDecay(0.5, 1, 0.5)
        self.assertEqual(
            self.peer.call(rates_in_peer, schedule), [0.5, 0.25, 0.125]
        )

    def test_containers_arrive_with_the_same_memory(self):
        for name, container in containers().items():
            with self.subTest(name):
                self.assertEqual(
                    self.peer.call(fill_all, container, 5),
                    type(container).__name__,
                )
                for tensor in tensors_in(container):
                    self.assertTrue((tensor == 5).all().item())

    def test_tensor_that_is_twice_in_a_message_arrives_as_one(self):
        tensor = matrix()
        self.assertTrue(self.peer.call(are_one, tensor, tensor))
        self.assertFalse(self.peer.call(are_one, tensor, tensor[:]))

    def test_tensor_of_a_users_class_arrives_as_one(self):
        tensor = UsersTensor(matrix())
        tensor.scale = 2
        self.assertEqual(
            self.peer.call(fill_users, tensor, 5), ("UsersTensor", 60)
        )
        self.assertEqual(tensor.total(), 60)

    def test_parameter_of_a_users_class_arrives_as_one(self):
        parameter = UsersParameter(matrix())
        parameter.optimize_attr = {"learning_rate": 0.5}
        self.assertEqual(
            self.peer.call(users_parameter, parameter),
            users_parameter(None, parameter),
        )

    def test_tensor_with_its_own_pickling_keeps_it(self):
        self.assertEqual(
            self.peer.call(echo, OddTensor(matrix())), "as its class has it"
        )

    def test_parameter_and_its_view_arrive_over_one_memory(self):
        parameter = paddle.create_parameter([2, 3], "float32")
        view = parameter.detach()[1]
        parameter_there, view_there = self.peer.call(echo, [parameter, view])
        self.assertEqual(parameter_there.data_ptr(), parameter.data_ptr())
        self.assertEqual(view_there.data_ptr(), view.data_ptr())


@over_every_way_to_send(methods=("forkserver",))
class TestInitializers(SharingTestCase):
    def test_other_processes_see_the_values_of_an_initializer(self):
        no_kernel = {"Orthogonal", "TruncatedNormal"}
        for dtype in ("float32", "float16"):
            for name, initializer in initializers().items():
                if dtype == "float16" and name in no_kernel:
                    continue
                with self.subTest(name, dtype=dtype):
                    weight = paddle.create_parameter([2, 2, 3, 3], dtype)
                    view = weight.detach()[1]
                    self.peer.call(keep, "weight", weight)
                    weight.detach().fill_(7)
                    initializer(weight)
                    self.assertFalse((weight == 7).all().item())
                    self.assertTrue(weight.is_shared())
                    self.assertEqual(
                        self.peer.call(describe_kept, "weight"),
                        description(weight),
                    )
                    self.assertEqual(view.tolist(), weight[1].tolist())

    def test_layer_that_is_initialized_again_stays_shared(self):
        layer = nn.Linear(3, 2)
        self.peer.call(keep, "weight", layer.weight)
        normal = nn.initializer.Normal()
        layer.apply(lambda each: normal(each.weight))
        self.assertEqual(
            self.peer.call(describe_kept, "weight"), description(layer.weight)
        )


def subtract_at_once(x):
    x -= 1
    return x


def multiply_at_once(x):
    x *= 2
    return x


def add_at_once(x):
    x += 5
    return x


def assign_data(x):
    x.data = five()
    return x


def assign_all(x):
    x[:] = 5
    return x


def add_to_a_row(x):
    x[0] += 5
    return x


def five() -> paddle.Tensor:
    return paddle.full([2, 3], 5.0)


def set_value(x):
    x.set_value(five())
    return x


# Changes to a tensor, and whether they are in place: whether other processes
# see them and the tensor stays shared.
CHANGES = (
    (add_at_once, False),
    (subtract_at_once, False),
    (multiply_at_once, False),
    (assign_data, False),
    (lambda x: x.cast_("float64"), False),
    (lambda x: x.add_(five()), True),
    (lambda x: x.fill_(5), True),
    (assign_all, True),
    (add_to_a_row, True),
    (lambda x: x.copy_(five(), True), True),
    (set_value, True),
    (lambda x: paddle.assign(five(), x), True),
)


class TestChangesOfASharedTensor(unittest.TestCase):
    def test_only_changes_in_place_are_seen_and_keep_the_sharing(self):
        for number, (change, in_place) in enumerate(CHANGES):
            with self.subTest(change, number=number):
                mine = paddle.ones([2, 3]).cpu().share_memory_()
                theirs = ForkingPickler.loads(ForkingPickler.dumps(mine))
                before = theirs.tolist()
                self.assertEqual(change(theirs).is_shared(), in_place)
                self.assertEqual(mine.tolist() != before, in_place)

    def test_cast_to_a_smaller_type_overwrites_the_shared_memory(self):
        # The guide warns of it. Paddle reuses the memory for the new type.
        mine = paddle.ones([2]).cpu().share_memory_()
        theirs = ForkingPickler.loads(ForkingPickler.dumps(mine))
        theirs.cast_("float16")
        self.assertTrue(theirs.is_shared())
        halves = mine.numpy().view("float16").tolist()
        self.assertEqual(halves[:2], [1.0, 1.0])

    def test_augmented_assignment_only_rebinds_the_name(self):
        # Paddle has no __iadd__, so Python creates a new tensor.
        x = paddle.ones([2, 3])
        y = x
        x += 5
        self.assertIsNot(x, y)
        self.assertEqual(y.tolist(), [[1.0] * 3] * 2)

    def test_layer_of_another_data_type_is_not_shared(self):
        layer = nn.Linear(3, 2).share_memory()
        layer.to(dtype="float64")
        self.assertFalse(layer.weight.is_shared())

    def test_state_that_is_loaded_is_seen(self):
        paddle.set_device("cpu")
        layer = nn.Linear(3, 2).share_memory()
        theirs = ForkingPickler.loads(ForkingPickler.dumps(layer))
        ones = {n: paddle.ones_like(t) for n, t in layer.state_dict().items()}
        theirs.set_state_dict(ones)
        self.assertEqual(layer.weight.tolist(), [[1.0] * 2] * 3)


class TestArguments(unittest.TestCase):
    def run_in_new_program(self, target: Callable, *args: Any) -> None:
        process = sharing.get_context("forkserver").Process(
            target=target, args=args
        )
        process.start()
        process.join(WAIT_S)
        self.assertEqual(process.exitcode, 0)
        process.close()

    def test_layer_and_optimizer_are_arguments_of_a_process(self):
        layer = nn.Linear(3, 2)
        optimizer = paddle.optimizer.Adam(0.1, parameters=layer.parameters())
        step(layer, optimizer)
        before = values_of(layer)
        self.run_in_new_program(step, layer, optimizer)
        self.assertNotEqual(values_of(layer), before)

    def test_state_of_an_optimizer_is_an_argument_of_a_process(self):
        layer = nn.Linear(3, 2)
        optimizer = paddle.optimizer.Adam(0.1, parameters=layer.parameters())
        step(layer, optimizer)
        state = optimizer.state_dict()
        self.assertEqual(len(state), 8)
        self.run_in_new_program(fill_all, None, state, 5)
        for name, tensor in state.items():
            self.assertTrue((tensor == 5).all().item(), name)


class TestSending(SharingTestCase):
    def setUp(self):
        super().setUp()
        leak = no_leak()
        leak.__enter__()
        self.addCleanup(leak.__exit__, None, None, None)
        self.addCleanup(gc.collect)

    def test_tensor_that_was_sent_is_shared(self):
        tensor = matrix()
        received = ForkingPickler.loads(ForkingPickler.dumps(tensor))
        self.assertTrue(tensor.is_shared() and received.is_shared())

    def test_parameter_without_values_is_refused(self):
        first = nn.Linear(3, 3)
        with paddle.LazyGuard():
            layer = nn.Sequential(first, nn.Linear(3, 3))
        message = f"{layer[1].weight.name}.*initialize"
        with self.assertRaisesRegex(RuntimeError, message):
            ForkingPickler.dumps(layer)
        # Expire the tensors that were pickled before the error.
        sharing.collect_shared_memory(message_timeout=0)

    def test_buffer_without_values_arrives_without(self):
        buffer = nn.LSTM(2, 3)._dropout_state
        self.assertFalse(buffer._is_initialized())
        received = ForkingPickler.loads(ForkingPickler.dumps(buffer))
        self.assertFalse(received._is_initialized())
        self.assertEqual(received.dtype, buffer.dtype)


def doubled(x):
    return x + x


class TensorWithOwnState(paddle.Tensor):
    def __getstate__(self):
        return self.tag

    def __setstate__(self, state):
        self.tag = f"received {state}"


class TestOwnState(unittest.TestCase):
    def test_state_of_a_class_that_pickles_its_own_state(self):
        tensor = TensorWithOwnState(paddle.ones([2]))
        tensor.tag, tensor.lock = "tag", threading.Lock()
        received = ForkingPickler.loads(ForkingPickler.dumps(tensor))
        self.assertEqual(received.tag, "received tag")
        self.assertEqual(received.tolist(), [1.0, 1.0])


class TestRefusals(unittest.TestCase):
    def test_hook_that_cannot_be_pickled_is_named(self):
        layer = nn.Linear(2, 2)
        layer.register_forward_post_hook(lambda *_: None)
        with self.assertRaisesRegex(Exception, "lambda"):
            ForkingPickler.dumps(layer)

    def test_layer_compiled_by_to_static_is_refused_with_a_remedy(self):
        layer = paddle.jit.to_static(nn.Linear(2, 2))
        with self.assertRaisesRegex(TypeError, r"to_static.*Linear.*rollback"):
            ForkingPickler.dumps(layer)
        layer.forward.rollback()
        ForkingPickler.loads(ForkingPickler.dumps(layer))

    def test_compiled_function_is_refused_with_a_remedy(self):
        function = paddle.jit.to_static(doubled)
        with self.assertRaisesRegex(TypeError, "doubled.*dygraph_function"):
            ForkingPickler.dumps(function)
        ForkingPickler.loads(ForkingPickler.dumps(function.dygraph_function))

    def test_weight_that_a_hook_computes_is_refused(self):
        layer = nn.utils.weight_norm(nn.Linear(2, 2))
        with self.assertRaisesRegex(RuntimeError, "must be a leaf"):
            ForkingPickler.dumps(layer)


def passed_on_in_static_mode(value):
    paddle.enable_static()
    return ForkingPickler.loads(ForkingPickler.dumps(value))


class TestStaticMode(unittest.TestCase):
    def test_thread_in_static_mode_sends_and_receives_all_kinds(self):
        paddle.set_device("cpu")
        layer = nn.Linear(2, 2)
        layer(paddle.ones([1, 2])).sum().backward()
        dense = paddle.to_tensor([[0.0, 1.0], [2.0, 0.0]])
        for value in (
            dense,
            layer.weight,
            dense.to_sparse_coo(2),
            dense.to_sparse_csr(),
            by_value(layer.weight),
            by_value(dense.to_sparse_coo(2)),
        ):
            with self.subTest(type(value)):
                arrived = in_thread(passed_on_in_static_mode, value)
                if not isinstance(value, paddle.Tensor):
                    value = ForkingPickler.loads(ForkingPickler.dumps(value))
                self.assertIs(type(arrived), type(value))
                if not arrived.is_dense():
                    arrived, value = arrived.to_dense(), value.to_dense()
                np.testing.assert_array_equal(arrived.numpy(), value.numpy())


if __name__ == "__main__":
    unittest.main()
