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

#include "paddle/fluid/pybind/thread_value.h"

#include <structmember.h>

#include <cstddef>

// Each operator looks up the current device, so this file uses Python's C API
// directly: a pybind11 call takes longer than the lookup.
//
// A thread's own value is an item of the dictionary that Python keeps per
// thread; the key is the ThreadValue. So Python drops the value with the thread
// state, on some thread: when the thread ends, after a fork and at exit.
//
// All functions need the GIL.

namespace paddle::pybind {
namespace {

struct ThreadValue {
  PyObject_HEAD
      // The sentinel for "not set". Null before Init.
      PyObject* unset;
  // The process's value. Null before Init, and after it was deleted.
  PyObject* process;
  // Whether a thread has ever set its own value. If not, Get skips the lookup.
  char any_thread_has_set;
};

ThreadValue* Cast(PyObject* self) {
  return reinterpret_cast<ThreadValue*>(self);
}

PyObject* NewReference(PyObject* object) {
  Py_INCREF(object);
  return object;
}

// Returns whether an attribute has a value. If not, sets an AttributeError.
bool HasValue(PyObject* attribute, const char* name) {
  if (attribute != nullptr) return true;
  PyErr_Format(PyExc_AttributeError,
               "The ThreadValue has no '%s': it was deleted, or __init__ has "
               "not been called. Please make a new ThreadValue.",
               name);
  return false;
}

// Returns the calling thread's own value or `unset`, as a borrowed reference.
// On an error, sets an exception and returns null.
PyObject* OwnValue(PyObject* self) {
  if (!HasValue(Cast(self)->unset, "unset")) return nullptr;
  PyObject* values = PyThreadState_GetDict();
  if (values == nullptr) return Cast(self)->unset;
  PyObject* own = PyDict_GetItemWithError(values, self);
  if (own == nullptr && !PyErr_Occurred()) return Cast(self)->unset;
  return own;
}

PyObject* Get(PyObject* self, PyObject*) {
  if (Cast(self)->any_thread_has_set) {
    PyObject* own = OwnValue(self);
    if (own == nullptr) return nullptr;
    if (own != Cast(self)->unset) return NewReference(own);
  }
  PyObject* process = Cast(self)->process;
  return HasValue(process, "process") ? NewReference(process) : nullptr;
}

PyObject* GetLocal(PyObject* self, PyObject*) {
  PyObject* own = OwnValue(self);
  return own == nullptr ? nullptr : NewReference(own);
}

PyObject* SetLocal(PyObject* self, PyObject* value) {
  if (!HasValue(Cast(self)->unset, "unset")) return nullptr;
  PyObject* values = PyThreadState_GetDict();
  if (values == nullptr) return PyErr_NoMemory();
  if (value != Cast(self)->unset) {
    if (PyDict_SetItem(values, self, value) != 0) return nullptr;
    Cast(self)->any_thread_has_set = 1;
  } else if (PyDict_DelItem(values, self) != 0) {
    if (!PyErr_ExceptionMatches(PyExc_KeyError)) return nullptr;
    PyErr_Clear();
  }
  Py_RETURN_NONE;
}

int Init(PyObject* self, PyObject* args, PyObject*) {
  PyObject* process = nullptr;
  PyObject* unset = nullptr;
  if (!PyArg_ParseTuple(args, "OO:ThreadValue", &process, &unset)) return -1;
  Py_XSETREF(Cast(self)->process, NewReference(process));
  Py_XSETREF(Cast(self)->unset, NewReference(unset));
  return 0;
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(Cast(self)->process);
  Py_VISIT(Cast(self)->unset);
  return 0;
}

int Clear(PyObject* self) {
  Py_CLEAR(Cast(self)->process);
  Py_CLEAR(Cast(self)->unset);
  return 0;
}

void Dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Clear(self);
  PyTypeObject* type = Py_TYPE(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"get",
     Get,
     METH_NOARGS,
     "Returns the calling thread's own value, else the process's."},
    {"get_local",
     GetLocal,
     METH_NOARGS,
     "Returns the calling thread's own value, or UNSET."},
    {"set_local",
     SetLocal,
     METH_O,
     "Sets the calling thread's own value; UNSET removes it."},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {
    {"process",
     T_OBJECT_EX,
     offsetof(ThreadValue, process),
     0,
     "The process's value."},
    {"any_thread_has_set",
     T_BOOL,
     offsetof(ThreadValue, any_thread_has_set),
     0,
     "Whether a thread has ever set its own value. Once True, it stays True."},
    {nullptr, 0, 0, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_init, reinterpret_cast<void*>(Init)},
                       {Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(Clear)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                       {Py_tp_methods, methods},
                       {Py_tp_members, members},
                       {0, nullptr}};

PyType_Spec spec = {
    "paddle.base.libpaddle._thread_value.ThreadValue",
    sizeof(ThreadValue),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    slots};

}  // namespace

bool AddThreadValue(PyObject* module) {
  PyObject* type = PyType_FromSpec(&spec);
  const bool is_added =
      type != nullptr &&
      PyObject_SetAttrString(module, "ThreadValue", type) == 0;
  Py_XDECREF(type);
  return is_added;
}

}  // namespace paddle::pybind
