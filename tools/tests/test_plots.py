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
"""The benchmark plots: the data they read, and that they are up to date."""

from __future__ import annotations

import pytest

from tools.benchmark.plots import (
    REPORTS,
    SIDES,
    Point,
    batch_rates,
    digest,
    machine,
    round_trips,
)

ROUND_TRIPS = """# A report

Machine: one, 2 cores.

| median, ms | an int | 1 KiB | 64 x 4 KiB |
| --- | ---: | ---: | ---: |
| stock | 0.125 | failed | 9.92 |
|   p99 | 0.217 |  | 14.0 |
| memcpy |  | 1.86 |  |
|   p99 |  | 3.52 |  |
| rounds | 800 | 800 | 160 |

| another table | that is not drawn |
| --- | ---: |
"""
RATES = """| batches/s | workers | ours | stock | ours / stock (goal 1.5) |
|---|---:|---:|---:|---:|
| image | 1 | 372 (314 to 409) | 33 (30 to 35) | 11.17 |
| image | 2 | 1,511 (1,448 to 1,593) | 60 (49 to 69) | 8.56 |
| fields | 1 | 7 (6 to 8) | 2 (1 to 3) | 3.32 |
"""


def report(name):
    return (REPORTS / f"{name}.md").read_text(encoding="utf-8")


def test_medians_go_up_to_the_99th_percentile_and_failures_are_left_out():
    assert round_trips(ROUND_TRIPS) == {
        "stock": {
            "an int": Point(0.125, 0.125, 0.217),
            "64 x 4 KiB": Point(9.92, 9.92, 14.0),
        },
        "memcpy": {"1 KiB": Point(1.86, 1.86, 3.52)},
    }


def test_rates_go_from_quartile_to_quartile_and_ratios_are_left_out():
    assert batch_rates(RATES) == {
        "image": {
            "ours": {"1": Point(372, 314, 409), "2": Point(1511, 1448, 1593)},
            "stock": {"1": Point(33, 30, 35), "2": Point(60, 49, 69)},
        },
        "fields": {
            "ours": {"1": Point(7, 6, 8)},
            "stock": {"1": Point(2, 1, 3)},
        },
    }


def test_the_caption_has_the_machine():
    assert machine(ROUND_TRIPS) == "one, 2 cores"


def test_all_sides_in_the_reports_are_drawn():
    drawn = set(round_trips(report("shared_tensors")))
    for points in batch_rates(report("data_loader")).values():
        drawn |= set(points)
    assert drawn == set(SIDES)


@pytest.mark.parametrize("name", ["shared_tensors", "data_loader"])
def test_plot_is_up_to_date_with_its_report(name):
    plot = (REPORTS / f"{name}.svg").read_text(encoding="utf-8")
    assert digest(report(name)) in plot, (
        "run `python -m tools.benchmark.plots`, which needs matplotlib"
    )


def test_a_changed_value_changes_the_digest():
    assert digest(ROUND_TRIPS) != digest(ROUND_TRIPS.replace("9.92", "9.93"))
