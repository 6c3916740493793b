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

// The plugin's functions for tests, in addition to C_DeviceInterface. They are
// exported, so that Python can call them through ctypes. All of them are
// thread-safe. Requires: InitPlugin has succeeded.

#pragma once

#include <cstddef>
#include <cstdint>

#include "paddle/phi/backends/device_ext.h"

extern "C" {

// An operation that a stream has completed.
struct HostDeviceOperation {
  uint64_t number;  // Counts all operations in completion order, from 0.
  int32_t device;   // The stream's device.
  C_Stream stream;  // The handle from create_stream.
  // The function of C_DeviceInterface that submitted it, or the `kind` passed
  // to HostDeviceLaunch.
  const char* kind;
  // Times of CLOCK_MONOTONIC. Delays and waits are between the two.
  uint64_t begin_ns;
  uint64_t end_ns;
};

// Makes each operation submitted from now on sleep before it runs: operations
// of one stream, or, if `stream` is null, of all streams of the device. A
// stream's own delay is added to its device's delay.
//
// Returns C_ERROR and prints the reason if the device or stream does not exist
// or the delay is more than 10 seconds.
[[gnu::visibility("default")]] C_Status HostDeviceSetDelay(
    int32_t device, C_Stream stream, uint64_t microseconds);

// Submits function(argument) to a stream as an operation. The trace records it
// with `kind`, a string that must never change. The function must not wait for
// streams.
//
// Returns C_ERROR and prints the reason if the function is null or the stream
// does not exist. The function is then not called.
[[gnu::visibility("default")]] C_Status HostDeviceLaunch(
    C_Stream stream,
    const char* kind,
    void (*function)(void* argument),
    void* argument);

// Moves the oldest operations of the trace, at most `capacity`, to `operations`
// and returns their count. The trace holds the last 4096 operations; a gap in
// `number` means that older operations were discarded.
[[gnu::visibility("default")]] size_t HostDeviceTakeTrace(
    HostDeviceOperation* operations, size_t capacity);
}
