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

// Controls the stand-in driver from a test, in its own process. Driver
// functions are named without their version: cuMemAlloc.
extern "C" {

// Makes the n-th call of the function, counted from 1 and from now on, return
// the code and do nothing. Replaces an earlier setting for the same function.
// The environment variable STAND_IN_FAIL=function:n:code sets this at load.
void StandInFail(const char* function, int nth, int code);

// Returns how often this process has called the function. A forked child starts
// at 0.
int StandInCalls(const char* function);

// While `held`, calls of the function block before they do anything.
void StandInHold(const char* function, bool held);

}  // extern "C"
