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

#include "paddle/phi/core/distributed/shared_memory/group_memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <set>
#include <utility>

#include "paddle/phi/core/distributed/shared_memory/futex.h"
#include "paddle/phi/core/memory/allocation/shared_memory/default_memory_limit.h"
#include "paddle/phi/core/memory/allocation/shared_memory/process_status.h"
#include "paddle/phi/core/memory/allocation/shared_memory/random_bits.h"
#include "paddle/phi/core/memory/allocation/shared_memory/shared_memory_error.h"

namespace phi {
namespace distributed {

namespace memory = paddle::memory::allocation;

// All groups that this process has joined.
//
// Invariant: a thread holds the mutex while it opens or closes a group's file.
// So a child of fork knows all inherited descriptors and closes them
// immediately. Otherwise the child would keep the parent's kernel lock, and the
// parent would never count as dead.
class OpenGroups {
 public:
  static OpenGroups& Instance() {
    static OpenGroups& groups =
        *std::unique_ptr<OpenGroups>(new OpenGroups).release();  // NOLINT
    return groups;
  }

  // Opens a group and adds it.
  template <typename Open>
  std::unique_ptr<GroupMemory> Add(const Open& open) {
    std::lock_guard<std::mutex> guard(mutex_);
    std::unique_ptr<GroupMemory> group = open();
    groups_.insert(group.get());
    return group;
  }

  // Closes the group's file.
  void Remove(GroupMemory* group) {
    std::lock_guard<std::mutex> guard(mutex_);
    groups_.erase(group);
    group->file_.Close();
  }

 private:
  OpenGroups() {
    // Without these handlers, a child would act as the rank of its parent.
    if (pthread_atfork([] { Instance().mutex_.lock(); },
                       [] { Instance().mutex_.unlock(); },
                       [] { Instance().ForgetAll(); }) != 0) {
      throw std::bad_alloc();
    }
    std::atexit([] { Instance().LeaveAll(); });
  }

  void ForgetAll() {
    for (GroupMemory* group : groups_) group->Forget();
    groups_.clear();
    mutex_.unlock();
  }

  void LeaveAll() {
    std::lock_guard<std::mutex> guard(mutex_);
    for (GroupMemory* group : groups_) group->Leave();
  }

  std::mutex mutex_;
  std::set<GroupMemory*> groups_;
};

namespace {

using Kind = CollectiveError::Kind;

// Also identifies the layout: a changed layout needs a new number.
constexpr uint64_t kMagic = 0x32505247434c4450;  // "PDLCGRP2"
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr char kFormat[] = "%" SCNu32 "-%" SCNu32 "-%" SCNx64;

// The content of a group's id.
struct GroupPlace {
  uint32_t process;
  uint32_t fd;
  uint64_t random_number;

  std::string Id() const {
    char text[64];
    std::snprintf(text,
                  sizeof(text),
                  "%" PRIu32 "-%" PRIu32 "-%" PRIx64,
                  process,
                  fd,
                  random_number);
    return text;
  }

