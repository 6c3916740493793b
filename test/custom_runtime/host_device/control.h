// Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
//
// Licensed under the Apache License, Version 2.0 (the "License");
// you may not use this file except in compliance with the License.
// You may obtain a copy of the License at
//
//     http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS,
// WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
// See the License for the specific language governing permissions and
// limitations under the License.

// What a test asks of the plugin beyond C_DeviceInterface. The functions are
// exported, so that Python reaches them too, by ctypes. All of them may be
// called by any thread, once InitPlugin has succeeded.

#pragma once

#include <cstddef>
#include <cstdint>

#include "paddle/phi/backends/device_ext.h"

extern "C" {

// An operation that a stream has completed.
struct HostDeviceOperation {
  uint64_t number;  // Of all operations, in the order of completion, from 0.
  int32_t device;   // Whose stream it is.
  C_Stream stream;  // As create_stream has returned it.
  // The function of C_DeviceInterface that submitted it, or what it has been
  // launched as.
  const char* kind;
  // On the clock CLOCK_MONOTONIC. What delays an operation, and what it waits
  // for, is between the two.
  uint64_t begin_ns;
  uint64_t end_ns;
};

// Makes each operation submitted from now on sleep for a while before it acts:
// those of one stream, or, when `stream` is null, those of all streams of the
// device. A stream that has a delay of its own adds it to that of its device.
//
// Returns C_ERROR, having said why, when there is no such device or stream or
// the delay is more than 10 seconds.
[[gnu::visibility("default")]] C_Status HostDeviceSetDelay(
    int32_t device, C_Stream stream, uint64_t microseconds);

// Submits function(argument) to a stream as an operation that the trace is to
// call `kind`, a string that must never change. The function must not wait for
// streams.
//
// Returns C_ERROR, having said why, when there is no function or no such
// stream. The function is then not called.
[[gnu::visibility("default")]] C_Status HostDeviceLaunch(
    C_Stream stream,
    const char* kind,
    void (*function)(void* argument),
    void* argument);

// Moves the oldest operations of the trace, at most `capacity`, to `operations`
// and returns how many. The trace holds the last 4096 operations; where
// `number` leaves a gap, older ones had to make room.
[[gnu::visibility("default")]] size_t HostDeviceTakeTrace(
    HostDeviceOperation* operations, size_t capacity);
}
