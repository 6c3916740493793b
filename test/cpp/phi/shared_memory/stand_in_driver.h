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

#pragma once

// What a test can do to the stand-in for the driver, in its own process. A
// function of the driver is named without its version: cuMemAlloc.
extern "C" {

// Has the n-th call of the function, counted from 1 and from now on, return the
// code and do nothing. It replaces an earlier wish for the same function. The
// environment variable STAND_IN_FAIL=function:n:code wishes for one at load.
void StandInFail(const char* function, int nth, int code);

// How often this process has called the function; a child of fork starts at 0.
int StandInCalls(const char* function);

// From now on, or no more, a call of the function waits before it does
// anything.
void StandInHold(const char* function, bool held);

// From now on streams wait this long before they set or copy memory. The
// environment variable STAND_IN_DELAY_US says it at load.
void StandInSetDelay(int microseconds);

}  // extern "C"