  static GroupPlace Of(const std::string& id) {
    GroupPlace place = {};
    std::sscanf(
        id.c_str(), kFormat, &place.process, &place.fd, &place.random_number);
    if (place.Id() != id || place.random_number == 0) {
      throw CollectiveError(Kind::kInvalid,
                            -1,
                            "\"" + id +
                                "\" is not the id of a group in shared memory. "
                                "Pass the value of id() on rank 0.");
    }
    return place;
  }
};

[[noreturn]] void ThrowUnavailable(const std::string& text) {
  throw CollectiveError(Kind::kUnavailable, -1, text);
}

[[noreturn]] void ThrowCannotMake(uint64_t bytes, const std::string& why) {
  ThrowUnavailable("Cannot reserve " + memory::HumanBytes(bytes) +
                   " of shared memory for a group: " + why +
                   ". Reduce the group's staging memory, or give the process "
                   "or container more memory.");
}

[[noreturn]] void ThrowCannotAttach(int rank,
                                    const GroupPlace& place,
                                    const std::string& why) {
  ThrowUnavailable("Rank " + std::to_string(rank) + " (process " +
                   std::to_string(getpid()) +
                   ") cannot attach to the shared memory of rank 0 (process " +
                   std::to_string(place.process) + "): " + why +
                   ". The ranks of a group in shared memory must run on one "
                   "machine, as one user and in one PID namespace, and rank 0 "
                   "must be alive; otherwise use the backend gloo.");
}

void CheckSize(int size) {
  if (size >= 1 && size <= GroupLayout::kMaxRanks) return;
  throw CollectiveError(Kind::kInvalid,
                        -1,
                        "A group in shared memory cannot have " +
                            std::to_string(size) +
                            " ranks. Create a group of 1 to " +
                            std::to_string(GroupLayout::kMaxRanks) + " ranks.");
}

memory::FileDescriptor OpenFileOf(int rank, const GroupPlace& place) {
  try {
    memory::FileDescriptor file = memory::OpenMemfdOf(place.process, place.fd);
    if (!file) ThrowCannotAttach(rank, place, std::strerror(errno));
    return file;
  } catch (const memory::SharedMemoryError&) {
    ThrowCannotAttach(rank,
                      place,
                      "rank 0 is not dumpable, for example after setuid; it "
                      "can call prctl(PR_SET_DUMPABLE, 1)");
  }
}

// Returns why a file is not the group's memory; empty if it is.
std::string WhyUnfit(int fd, const GroupPlace& place, const GroupStart& start) {
  struct stat file = {};
  if (fstat(fd, &file) != 0) return std::strerror(errno);
  int seals = fcntl(fd, F_GET_SEALS);
  if (start.magic != kMagic || start.random_number != place.random_number) {
    return "its descriptor " + std::to_string(place.fd) +
           " is not this group's memory, or another version created it";
  }
  if (start.size < 1 || start.size > GroupLayout::kMaxRanks ||
      start.total_bytes != static_cast<uint64_t>(file.st_size) ||
      start.staging_bytes > start.total_bytes ||
      GroupLayout(start.size, start.staging_bytes).total_bytes() !=
          start.total_bytes ||
      seals == -1 || (seals & kSeals) != kSeals) {
    return "its memory is damaged";
  }
  return "";
}

bool IsExiting(const std::string& folder) {
  std::optional<memory::ProcessStat> stat = memory::ReadProcessStat(folder);
  return stat && stat->IsExiting();
}

// The kernel would kill other processes before it refuses memory.
void CheckMemory(uint64_t bytes) {
  if (bytes <= memory::DefaultMemoryLimit("") / 2) return;
  ThrowCannotMake(bytes,
                  "that is more than half of the memory available to this "
                  "process");
}

memory::FileDescriptor MakeFile(const GroupStart& start) {
  memory::FileDescriptor file = memory::MakeMemfd("paddle-group");
  const GroupLayout layout(static_cast<int>(start.size), start.staging_bytes);
  if (!file || !memory::ReserveFile(file.get(), 0, layout.reserved_bytes()) ||
      ftruncate(file.get(), layout.total_bytes()) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, kSeals) != 0 ||
      pwrite(file.get(), &start, sizeof(start), 0) != sizeof(start)) {
    ThrowCannotMake(start.total_bytes, std::strerror(errno));
  }
  return file;
}

uint64_t RandomNumber() {
  try {
    return memory::RandomBits();
  } catch (const memory::SharedMemoryError& error) {
    ThrowUnavailable(error.what());
  }
}

}  // namespace

bool IsGoneOrExiting(uint32_t process) {
  if (memory::HasEnded(process)) return true;
  std::string folder = "/proc/" + std::to_string(process);
  // Usually the process is not exiting, and one check is enough. The main
  // thread of a process may have exited alone.
  if (!IsExiting(folder)) return false;
  folder += "/task/";
  std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir(folder.c_str()),
                                              closedir);
  while (const dirent* thread = threads ? readdir(threads.get()) : nullptr) {
    if (thread->d_name[0] != '.' && !IsExiting(folder + thread->d_name)) {
      return false;
    }
  }
  return threads != nullptr;
}

