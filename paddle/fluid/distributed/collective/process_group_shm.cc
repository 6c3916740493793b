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

#include "paddle/fluid/distributed/collective/process_group_shm.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/core/distributed/shared_memory/collective_error.h"

namespace paddle {
namespace distributed {
namespace {

using phi::distributed::CollectiveError;
using phi::distributed::Collectives;
using phi::distributed::ElementType;
using phi::distributed::GroupMemory;
using phi::distributed::OperationQueue;
using phi::distributed::Reduction;
using phi::distributed::Store;

// Returns an operation's name in Python.
const char* NameOf(CommType type) {
  switch (type) {
    case CommType::ALLREDUCE:
      return "all_reduce";
    case CommType::REDUCE:
      return "reduce";
    case CommType::REDUCE_SCATTER:
      return "reduce_scatter";
    case CommType::BROADCAST:
      return "broadcast";
    case CommType::ALLGATHER:
      return "all_gather";
    case CommType::GATHER:
      return "gather";
    case CommType::SCATTER:
      return "scatter";
    case CommType::ALLTOALL:
      return "alltoall";
    case CommType::SEND:
      return "send";
    case CommType::RECV:
      return "recv";
    default:
      return "barrier";
  }
}

ElementType ElementTypeOf(CommType operation, phi::DataType type) {
  switch (type) {
    case phi::DataType::BOOL:
      return ElementType::kBool;
    case phi::DataType::INT8:
      return ElementType::kInt8;
    case phi::DataType::UINT8:
      return ElementType::kUInt8;
    case phi::DataType::INT16:
      return ElementType::kInt16;
    case phi::DataType::INT32:
      return ElementType::kInt32;
    case phi::DataType::INT64:
      return ElementType::kInt64;
    case phi::DataType::FLOAT16:
      return ElementType::kFloat16;
    case phi::DataType::BFLOAT16:
      return ElementType::kBFloat16;
    case phi::DataType::FLOAT32:
      return ElementType::kFloat32;
    case phi::DataType::FLOAT64:
      return ElementType::kFloat64;
    case phi::DataType::COMPLEX64:
      return ElementType::kComplex64;
    case phi::DataType::COMPLEX128:
      return ElementType::kComplex128;
    default:
      PADDLE_THROW(common::errors::Unimplemented(
          "The backend shm cannot %s elements of type %s. Cast the tensor to "
          "float32, for example.",
          NameOf(operation),
          type));
  }
}

Reduction ReductionOf(ReduceOp reduction) {
  switch (reduction) {
    case ReduceOp::SUM:
      return Reduction::kSum;
    case ReduceOp::MAX:
      return Reduction::kMaximum;
    case ReduceOp::MIN:
      return Reduction::kMinimum;
    case ReduceOp::PRODUCT:
      return Reduction::kProduct;
    case ReduceOp::AVG:
      return Reduction::kAverage;
  }
  PADDLE_THROW(common::errors::InvalidArgument(
      "Unknown reduction number %d. Pass a value of paddle.distributed."
      "ReduceOp.",
      static_cast<int>(reduction)));
}

void EnforceUsable(CommType operation, const phi::DenseTensor& tensor) {
  PADDLE_ENFORCE_EQ(
      tensor.numel() == 0 || tensor.initialized(),
      true,
      common::errors::InvalidArgument(
          "%s got a tensor of shape [%s] that has no memory yet. Assign it a "
          "value, or pass paddle.empty(shape).",
          NameOf(operation),
          tensor.dims()));
  PADDLE_ENFORCE_EQ(
      !tensor.initialized() || phi::is_cpu_place(tensor.place()) ||
          phi::is_cuda_pinned_place(tensor.place()),
      true,
      common::errors::InvalidArgument(
          "The backend shm cannot %s a tensor on %s: it works on tensors in "
          "host memory. Pass tensor.cpu(), or use a group with another "
          "backend.",
          NameOf(operation),
          tensor.place()));
  PADDLE_ENFORCE_EQ(
      tensor.meta().is_contiguous(),
      true,
      common::errors::InvalidArgument(
          "The backend shm cannot %s a tensor of shape [%s] with strides [%s], "
          "which is not contiguous. Pass tensor.contiguous().",
          NameOf(operation),
          tensor.dims(),
          tensor.strides()));
}

void EnforceSameType(CommType operation,
                     const phi::DenseTensor& out,
                     const phi::DenseTensor& in) {
  PADDLE_ENFORCE_EQ(
      out.dtype(),
      in.dtype(),
      common::errors::InvalidArgument("%s got an input of type %s and an "
                                      "output of type %s. Pass tensors of "
                                      "the same type.",
                                      NameOf(operation),
                                      in.dtype(),
                                      out.dtype()));
}

// Throws unless an input and its output are usable and have the same type.
void EnforceUsable(CommType operation,
                   const phi::DenseTensor& out,
                   const phi::DenseTensor& in) {
  EnforceUsable(operation, in);
  EnforceUsable(operation, out);
  EnforceSameType(operation, out, in);
}

// Throws unless the tensor called `name` has the expected number of elements.
void EnforceElements(CommType operation,
                     const char* name,
                     int64_t actual,
                     int64_t expected) {
  PADDLE_ENFORCE_EQ(
      actual,
      expected,
      common::errors::InvalidArgument(
          "%s got an %s of %d elements, but it needs %d. Pass a tensor of that "
          "size.",
          NameOf(operation),
          name,
          actual,
          expected));
}

// Returns the name of a tensor's type, which the ranks compare.
std::string TypeOf(const phi::DenseTensor& tensor) {
  return phi::DataTypeToString(tensor.dtype());
}

uint64_t BytesOf(const phi::DenseTensor& tensor) {
  return tensor.numel() * phi::SizeOf(tensor.dtype());
}

// A tensor without elements may have no memory.
char* DataOf(const phi::DenseTensor& tensor) {
  if (tensor.numel() == 0) return nullptr;
  return static_cast<char*>(const_cast<void*>(tensor.data()));  // NOLINT
}

bool Overlap(const phi::DenseTensor& a, const phi::DenseTensor& b) {
  return DataOf(a) < DataOf(b) + BytesOf(b) &&
         DataOf(b) < DataOf(a) + BytesOf(a);
}

// Throws if the input and the output overlap, unless they are the same memory
// or the smaller one is this rank's part of the larger one: other ranks read
// this rank's input, which must not change meanwhile.
void EnforceNoOverlap(CommType operation,
                      const phi::DenseTensor& out,
                      const phi::DenseTensor& in,
                      int rank) {
  const bool out_is_larger = out.numel() > in.numel();
  const phi::DenseTensor& whole = out_is_larger ? out : in;
  const phi::DenseTensor& part = out_is_larger ? in : out;
  const uint64_t offset = out.numel() == in.numel() ? 0 : rank * BytesOf(part);
  PADDLE_ENFORCE_EQ(
      !Overlap(in, out) || DataOf(part) == DataOf(whole) + offset,
      true,
      common::errors::InvalidArgument(
          "%s got an output that overlaps the input. Pass tensors that do not "
          "overlap, for example input.clone().",
          NameOf(operation)));
}

phi::DenseTensor PartOf(const phi::DenseTensor& tensor,
                        int64_t offset,
                        int64_t numel) {
  return numel < 0 ? tensor
                   : phi::distributed::GetPartialTensor(tensor, offset, numel);
}

// Returns the bytes of each rank's rows of a tensor.
std::vector<uint64_t> BytesPerRank(const phi::DenseTensor& tensor,
                                   std::vector<int64_t> rows,
                                   int size) {
  const int64_t all = tensor.dims().size() == 0 ? 1 : tensor.dims()[0];
  if (rows.empty()) {
    PADDLE_ENFORCE_EQ(
        all % size,
        0,
        common::errors::InvalidArgument(
            "alltoall got a tensor of %d rows, which cannot be "
            "divided equally among %d ranks. Pass the number of rows of "
            "each rank.",
            all,
            size));
    rows.assign(size, all / size);
  }
  PADDLE_ENFORCE_EQ(
      static_cast<int>(rows.size()) == size &&
          std::accumulate(rows.begin(), rows.end(), int64_t{0}) == all &&
          *std::min_element(rows.begin(), rows.end()) >= 0,
      true,
      common::errors::InvalidArgument(
          "alltoall got a tensor of %d rows and the sizes [%s]. Pass one "
          "size, not negative, for each of the %d ranks; their sum must be "
          "the number of rows.",
          all,
          common::make_ddim(rows),
          size));
  std::vector<uint64_t> bytes;
  bytes.reserve(size);
  for (int64_t count : rows) {
    bytes.push_back(all == 0 ? 0 : BytesOf(tensor) / all * count);
  }
  return bytes;
}

void Copy(char* to, const char* from, uint64_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

// A buffer with room for several tensors, one after the other.
class Packed {
 public:
  explicit Packed(std::vector<phi::DenseTensor> tensors)
      : tensors_(std::move(tensors)) {
    uint64_t all = 0;
    for (const phi::DenseTensor& tensor : tensors_) {
      bytes_.push_back(BytesOf(tensor));
      all += bytes_.back();
    }
    data_ = std::make_unique<char[]>(all);
  }

  char* data() const { return data_.get(); }
  const std::vector<uint64_t>& bytes() const { return bytes_; }

  void CopyFromTensors() {
    char* part = data();
    for (const phi::DenseTensor& tensor : tensors_) {
      Copy(part, DataOf(tensor), BytesOf(tensor));
      part += BytesOf(tensor);
    }
  }

  void CopyToTensors() const {
    const char* part = data();
    for (const phi::DenseTensor& tensor : tensors_) {
      Copy(DataOf(tensor), part, BytesOf(tensor));
      part += BytesOf(tensor);
    }
  }

 private:
  std::vector<phi::DenseTensor> tensors_;
  std::vector<uint64_t> bytes_;
  std::unique_ptr<char[]> data_;
};

// Throws unless there is one usable tensor per rank, of the type of `like`.
void EnforceOnePerRank(CommType operation,
                       const std::vector<phi::DenseTensor>& tensors,
                       const phi::DenseTensor& like,
                       int size) {
  PADDLE_ENFORCE_EQ(static_cast<int>(tensors.size()),
                    size,
                    common::errors::InvalidArgument(
                        "%s got a list of %d tensors, but the group has %d "
                        "ranks. Pass one tensor per rank.",
                        NameOf(operation),
                        tensors.size(),
                        size));
  for (const phi::DenseTensor& tensor : tensors) {
    EnforceUsable(operation, tensor);
    EnforceSameType(operation, tensor, like);
  }
}

// Throws unless the list has one tensor per rank like this rank's tensor, which
// may be in the list at its own place, but must not overlap others.
void EnforceList(CommType operation,
                 const char* name,
                 const std::vector<phi::DenseTensor>& list,
                 const phi::DenseTensor& own,
                 int rank,
                 int size) {
  EnforceOnePerRank(operation, list, own, size);
  for (int i = 0; i < size; ++i) {
    EnforceElements(operation, name, list[i].numel(), own.numel());
    PADDLE_ENFORCE_EQ(
        !Overlap(own, list[i]) || (i == rank && DataOf(own) == DataOf(list[i])),
        true,
        common::errors::InvalidArgument(
            "%s got an %s for rank %d that overlaps this rank's tensor. Pass "
            "tensors that do not overlap, for example "
            "paddle.empty_like(tensor) for each rank.",
            NameOf(operation),
            name,
            i));
  }
}

std::vector<char*> DataOf(const std::vector<phi::DenseTensor>& tensors) {
  std::vector<char*> data;
  for (const phi::DenseTensor& tensor : tensors) data.push_back(DataOf(tensor));
  return data;
}

void EnforceNoCalcStream(bool use_calc_stream) {
  PADDLE_ENFORCE_EQ(use_calc_stream,
                    false,
                    common::errors::Unimplemented(
                        "The backend shm has no streams, but gather got "
                        "use_calc_stream. Omit that argument."));
}

// The first character of the value that a rank sets in the store. A rank that
// fails to attach reports this in the store, since it has no group memory.
constexpr char kHasMemory = '=';  // followed by the memory's id
constexpr char kHasFailed = '!';  // followed by the reason

std::string StoreKey(int group_id, int rank) {
  return std::to_string(group_id) + "/" + std::to_string(rank);
}

void Publish(Store* store,
             const ProcessGroupShmOptions& options,
             const std::string& text) {
  store->set(StoreKey(options.group_id, options.rank),
             std::vector<uint8_t>(text.begin(), text.end()));
}

// Waits until a rank has published the id of the group's memory, and returns
// it. Throws if the rank has failed.
std::string IdFrom(Store* store,
                   const ProcessGroupShmOptions& options,
                   int rank) {
  const std::vector<uint8_t> value =
      store->get(StoreKey(options.group_id, rank));
  const std::string text(value.begin(), value.end());
  if (!text.empty() && text[0] == kHasMemory) return text.substr(1);
  throw CollectiveError(CollectiveError::Kind::kUnavailable,
                        rank,
                        "Rank " + std::to_string(rank) +
                            " cannot use the group's memory, so all ranks "
                            "fail: " +
                            text.substr(text.empty() ? 0 : 1));
}

// Creates the group's memory on rank 0, or attaches to it on other ranks.
// Publishes the outcome to the other ranks.
std::unique_ptr<GroupMemory> MakeMemory(Store* store,
                                        const ProcessGroupShmOptions& options) {
  std::string id;
  if (options.rank != 0) id = IdFrom(store, options, 0);
  std::unique_ptr<GroupMemory> memory;
  try {
    memory = options.rank == 0 ? GroupMemory::Create(options.size)
                               : GroupMemory::Attach(id, options.rank);
  } catch (const std::exception& error) {
    Publish(store, options, kHasFailed + std::string(error.what()));
    throw;
  }
  Publish(store, options, kHasMemory + memory->id());
  return memory;
}

// Waits until all ranks have published whether they attached. Stores the error
// of the first one that did not.
void AwaitMembers(Store* store,
                  const ProcessGroupShmOptions& options,
                  const GroupMemory& memory,
                  std::exception_ptr* failure) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  std::deque<int> missing(options.size - 1);
  std::iota(missing.begin(), missing.end(), 1);
  while (!missing.empty()) {
    const int rank = missing.front();
    missing.pop_front();
    if (store->check(StoreKey(options.group_id, rank))) {
      try {
        IdFrom(store, options, rank);
      } catch (const CollectiveError&) {
        // Wait for the others: a rank that attaches later would not find the
        // memory.
        if (*failure == nullptr) *failure = std::current_exception();
      }
      continue;
    }
    // Look at the next rank meanwhile: it may have failed.
    missing.push_back(rank);
    memory.ThrowIfUnusable();
    if (std::chrono::duration_cast<std::chrono::milliseconds>(
            Clock::now() - start) > options.time_to_join) {
      const int first = *std::min_element(missing.begin(), missing.end());
      throw CollectiveError(
          CollectiveError::Kind::kTimedOut,
          first,
          "Rank " + std::to_string(first) +
              " did not attach to the group's memory within " +
              std::to_string(options.time_to_join.count()) +
              " ms. Check why it is stopped, slow or in other code, or pass "
              "a longer timeout.");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Waits until all ranks have attached. If one did not, throws the reason that
// it has published, even if it or another rank has died since.
void AwaitMembers(Store* store,
                  const ProcessGroupShmOptions& options,
                  const GroupMemory& memory) {
  std::exception_ptr failure;
  try {
    AwaitMembers(store, options, memory, &failure);
  } catch (const CollectiveError& error) {
    if (failure == nullptr && error.kind() == CollectiveError::Kind::kDied &&
        store->check(StoreKey(options.group_id, error.rank()))) {
      IdFrom(store, options, error.rank());
    }
    if (failure == nullptr) throw;
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

// Returns a function that calls `check_interrupt` on the calling thread, and
// does nothing on other threads.
std::function<void()> OnThisThread(std::function<void()> check_interrupt) {
  if (!check_interrupt) return {};
  return [check_interrupt = std::move(check_interrupt),
          thread = std::this_thread::get_id()] {
    if (std::this_thread::get_id() == thread) check_interrupt();
  };
}

// Called on rank 0. If a rank does not attach, fails the group in its memory,
// where the attached ranks wait.
void WaitForMembers(Store* store,
                    const ProcessGroupShmOptions& options,
                    GroupMemory* memory) {
  try {
    AwaitMembers(store, options, *memory);
  } catch (const CollectiveError& error) {
    memory->Abort(error.rank(), error.what());
  }
  memory->ThrowIfUnusable();
}

[[noreturn]] void ThrowPaddleError(const CollectiveError& error) {
  switch (error.kind()) {
    case CollectiveError::Kind::kTimedOut:
      PADDLE_THROW(common::errors::ExecutionTimeout("%s", error.what()));
    case CollectiveError::Kind::kMismatched:
      PADDLE_THROW(common::errors::PreconditionNotMet("%s", error.what()));
    case CollectiveError::Kind::kInvalid:
      PADDLE_THROW(common::errors::InvalidArgument("%s", error.what()));
    default:
      PADDLE_THROW(common::errors::Unavailable("%s", error.what()));
  }
}

template <typename Call>
auto RaisingPaddleErrors(const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const CollectiveError& error) {
    ThrowPaddleError(error);
  }
}

[[noreturn]] void ThrowForked(int process) {
  PADDLE_THROW(common::errors::Unavailable(
      "This process was forked from process %d, which has joined the group; a "
      "forked process is not a rank of the group. Communicate in the parent, "
      "or start ranks with paddle.distributed.spawn.",
      process));
}

}  // namespace

ShmTask::ShmTask(int rank,
                 CommType type,
                 bool sync_op,
                 std::function<void()> check_interrupt)
    : ProcessGroup::Task(rank, type, sync_op),
      process_(getpid()),
      check_interrupt_(std::move(check_interrupt)) {
  is_completed_ = sync_op;
}

void ShmTask::EndWith(std::exception_ptr error) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    error_ = std::move(error);
    is_completed_ = true;
  }
  completed_.notify_all();
}

bool ShmTask::IsCompleted() {
  EnforceNotForked();
  std::lock_guard<std::mutex> lock(mutex_);
  return is_completed_;
}

bool ShmTask::WaitFor(Seconds timeout) {
  // A longer one could overflow the clock's type.
  constexpr Seconds kLongest = std::chrono::hours(24 * 365);
  EnforceNotForked();
  using Clock = std::chrono::steady_clock;
  if (timeout == Seconds::zero()) timeout = kLongest;
  // Not std::clamp, which keeps NaN. With that, the wait returns immediately.
  timeout = timeout > -kLongest ? std::min(timeout, kLongest) : -kLongest;
  const Clock::time_point deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  std::unique_lock<std::mutex> lock(mutex_);
  const auto completed = [this] { return is_completed_; };
  while (!completed_.wait_until(
      lock,
      std::min(deadline, Clock::now() + GroupMemory::kInterruptInterval),
      completed)) {
    if (Clock::now() >= deadline) return false;
    if (!check_interrupt_) continue;
    lock.unlock();
    check_interrupt_();
    lock.lock();
  }
  if (error_) std::rethrow_exception(error_);
  return true;
}

void ShmTask::EnforceNotForked() const {
  if (!IsSync() && getpid() != process_) ThrowForked(process_);
}

ProcessGroupShm::ProcessGroupShm(
    const std::shared_ptr<phi::distributed::Store>& store,
    const ProcessGroupShmOptions& options)
    : ProcessGroup(options.rank, options.size, options.group_id),
      process_(getpid()),
      timeout_(options.timeout),
      check_interrupt_(OnThisThread(options.check_interrupt)),
      joined_(std::make_shared<JoinedGroup>()),
      queue_(std::make_unique<OperationQueue>()) {
  RaisingPaddleErrors([&] {
    joined_->memory = MakeMemory(store.get(), options);
    joined_->memory->set_check_interrupt(check_interrupt_);
    if (options.rank == 0) {
      WaitForMembers(store.get(), options, joined_->memory.get());
    }
    joined_->collectives = std::make_unique<Collectives>(
        joined_->memory.get(), options.resolver, options.time_to_join);
  });
}

ProcessGroupShm::~ProcessGroupShm() {
  if (IsForked()) {
    // Leak the queues: their threads are not in this process, and their locks
    // may be held.
    queue_.release();
    for (auto& item : pair_queues_) item.second.release();
    return;
  }
  Leave();
}

bool ProcessGroupShm::IsForked() const { return getpid() != process_; }

void ProcessGroupShm::Leave() {
  if (IsForked()) return;
  std::shared_ptr<JoinedGroup> joined;
  std::vector<OperationQueue*> queues{queue_.get()};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    joined = std::move(joined_);
    joined_ = nullptr;
    for (auto& item : pair_queues_) queues.push_back(item.second.get());
  }
  if (!joined) return;
  joined->memory->Leave();
  for (OperationQueue* queue : queues) queue->Stop();
}

void ProcessGroupShm::Abort(const std::string& reason) {
  if (IsForked()) return;
  std::shared_ptr<JoinedGroup> joined;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    joined = joined_;
  }
  if (joined) joined->memory->Abort(rank_, reason);
}

std::shared_ptr<ProcessGroupShm::JoinedGroup> ProcessGroupShm::joined() const {
  std::lock_guard<std::mutex> lock(mutex_);
  PADDLE_ENFORCE_NOT_NULL(joined_,
                          common::errors::Unavailable(
                              "Rank %d has left group %d, through "
                              "destroy_process_group or at exit. Create a new "
                              "group with paddle.distributed.new_group.",
                              rank_,
                              gid_));
  return joined_;
}

OperationQueue* ProcessGroupShm::PairQueue(CommType type, int peer) {
  if (IsForked()) ThrowForked(process_);
  EnforceRank(type, peer);
  PADDLE_ENFORCE_NE(peer,
                    rank_,
                    common::errors::InvalidArgument(
                        "%s got rank %d, which is the caller. Pass the rank of "
                        "another process.",
                        NameOf(type),
                        peer));
  std::lock_guard<std::mutex> lock(mutex_);
  auto& queue = pair_queues_[{type, peer}];
  if (!queue) queue = std::make_unique<OperationQueue>();
  return queue.get();
}

ProcessGroupShm::TaskPointer ProcessGroupShm::Submit(OperationQueue* queue,
                                                     CommType type,
                                                     bool sync_op,
                                                     Operation operation) {
  if (IsForked()) ThrowForked(process_);
  const std::shared_ptr<JoinedGroup> group = joined();
  const auto run = [group,
                    operation = std::move(operation),
                    timeout = timeout_] {
    RaisingPaddleErrors([&] { operation(group->collectives.get(), timeout); });
  };
  auto task = std::make_shared<ShmTask>(rank_, type, sync_op, check_interrupt_);
  if (sync_op) {
    queue->Run(run,
               [&] { CheckInterruptWhileQueued(type, group->memory.get()); });
    return task;
  }
  queue->Add([task, run] {
    std::exception_ptr error;
    try {
      run();
    } catch (...) {
      error = std::current_exception();
    }
    task->EndWith(error);
  });
  return task;
}

void ProcessGroupShm::CheckInterruptWhileQueued(CommType type,
                                                GroupMemory* memory) const {
  if (!check_interrupt_) return;
  try {
    check_interrupt_();
  } catch (...) {
    // Otherwise this rank's next operation would take the place of this one.
    memory->Abort(
        rank_,
        "Rank " + std::to_string(rank_) + " (process " +
            std::to_string(process_) + ") aborted " + NameOf(type) +
            ", which waited for an earlier operation, because of its own "
            "error. See that rank's output, and start all ranks again.");
    throw;
  }
}

void ProcessGroupShm::EnforceRank(CommType type, int rank) const {
  PADDLE_ENFORCE_EQ(
      rank >= 0 && rank < size_,
      true,
      common::errors::InvalidArgument(
          "%s got rank %d, but group %d has ranks 0 to %d. Pass one of "
          "them.",
          NameOf(type),
          rank,
          gid_,
          size_ - 1));
}

phi::DeviceContext* ProcessGroupShm::GetDeviceContext(
    const phi::Place& place) const {
  return phi::DeviceContextPool::Instance().Get(place);
}

phi::DeviceContext* ProcessGroupShm::GetDeviceContext(
    const phi::Place& place, bool use_calc_stream UNUSED) const {
  return GetDeviceContext(place);
}

ProcessGroupShm::TaskPointer ProcessGroupShm::AllReduce(
    phi::DenseTensor* out_tensor,
    const phi::DenseTensor& in_tensor,
    const AllreduceOptions& opts,
    bool sync_op) {
  constexpr CommType kType = CommType::ALLREDUCE;
  EnforceUsable(kType, *out_tensor, in_tensor);
  EnforceElements(kType, "output", out_tensor->numel(), in_tensor.numel());
  EnforceNoOverlap(kType, *out_tensor, in_tensor, rank_);
  return Submit(
      queue_.get(),
      kType,
      sync_op,
      [in = in_tensor,
       out = *out_tensor,
       type = ElementTypeOf(kType, in_tensor.dtype()),
       reduction = ReductionOf(opts.reduce_op)](Collectives* collectives,
                                                Milliseconds timeout) {
        collectives->AllReduce(
            DataOf(in), DataOf(out), in.numel(), type, reduction, timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::AllReduce(
    std::vector<phi::DenseTensor>& inputs,   // NOLINT
    std::vector<phi::DenseTensor>& outputs,  // NOLINT
    const AllreduceOptions& opts) {
  return AllReduce(&outputs.front(), inputs.front(), opts, /*sync_op=*/true);
}

ProcessGroupShm::TaskPointer ProcessGroupShm::Reduce(
    phi::DenseTensor* out_tensor,
    const phi::DenseTensor& in_tensor,
    const ReduceOptions& opts,
    bool sync_op) {
  constexpr CommType kType = CommType::REDUCE;
  EnforceRank(kType, opts.root_rank);
  EnforceUsable(kType, *out_tensor, in_tensor);
  EnforceElements(kType, "output", out_tensor->numel(), in_tensor.numel());
  EnforceNoOverlap(kType, *out_tensor, in_tensor, rank_);
  return Submit(
      queue_.get(),
      kType,
      sync_op,
      [in = in_tensor,
       out = *out_tensor,
       type = ElementTypeOf(kType, in_tensor.dtype()),
       reduction = ReductionOf(opts.reduce_op),
       root = opts.root_rank](Collectives* collectives, Milliseconds timeout) {
        collectives->Reduce(DataOf(in),
                            DataOf(out),
                            in.numel(),
                            type,
                            reduction,
                            root,
                            timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::ReduceScatter(
    phi::DenseTensor* out_tensor,
    const phi::DenseTensor& in_tensor,
    const ReduceScatterOptions& opts,
    bool sync_op) {
  constexpr CommType kType = CommType::REDUCE_SCATTER;
  EnforceUsable(kType, *out_tensor, in_tensor);
  EnforceElements(
      kType, "input", in_tensor.numel(), out_tensor->numel() * size_);
  EnforceNoOverlap(kType, *out_tensor, in_tensor, rank_);
  return Submit(
      queue_.get(),
      kType,
      sync_op,
      [in = in_tensor,
       out = *out_tensor,
       type = ElementTypeOf(kType, in_tensor.dtype()),
       reduction = ReductionOf(opts.reduce_op)](Collectives* collectives,
                                                Milliseconds timeout) {
        collectives->ReduceScatter(
            DataOf(in), DataOf(out), out.numel(), type, reduction, timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::Broadcast(
    phi::DenseTensor* out_tensor,
    const phi::DenseTensor& in_tensor,
    const BroadcastOptions& opts,
    bool sync_op) {
  constexpr CommType kType = CommType::BROADCAST;
  const int root = opts.source_rank;
  EnforceRank(kType, root);
  EnforceUsable(kType, *out_tensor, in_tensor);
  EnforceElements(kType, "output", out_tensor->numel(), in_tensor.numel());
  return Submit(
      queue_.get(),
      kType,
      sync_op,
      [in = in_tensor, out = *out_tensor, root, is_root = rank_ == root](
          Collectives* collectives, Milliseconds timeout) {
        if (is_root && DataOf(in) != DataOf(out)) {
          std::memmove(DataOf(out), DataOf(in), BytesOf(in));
        }
        collectives->Broadcast(
            DataOf(out), BytesOf(out), TypeOf(out), root, timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::AllGather(
    phi::DenseTensor* out_tensor,
    const phi::DenseTensor& in_tensor,
    bool sync_op) {
  return AllGather(out_tensor, in_tensor, 0, -1, sync_op);
}

ProcessGroupShm::TaskPointer ProcessGroupShm::AllGather(
    phi::DenseTensor* out_tensor,
    const phi::DenseTensor& in_tensor,
    int64_t offset,
    int64_t numel,
    bool sync_op) {
  constexpr CommType kType = CommType::ALLGATHER;
  EnforceUsable(kType, *out_tensor, in_tensor);
  const phi::DenseTensor part = PartOf(in_tensor, offset, numel);
  EnforceElements(kType, "output", out_tensor->numel(), part.numel() * size_);
  EnforceNoOverlap(kType, *out_tensor, part, rank_);
  return Submit(
      queue_.get(),
      kType,
      sync_op,
      [in = part, out = *out_tensor](Collectives* collectives,
                                     Milliseconds timeout) {
        collectives->AllGather(
            DataOf(in), DataOf(out), BytesOf(in), TypeOf(in), timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::Gather(
    phi::DenseTensor* out_tensor,
    const phi::DenseTensor& in_tensor,
    const GatherOptions& opts,
    bool sync_op,
    bool use_calc_stream) {
  constexpr CommType kType = CommType::GATHER;
  EnforceNoCalcStream(use_calc_stream);
  const int root = opts.root_rank;
  EnforceRank(kType, root);
  EnforceUsable(kType, in_tensor);
  if (rank_ == root) {
    EnforceUsable(kType, *out_tensor);
    EnforceSameType(kType, *out_tensor, in_tensor);
    EnforceElements(
        kType, "output", out_tensor->numel(), in_tensor.numel() * size_);
    EnforceNoOverlap(kType, *out_tensor, in_tensor, rank_);
  }
  return Submit(
      queue_.get(),
      kType,
      sync_op,
      [in = in_tensor, out = *out_tensor, root, is_root = rank_ == root](
          Collectives* collectives, Milliseconds timeout) {
        collectives->Gather(DataOf(in),
                            is_root ? DataOf(out) : nullptr,
                            BytesOf(in),
                            TypeOf(in),
                            root,
                            timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::AllGatherIntoList(
    const std::vector<phi::DenseTensor>& out_tensors,
    const phi::DenseTensor& in_tensor,
    bool sync_op) {
  constexpr CommType kType = CommType::ALLGATHER;
  EnforceUsable(kType, in_tensor);
  EnforceList(kType, "output", out_tensors, in_tensor, rank_, size_);
  return Submit(
      queue_.get(),
      kType,
      sync_op,
      [in = in_tensor, out = out_tensors](Collectives* collectives,
                                          Milliseconds timeout) {
        collectives->AllGather(
            DataOf(in), DataOf(out), BytesOf(in), TypeOf(in), timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::GatherIntoList(
    const std::vector<phi::DenseTensor>& out_tensors,
    const phi::DenseTensor& in_tensor,
    int root,
    bool sync_op,
    bool use_calc_stream) {
  constexpr CommType kType = CommType::GATHER;
  EnforceNoCalcStream(use_calc_stream);
  EnforceRank(kType, root);
  EnforceUsable(kType, in_tensor);
  std::vector<phi::DenseTensor> out;
  if (rank_ == root) {
    EnforceList(kType, "output", out_tensors, in_tensor, rank_, size_);
    out = out_tensors;
  }
  return Submit(
      queue_.get(),
      kType,
      sync_op,
      [in = in_tensor, out, root](Collectives* collectives,
                                  Milliseconds timeout) {
        collectives->Gather(
            DataOf(in), DataOf(out), BytesOf(in), TypeOf(in), root, timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::Scatter(
    phi::DenseTensor* out_tensor,
    const phi::DenseTensor& in_tensor,
    const ScatterOptions& opts,
    bool sync_op) {
  constexpr CommType kType = CommType::SCATTER;
  const int root = opts.root_rank;
  EnforceRank(kType, root);
  EnforceUsable(kType, *out_tensor);
  if (rank_ == root) {
    EnforceUsable(kType, in_tensor);
    EnforceSameType(kType, *out_tensor, in_tensor);
    EnforceElements(
        kType, "input", in_tensor.numel(), out_tensor->numel() * size_);
    EnforceNoOverlap(kType, *out_tensor, in_tensor, rank_);
  }
  return Submit(
      queue_.get(),
      kType,
      sync_op,
      [in = in_tensor, out = *out_tensor, root, is_root = rank_ == root](
          Collectives* collectives, Milliseconds timeout) {
        collectives->Scatter(is_root ? DataOf(in) : nullptr,
                             DataOf(out),
                             BytesOf(out),
                             TypeOf(out),
                             root,
                             timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::ScatterFromList(
    const phi::DenseTensor& out_tensor,
    const std::vector<phi::DenseTensor>& in_tensors,
    int root,
    bool sync_op) {
  constexpr CommType kType = CommType::SCATTER;
  EnforceRank(kType, root);
  EnforceUsable(kType, out_tensor);
  std::vector<phi::DenseTensor> in;
  if (rank_ == root) {
    EnforceList(kType, "input", in_tensors, out_tensor, rank_, size_);
    in = in_tensors;
  }
  return Submit(queue_.get(),
                kType,
                sync_op,
                [in, out = out_tensor, root](Collectives* collectives,
                                             Milliseconds timeout) {
                  const std::vector<char*> parts = DataOf(in);
                  collectives->Scatter({parts.begin(), parts.end()},
                                       DataOf(out),
                                       BytesOf(out),
                                       TypeOf(out),
                                       root,
                                       timeout);
                });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::AllToAll(
    phi::DenseTensor* out_tensor,
    const phi::DenseTensor& in_tensor,
    const std::vector<int64_t>& out_size_each_rank,
    const std::vector<int64_t>& in_size_each_rank,
    bool sync_op) {
  constexpr CommType kType = CommType::ALLTOALL;
  EnforceUsable(kType, *out_tensor, in_tensor);
  PADDLE_ENFORCE_EQ(
      Overlap(in_tensor, *out_tensor),
      false,
      common::errors::InvalidArgument(
          "alltoall got an output that overlaps the input. Pass separate "
          "tensors, for example paddle.empty_like(input) as the output."));
  return Submit(
      queue_.get(),
      kType,
      sync_op,
      [in = in_tensor,
       out = *out_tensor,
       in_bytes = BytesPerRank(in_tensor, in_size_each_rank, size_),
       out_bytes = BytesPerRank(*out_tensor, out_size_each_rank, size_)](
          Collectives* collectives, Milliseconds timeout) {
        collectives->AllToAll(
            DataOf(in), in_bytes, DataOf(out), out_bytes, TypeOf(in), timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::AllToAll(
    std::vector<phi::DenseTensor>* out_tensors,
    const std::vector<phi::DenseTensor>& in_tensors,
    bool sync_op) {
  constexpr CommType kType = CommType::ALLTOALL;
  const phi::DenseTensor none;
  const auto& like = in_tensors.empty() ? none : in_tensors.front();
  EnforceOnePerRank(kType, in_tensors, like, size_);
  EnforceOnePerRank(kType, *out_tensors, like, size_);
  return Submit(queue_.get(),
                kType,
                sync_op,
                [in = in_tensors, out = *out_tensors](Collectives* collectives,
                                                      Milliseconds timeout) {
                  Packed sent(in);
                  sent.CopyFromTensors();
                  const Packed received(out);
                  collectives->AllToAll(sent.data(),
                                        sent.bytes(),
                                        received.data(),
                                        received.bytes(),
                                        TypeOf(in[0]),
                                        timeout);
                  received.CopyToTensors();
                });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::Send(
    const phi::DenseTensor& tensor, int dst_rank, bool sync_op) {
  return Send(tensor, dst_rank, 0, -1, sync_op);
}

ProcessGroupShm::TaskPointer ProcessGroupShm::Send(
    const phi::DenseTensor& tensor,
    int dst_rank,
    int64_t offset,
    int64_t numel,
    bool sync_op) {
  constexpr CommType kType = CommType::SEND;
  EnforceUsable(kType, tensor);
  return Submit(
      PairQueue(kType, dst_rank),
      kType,
      sync_op,
      [part = PartOf(tensor, offset, numel), dst_rank](Collectives* collectives,
                                                       Milliseconds timeout) {
        collectives->Send(
            DataOf(part), BytesOf(part), TypeOf(part), dst_rank, timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::Recv(phi::DenseTensor* tensor,
                                                   int src_rank,
                                                   bool sync_op) {
  return Recv(tensor, src_rank, 0, -1, sync_op);
}

ProcessGroupShm::TaskPointer ProcessGroupShm::Recv(phi::DenseTensor* tensor,
                                                   int src_rank,
                                                   int64_t offset,
                                                   int64_t numel,
                                                   bool sync_op) {
  constexpr CommType kType = CommType::RECV;
  EnforceUsable(kType, *tensor);
  return Submit(
      PairQueue(kType, src_rank),
      kType,
      sync_op,
      [part = PartOf(*tensor, offset, numel), src_rank](
          Collectives* collectives, Milliseconds timeout) {
        collectives->Recv(
            DataOf(part), BytesOf(part), TypeOf(part), src_rank, timeout);
      });
}

ProcessGroupShm::TaskPointer ProcessGroupShm::Barrier(
    const BarrierOptions& opts UNUSED) {
  return Submit(queue_.get(),
                CommType::BARRIER,
                /*sync_op=*/true,
                [](Collectives* collectives, Milliseconds timeout) {
                  collectives->Barrier(timeout);
                });
}

}  // namespace distributed
}  // namespace paddle