std::unique_ptr<GroupMemory> GroupMemory::Create(int size,
                                                 const GroupOptions& options) {
  CheckSize(size);
  CheckMemory(options.staging_bytes);
  GroupStart start = {};
  start.magic = kMagic;
  start.random_number = RandomNumber();
  start.total_bytes = GroupLayout(size, options.staging_bytes).total_bytes();
  start.staging_bytes = options.staging_bytes;
  start.size = size;
  start.spin_microseconds = static_cast<uint32_t>(std::clamp<int64_t>(
      options.spin.count(), 0, std::numeric_limits<uint32_t>::max()));
  CheckMemory(start.total_bytes);
  return OpenGroups::Instance().Add([&] {
    memory::FileDescriptor file = MakeFile(start);
    GroupPlace place = {static_cast<uint32_t>(getpid()),
                        static_cast<uint32_t>(file.get()),
                        start.random_number};
    return std::unique_ptr<GroupMemory>(
        new GroupMemory(std::move(file), start, place.Id(), 0));  // NOLINT
  });
}

std::unique_ptr<GroupMemory> GroupMemory::Attach(const std::string& id,
                                                 int rank) {
  GroupPlace place = GroupPlace::Of(id);
  return OpenGroups::Instance().Add([&] {
    memory::FileDescriptor file = OpenFileOf(rank, place);
    GroupStart start = {};
    // Read, not mapped: accessing a mapping past the end of a short file would
    // raise SIGBUS.
    ssize_t got = memory::RetryOnSignal(
        [&] { return pread(file.get(), &start, sizeof(start), 0); });
    if (got != sizeof(start)) start = {};
    std::string why = WhyUnfit(file.get(), place, start);
    if (!why.empty()) ThrowCannotAttach(rank, place, why);
    if (rank < 1 || rank >= static_cast<int>(start.size)) {
      throw CollectiveError(
          Kind::kInvalid,
          rank,
          "Rank " + std::to_string(rank) + " cannot attach to a group of " +
              std::to_string(start.size) +
              " ranks. Pass a rank that is at least 1 and smaller than the "
              "size; rank 0 creates the group.");
    }
    return std::unique_ptr<GroupMemory>(
        new GroupMemory(std::move(file), start, id, rank));  // NOLINT
  });
}

GroupMemory::GroupMemory(memory::FileDescriptor file,
                         const GroupStart& start,
                         const std::string& id,
                         int rank)
    : file_(std::move(file)),
      layout_(static_cast<int>(start.size), start.staging_bytes),
      mapping_(file_.get(), layout_.total_bytes()),
      id_(id),
      random_number_(start.random_number),
      spin_(start.spin_microseconds),
      rank_(rank),
      channels_(1 + 2 * layout_.size()) {
  if (!mapping_ ||
      madvise(mapping_.base(), layout_.total_bytes(), MADV_DONTFORK) != 0) {
    ThrowUnavailable("Cannot map " + memory::HumanBytes(start.total_bytes) +
                     " of a group's shared memory: " + std::strerror(errno) +
                     ". Allow the process more address space or mappings.");
  }
  for (size_t i = 0; i < channels_.size(); ++i) {
    channels_[i].compared.resize(i == 0 ? layout_.size() : 2);
  }
  TakeRank();
}

GroupMemory::~GroupMemory() {
  // Relaxed: only set in a child of fork, by its only thread.
  if (forked_.load(std::memory_order_relaxed)) return;
  Leave();
  OpenGroups::Instance().Remove(this);
}

void GroupMemory::TakeRank() {
  RankState* state = rank_state(rank_);
  // Take the lock first: an attached rank without its lock counts as dead.
  const bool has_lock = memory::SetLock(file_.get(), F_WRLCK, rank_, 1);
  if (!has_lock && errno != EAGAIN && errno != EACCES) {
    ThrowUnavailable(
        "Cannot join as rank " + std::to_string(rank_) +
        ": it cannot lock its byte of the group's memory (" +
        std::strerror(errno) +
        "). These locks tell whether a rank is alive. They need "
        "open file description locks (Linux 3.15 or newer, not "
        "forbidden by a sandbox); otherwise use the backend gloo.");
  }
  if (!has_lock ||
      state->state.load(std::memory_order_relaxed) != RankState::kAbsent) {
    throw CollectiveError(
        Kind::kInvalid,
        rank_,
        "Process " + std::to_string(getpid()) + " cannot join as rank " +
            std::to_string(rank_) +
            ": that rank is or was taken. Pass a different rank in each "
            "process, and create a new group to start again.");
  }
  AddCores();
  state->process.store(getpid(), std::memory_order_relaxed);
  state->base.store(reinterpret_cast<uint64_t>(mapping_.base()),
                    std::memory_order_relaxed);
  // Release: a rank that acquires this state sees the process and the address.
  state->state.store(RankState::kAttached, std::memory_order_release);
}

void GroupMemory::AddCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  // Fails if the machine has more cores than the set; then ranks do not spin.
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return;
  constexpr int kBits = 64;
  for (int i = 0; i < GroupHeader::kCoreWords * kBits && i < CPU_SETSIZE; ++i) {
    // Relaxed: a hint.
    if (CPU_ISSET(i, &cores)) {
      header()->cores[i / kBits].fetch_or(uint64_t{1} << (i % kBits),
                                          std::memory_order_relaxed);
    }
  }
}

void GroupMemory::Forget() {
  file_.Close();
  // The child does not inherit the mapping; another one may be at its address.
  mapping_.Release();
  forked_.store(true, std::memory_order_relaxed);
}

uint32_t GroupMemory::process_of(int rank) const {
  return rank_state(rank)->process.load(std::memory_order_relaxed);
}

uint64_t GroupMemory::base_of(int rank) const {
  // Acquire, pairs with the release in TakeRank: the base is set.
  if (rank_state(rank)->state.load(std::memory_order_acquire) ==
      RankState::kAbsent) {
    return 0;
  }
  return rank_state(rank)->base.load(std::memory_order_relaxed);
}

void GroupMemory::Leave() {
  if (forked_.load(std::memory_order_relaxed)) return;
  // Release: a rank that acquires kLeft sees all phases of this rank.
  if (rank_state(rank_)->state.exchange(
          RankState::kLeft, std::memory_order_release) == RankState::kLeft) {
    return;
  }
  // Release, pairs with the acquire in Operation::~Operation: operations of
  // other threads know that the state is kLeft when they fail.
  left_.store(true, std::memory_order_release);
  WakeAll();
}

void GroupMemory::Abort(int rank, const std::string& reason) {
  if (forked_.load(std::memory_order_relaxed)) ThrowIfUnusable();
  Fail(Kind::kAborted, rank, reason);
}

void GroupMemory::ThrowIfUnusable() const {
  if (forked_.load(std::memory_order_relaxed)) {
    throw CollectiveError(
        Kind::kForked,
        rank_,
        "Process " + std::to_string(getpid()) + " was forked from rank " +
            std::to_string(rank_) +
            " of a group in shared memory and is not a member of the group. "
            "Create the group after the fork, in each process.");
  }
  // Relaxed: ThrowFailure loads the word again, with acquire.
  if (header()->failure.load(std::memory_order_relaxed) != 0) ThrowFailure();
  if (left_.load(std::memory_order_relaxed)) {
    throw CollectiveError(Kind::kLeft,
                          rank_,
                          "Rank " + std::to_string(rank_) +
                              " has left the group. Run all operations before "
                              "leaving it.");
  }
}

void GroupMemory::ThrowFailure() const {
  // Acquire, pairs with the release in Fail: the report is complete.
  uint64_t failure = header()->failure.load(std::memory_order_acquire);
  const RankState::Report& report =
      rank_state(static_cast<int>(failure - 1))->report;
  throw CollectiveError(
      static_cast<Kind>(report.kind), report.rank, report.text);
}

GroupHeader* GroupMemory::header() const {
  return reinterpret_cast<GroupHeader*>(At(0));
}

RankState* GroupMemory::rank_state(int rank) const {
  return reinterpret_cast<RankState*>(At(layout_.RankStateAt(rank)));
}

ChannelMember* GroupMemory::member(uint32_t channel, int member) const {
  return reinterpret_cast<ChannelMember*>(
      At(layout_.MemberAt(channel, member)));
}

OperationEntry* GroupMemory::entry(uint32_t channel,
                                   int member,
                                   uint64_t sequence) const {
  return reinterpret_cast<OperationEntry*>(
      At(layout_.EntryAt(channel, member, sequence)));
}

GroupMemory::ChannelState* GroupMemory::channel_state(uint32_t channel) {
  if (channel == GroupLayout::kAllRanks) return &channels_[0];
  int sender = layout_.RankOf(channel, 0);
  int receiver = layout_.RankOf(channel, 1);
  return &channels_[1 + (sender == rank_ ? 2 * receiver : 2 * sender + 1)];
}

uint64_t GroupMemory::TakeTransferBlock(uint32_t channel, uint64_t sequence) {
  std::lock_guard<std::mutex> guard(transfers_mutex_);
  const TransferBlock taken = {channel, sequence};
  for (TransferBlock& block : transfer_blocks_) {
    if (IsInUse(block)) continue;
    block = taken;
    return &block - transfer_blocks_.data() + 1;
  }
  // Other code may have closed the descriptor and opened another file with its
  // number, which must not grow.
  const uint64_t next = transfer_blocks_.size();
  if (next == layout_.transfer_blocks() || !file_.IsIntact() ||
      !memory::ReserveFile(file_.get(),
                           layout_.TransferAt(rank_, next),
                           GroupLayout::kTransferBytes)) {
    return 0;
  }
  transfer_blocks_.push_back(taken);
  return next + 1;
}

bool GroupMemory::IsInUse(const TransferBlock& block) const {
  const uint64_t end = ProgressOf(block.sequence, kEndPhase);
  for (int i = 0; i < layout_.members(block.channel); ++i) {
    // Acquire, pairs with the release in Operation::Store: the receiver has
    // read the block, and another thread of this rank has written to it.
    if (member(block.channel, i)->progress.load(std::memory_order_acquire) <
        end) {
      return true;
    }
  }
  return false;
}

bool GroupMemory::MaySpin() const {
  if (spin_.count() == 0) return false;
  int cores = 0;
  for (const auto& word : header()->cores) {
    cores += __builtin_popcountll(word.load(std::memory_order_relaxed));
  }
  return cores >= size();
}

bool GroupMemory::HasLeft(int rank) const {
  // Acquire, pairs with the release in Leave: all phases that the rank
  // published are visible.
  return rank_state(rank)->state.load(std::memory_order_acquire) ==
         RankState::kLeft;
}

bool GroupMemory::IsDead(int rank, bool check_process) const {
  const RankState* state = rank_state(rank);
  // Acquire, pairs with the release in TakeRank: an attached rank took its lock
  // before.
  if (rank == rank_ ||
      state->state.load(std::memory_order_acquire) != RankState::kAttached) {
    return false;
  }
  if (memory::IsLocked(file_.get(), rank) &&
      !(check_process && IsGoneOrExiting(process_of(rank)))) {
    return false;
  }
  // The rank may have left meanwhile. The kernel lock orders the two checks: a
  // leaving rank stores kLeft before it closes its file.
  return state->state.load(std::memory_order_acquire) == RankState::kAttached;
}

void GroupMemory::CheckAlive(uint32_t channel,
                             uint64_t sequence,
                             bool check_process) {
  // This rank's lock stays held through the mapping, but without the descriptor
  // it cannot check the other ranks' locks.
  if (!file_.IsIntact()) {
    return Fail(Kind::kClosed,
                rank_,
                "Other code has closed the group's descriptor in " +
                    Describe(rank_) +
                    ", which can no longer check which ranks are alive. Close "
                    "only descriptors that the same code has opened.");
  }
  // Checking a process costs more than checking a lock, so each call checks the
  // process of only one rank. Different ranks begin with different processes.
  int turn = -1;
  if (check_process) {
    last_check_.store(Clock::now().time_since_epoch().count(),
                      std::memory_order_relaxed);
    uint32_t check = checks_.fetch_add(1, std::memory_order_relaxed);
    turn = static_cast<int>((rank_ + 1 + check) % size());
  }
  for (int rank = 0; rank < size(); ++rank) {
    bool left = HasLeft(rank);
    if (!left && !IsDead(rank, rank == turn)) continue;
    int member_index = layout_.MemberOf(channel, rank);
    // Read after the check above, so that it includes everything that the rank
    // published before it died or left. Progress never decreases.
    bool has_ended = member_index >= 0 &&
                     member(channel, member_index)
                             ->progress.load(std::memory_order_acquire) >=
                         ProgressOf(sequence, kEndPhase);
    if (has_ended || (left && member_index < 0)) continue;
    return FailDeadOrLeft(rank);
  }
}

void GroupMemory::CheckAliveIfDue(uint32_t channel, uint64_t sequence) {
  Clock::duration last(last_check_.load(std::memory_order_relaxed));
  if (Clock::now().time_since_epoch() - last >= kCheckInterval) {
    CheckAlive(channel, sequence);
  }
}

void GroupMemory::Fail(Kind kind, int rank, const std::string& text) {
  std::lock_guard<std::mutex> guard(report_mutex_);
  // After a failure, other ranks may be reading this rank's report.
  if (header()->failure.load(std::memory_order_relaxed) != 0) return;
  RankState::Report* report = &rank_state(rank_)->report;
  report->kind = static_cast<uint32_t>(kind);
  report->rank = rank;
  report->text[text.copy(report->text, sizeof(report->text) - 1)] = 0;
  report->text[0] = static_cast<char>(std::toupper(report->text[0]));
  uint64_t none = 0;
  // Sequentially consistent, together with the count in Operation::Sleep: if a
  // rank does not see the failure before it sleeps, WakeAll sees its count and
  // wakes it. Includes release: a rank that acquires the failure sees the
  // report.
  if (header()->failure.compare_exchange_strong(
          none, rank_ + 1, std::memory_order_seq_cst)) {
    WakeAll();
  }
}

void GroupMemory::FailDeadOrLeft(int rank) {
  if (HasLeft(rank)) {
    return Fail(Kind::kLeft,
                rank,
                Describe(rank) + " has left the group. " +
                    LastOperationOf(rank) +
                    " All ranks must call the same operations before they "
                    "leave.");
  }
  Fail(Kind::kDied,
       rank,
       Describe(rank) +
           " has died: it was killed, or it ended without leaving the group. " +
           LastOperationOf(rank) + " Start all ranks again.");
}

void GroupMemory::WakeAll() {
  for (uint32_t channel = 0; channel < layout_.channels(); ++channel) {
    for (int i = 0; i < layout_.members(channel); ++i) {
      ChannelMember* sleeper = member(channel, i);
      if (sleeper->sleepers.load(std::memory_order_seq_cst) != 0) {
        WakeSleepers(sleeper->progress);
      }
    }
  }
}

std::string GroupMemory::Describe(int rank) const {
  uint32_t process = process_of(rank);
  return "rank " + std::to_string(rank) +
         (process == 0 ? " (which has not attached)"
                       : " (process " + std::to_string(process) + ")");
}

std::string GroupMemory::Describe(uint32_t channel,
                                  uint64_t sequence,
                                  const OperationInfo& info) const {
  std::string text = info.name + (" number " + std::to_string(sequence));
  if (channel != GroupLayout::kAllRanks) {
    text += " from rank " + std::to_string(layout_.RankOf(channel, 0)) +
            " to rank " + std::to_string(layout_.RankOf(channel, 1));
  }
  return text + " " + info.Details();
}

std::string GroupMemory::Describe(uint32_t channel,
                                  int rank,
                                  uint64_t sequence) const {
  OperationEntry* source =
      entry(channel, layout_.MemberOf(channel, rank), sequence);
  // The rank may go on and reuse the entry meanwhile. It sets the sequence to 0
  // first, so comparing the sequence before and after detects the reuse.
  // Acquire and release keep the read of the info between the two reads; the
  // fetch_add of 0 is a read with release semantics.
  uint64_t before = source->sequence.load(std::memory_order_acquire);
  OperationInfo info = source->info;
  uint64_t after = source->sequence.fetch_add(0, std::memory_order_release);
  if (before != sequence || after != sequence) {
    return "operation number " + std::to_string(sequence);
  }
  return Describe(channel, sequence, info);
}

std::string GroupMemory::LastOperationOf(int rank) const {
  // Acquire, pairs with the release in Operation::Begin: the entry is complete.
  uint64_t last =
      rank_state(rank)->last_operation.load(std::memory_order_acquire);
  if (last == 0) return "It had begun no operation.";
  uint32_t channel = ChannelOf(last);
  uint64_t sequence = SequenceOf(last);
  bool has_ended = member(channel, layout_.MemberOf(channel, rank))
                       ->progress.load(std::memory_order_acquire) >=
                   ProgressOf(sequence, kEndPhase);
  return std::string("The last operation that it began") +
         (has_ended ? " was " : ", and did not end, was ") +
         Describe(channel, rank, sequence) + ".";
}

}  // namespace distributed
}  // namespace phi
