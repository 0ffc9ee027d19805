#include "onnxruntime_backend/request.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "onnxruntime_backend/errors.h"
#include "onnxruntime_backend/turns.h"

namespace sparse_serve {
namespace {

constexpr char kMask[] = "attention_mask";
// Bytes of a text that count as a token until the text has been read.
constexpr size_t kTokenBytes = 4;
// Bytes of the length that stands before each text.
constexpr size_t kLengthBytes = sizeof(uint32_t);
// Most elements of an input: their bytes can then be counted, whatever their type.
constexpr size_t kMostElements = size_t{1} << 48;

// The number of a tensor's elements. The shape comes from the client, so its sizes may be anything.
size_t CheckedElements(const std::vector<int64_t>& shape, const std::string& name) {
  size_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, static_cast<size_t>(size), &elements) ||
        elements > kMostElements) {
      throw InvalidArgument("input '" + name + "' has more elements than can be read");
    }
  }
  return elements;
}

// The texts of a tensor, each of which follows its length in memory.
std::vector<std::string_view> SplitTexts(const char* data, size_t bytes, size_t count,
                                         const std::string& name) {
  std::vector<std::string_view> texts;
  const char* const end = data + bytes;
  while (data < end) {
    uint32_t length = 0;
    const auto left = static_cast<size_t>(end - data);
    if (left >= kLengthBytes) {
      std::memcpy(&length, data, kLengthBytes);
    }
    if (left < kLengthBytes || left - kLengthBytes < length) {
      throw InvalidArgument("input '" + name +
                            "' ends within a text: each is to follow its length, of 4 bytes");
    }
    texts.emplace_back(data + kLengthBytes, length);
    data += kLengthBytes + length;
  }
  if (texts.size() != count) {
    throw InvalidArgument("input '" + name + "' has " + std::to_string(texts.size()) +
                          " texts, its shape has room for " + std::to_string(count));
  }
  return texts;
}

// Sets where the bytes of an input lie. They are copied if they lie in several parts, or not aligned for
// their type.
void ReadBytes(TRITONBACKEND_Input* handle, uint32_t count, size_t bytes, const GraphTensor& tensor,
               InputTensor* input) {
  std::vector<std::string_view> parts;
  for (uint32_t index = 0; index < count; ++index) {
    const void* memory = nullptr;
    uint64_t part_bytes = 0;
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t id = 0;
    Check(TRITONBACKEND_InputBuffer(handle, index, &memory, &part_bytes, &type, &id));
    if (type == TRITONSERVER_MEMORY_GPU) {
      throw std::runtime_error("input '" + tensor.name +
                               "' lies in memory of a GPU, which this backend does not read");
    }
    parts.emplace_back(static_cast<const char*>(memory), part_bytes);
  }
  const size_t alignment = std::max<size_t>(1, tensor.type->bytes);
  if (parts.size() == 1 && reinterpret_cast<uintptr_t>(parts[0].data()) % alignment == 0) {
    input->data = parts[0].data();
    return;
  }
  input->copy = std::make_unique<char[]>(bytes);
  char* place = input->copy.get();
  for (const std::string_view part : parts) {
    place = std::copy(part.begin(), part.end(), place);
  }
  input->data = input->copy.get();
}

// How many elements of a row are not zero.
size_t CountNonzero(const char* row, size_t bytes, size_t element_bytes) {
  size_t count = 0;
  for (size_t at = 0; at < bytes; at += element_bytes) {
    count += std::any_of(row + at, row + at + element_bytes, [](char byte) { return byte != 0; }) ? 1 : 0;
  }
  return count;
}

// The memory that Triton gives an output.
char* OutputMemory(TRITONBACKEND_Output* output, size_t bytes) {
  void* memory = nullptr;
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t id = 0;
  Check(TRITONBACKEND_OutputBuffer(output, &memory, bytes, &type, &id));
  if (type == TRITONSERVER_MEMORY_GPU) {
    throw std::runtime_error("an output is to lie in memory of a GPU, which this backend does not write to");
  }
  return static_cast<char*>(memory);
}

// Responds with the error, if there is one, which it takes over, and else with the outputs that `write` adds
// to the response. Returns whether those were sent.
template <class Write>
bool Respond(TRITONBACKEND_Request* handle, TRITONSERVER_Error* error, Write write) noexcept {
  TRITONBACKEND_Response* response = nullptr;
  bool is_sent = false;
  if (Succeeds("an answer could not be made: ", TRITONBACKEND_ResponseNew(&response, handle))) {
    if (error == nullptr) {
      error = Guarded([&] { write(response); });
    }
    is_sent = Succeeds("an answer could not be sent: ",
                       TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
  }
  const bool has_outputs = is_sent && error == nullptr;
  TRITONSERVER_ErrorDelete(error);
  return has_outputs;
}

void Release(TRITONBACKEND_Request* handle) noexcept {
  Succeeds("a request could not be released: ",
           TRITONBACKEND_RequestRelease(handle, TRITONSERVER_REQUEST_RELEASE_ALL));
}

}  // namespace

uint64_t Now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

Request::Request(const Served& served, TRITONBACKEND_Request* handle) noexcept
    : served_(served), handle_(handle), begin_ns_(Now()) {
  try {
    Read();
    input_ns_ = Now() - begin_ns_;
  } catch (const std::exception& error) {
    row_tokens_.clear();
    Refuse(error);
  }
}

void Request::RefuseUnread(TRITONBACKEND_Request* handle) noexcept {
  const auto write_nothing = [](TRITONBACKEND_Response*) {};
  Respond(handle, ToTriton(std::bad_alloc()), write_nothing);
  Release(handle);
}

Request::~Request() {
  if (!is_answered()) {
    Refuse(std::runtime_error("the request was given up"));
  }
}

void Request::Read() {
  const Session& session = served_.session;
  wanted_.resize(session.outputs().size());
  row_tokens_.resize(1);
  uint32_t count = 0;
  Check(TRITONBACKEND_RequestOutputCount(handle_, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char* name = nullptr;
    Check(TRITONBACKEND_RequestOutputName(handle_, index, &name));
    const auto is_it = [name](const GraphTensor& output) { return output.name == name; };
    const auto found = std::find_if(session.outputs().begin(), session.outputs().end(), is_it);
    if (found == session.outputs().end()) {
      throw InvalidArgument(std::string("output '") + name + "' is none of the model's");
    }
    wanted_[static_cast<size_t>(found - session.outputs().begin())] = true;
  }
  for (const GraphTensor& tensor : session.inputs()) {
    inputs_.push_back(ReadInput(tensor));
  }
  CheckAxes();
  CheckLimits();
  CountTokens();
}

InputTensor Request::ReadInput(const GraphTensor& tensor) {
  TRITONBACKEND_Input* handle = nullptr;
  Check(TRITONBACKEND_RequestInput(handle_, tensor.name.c_str(), &handle));
  const int64_t* dimensions = nullptr;
  uint32_t rank = 0, parts = 0;
  uint64_t bytes = 0;
  Check(TRITONBACKEND_InputProperties(handle, nullptr, nullptr, &dimensions, &rank, &bytes, &parts));
  InputTensor input;
  input.shape.assign(dimensions, dimensions + rank);
  const size_t elements = CheckedElements(input.shape, tensor.name);
  const size_t rows = CheckedRows(tensor, input.shape);
  row_tokens_.resize(rows);
  CheckBytes(tensor, elements, bytes);
  ReadBytes(handle, parts, bytes, tensor, &input);
  if (tensor.type->bytes > 0) {
    input.row_bytes = bytes / rows;
  } else {
    input.texts = SplitTexts(input.data, bytes, elements, tensor.name);
    input.row_texts = elements / rows;
  }
  return input;
}

size_t Request::CheckedRows(const GraphTensor& tensor, const std::vector<int64_t>& shape) const {
  // Triton leaves the axis of rows out where an input has 0 of them; it refuses other ranks itself.
  if (shape.size() != tensor.shape.size() || (is_batched() && shape[0] == 0)) {
    throw InvalidArgument("input '" + tensor.name + "' has no rows: give at least one");
  }
  if (!is_batched()) {
    return 1;
  }
  if (shape[0] > served_.configuration.max_batch_size) {
    throw InvalidArgument("input '" + tensor.name + "' has " + std::to_string(shape[0]) +
                          " rows: give at most " + std::to_string(served_.configuration.max_batch_size));
  }
  return static_cast<size_t>(shape[0]);
}

// Checks the number of bytes, before any of them is copied.
void Request::CheckBytes(const GraphTensor& tensor, size_t elements, size_t bytes) const {
  const size_t expected = elements * tensor.type->bytes;
  if (tensor.type->bytes > 0 && bytes != expected) {
    throw InvalidArgument("input '" + tensor.name + "' has " + std::to_string(bytes) +
                          " bytes, its shape has room for " + std::to_string(expected));
  }
  if (tensor.type->bytes == 0 && bytes > elements * kLengthBytes) {
    const size_t text_bytes = bytes - elements * kLengthBytes;
    if (elements == 1) {
      CheckText(tensor.name, text_bytes);
    }
    CheckTexts(text_bytes);
  }
}

// Checks that the inputs' shapes agree, because broadcasting would hide differences.
void Request::CheckAxes() const {
  struct Axis {
    const std::string& input;
    int64_t size;
  };
  std::map<std::string, Axis> sizes;
  const auto check = [&sizes](const std::string& axis, const std::string& input, int64_t size) {
    const auto& [first, expected] = sizes.try_emplace(axis, Axis{input, size}).first->second;
    if (size != expected) {
      throw InvalidArgument("input '" + input + "' has " + axis + " " + std::to_string(size) + ", input '" +
                            first + "' has " + std::to_string(expected) + ": they must be equal");
    }
  };
  for (size_t index = 0; index < inputs_.size(); ++index) {
    const GraphTensor& tensor = served_.session.inputs()[index];
    for (size_t axis = 0; axis < tensor.symbols.size(); ++axis) {
      if (!tensor.symbols[axis].empty()) {
        check(tensor.symbols[axis], tensor.name, inputs_[index].shape[axis]);
      }
    }
  }
  sizes.clear();
  for (size_t index = 0; is_batched() && index < inputs_.size(); ++index) {
    check("rows", served_.session.inputs()[index].name, inputs_[index].shape[0]);
  }
}

void Request::CheckText(const std::string& input, size_t bytes) const {
  const size_t most = served_.configuration.limits.text_bytes;
  if (bytes > most) {
    throw Oversize("input '" + input + "' has a text of " + std::to_string(bytes) + " bytes: give at most " +
                   std::to_string(most) + " (max_text_bytes of config.pbtxt)");
  }
}

void Request::CheckTexts(size_t bytes) const {
  const size_t most = served_.configuration.limits.request_bytes;
  if (bytes > most) {
    throw Oversize("the texts of the request have " + std::to_string(bytes) + " bytes: give at most " +
                   std::to_string(most) +
                   " at once, others in further requests (max_request_bytes of config.pbtxt)");
  }
}

void Request::CheckLimits() const {
  size_t total = 0;
  for (size_t index = 0; index < inputs_.size(); ++index) {
    size_t longest = 0;
    for (const std::string_view text : inputs_[index].texts) {
      longest = std::max(longest, text.size());
      total += text.size();
    }
    CheckText(served_.session.inputs()[index].name, longest);
  }
  CheckTexts(total);
}

// Counts tokens by the attention mask where there is one, else estimates them by the bytes of texts.
void Request::CountTokens() {
  if (!is_batched() || inputs_.empty()) {
    return;
  }
  for (size_t index = 0; index < inputs_.size(); ++index) {
    const InputTensor& input = inputs_[index];
    const GraphTensor& tensor = served_.session.inputs()[index];
    if (tensor.name == kMask && tensor.type->bytes > 0) {
      for (size_t row = 0; row < row_tokens_.size(); ++row) {
        row_tokens_[row] =
            CountNonzero(input.data + row * input.row_bytes, input.row_bytes, tensor.type->bytes);
      }
      break;
    }
    for (size_t text = 0; text < input.texts.size(); ++text) {
      size_t& tokens = row_tokens_[text / input.row_texts];
      tokens = std::min(tokens + input.texts[text].size() / kTokenBytes, served_.configuration.max_length);
    }
  }
  tokens_ = std::accumulate(row_tokens_.begin(), row_tokens_.end(), size_t{0});
}

void Request::Take(std::shared_ptr<const RunOutputs> outputs, size_t begin, size_t rows,
                   const RunTimes& times) noexcept {
  input_ns_ += times.compute_begin_ns - times.begin_ns;
  compute_ns_ += times.compute_end_ns - times.compute_begin_ns;
  compute_end_ns_ = times.compute_end_ns;
  TRITONSERVER_Error* const error = Guarded([&] { pieces_.push_back({std::move(outputs), begin, rows}); });
  rows_taken_ += rows;
  if (error != nullptr || rows_taken_ == row_tokens_.size()) {
    Answer(error);
  }
}

void Request::Refuse(const std::exception& error) noexcept {
  if (served_.meter != nullptr) {
    // What cannot be read counts as one text.
    const size_t texts = std::max<size_t>(1, row_tokens_.size()) - rows_taken_;
    TRITONSERVER_ErrorDelete(Guarded([&] { served_.meter->Refuse(error, texts); }));
  }
  Answer(ToTriton(error));
}

bool Request::IsOver() noexcept {
  bool is_cancelled = false;
  if (!is_answered() &&
      Succeeds("a request could not be asked whether it is cancelled: ",
               TRITONBACKEND_RequestIsCancelled(handle_, &is_cancelled)) &&
      is_cancelled) {
    Refuse(Cancelled());
  }
  return is_answered();
}

// Sends all outputs, or the error, which it takes over.
void Request::Answer(TRITONSERVER_Error* error) noexcept {
  const bool is_success = Respond(handle_, error, [this](TRITONBACKEND_Response* response) {
    for (size_t output = 0; output < wanted_.size(); ++output) {
      if (wanted_[output]) {
        Write(response, output);
      }
    }
  });
  const uint64_t end_ns = Now();
  // Triton counts all time before the beginning that it is told as time in its queue. So it is told one as if
  // the request had been read and computed in one go: the time that it waited for others, or for its turn,
  // counts as queued.
  const uint64_t compute_end_ns = compute_end_ns_ == 0 ? end_ns : compute_end_ns_;
  const uint64_t compute_begin_ns = compute_end_ns - compute_ns_;
  const uint64_t begin_ns = compute_end_ns_ == 0 ? begin_ns_ : compute_begin_ns - input_ns_;
  Succeeds("a request could not be counted: ",
           TRITONBACKEND_ModelInstanceReportStatistics(served_.instance, handle_, is_success, begin_ns,
                                                       compute_begin_ns, compute_end_ns, end_ns));
  Release(handle_);
  handle_ = nullptr;
  pieces_.clear();
  inputs_.clear();
}

// Adds one output to the response: the rows of all pieces.
void Request::Write(TRITONBACKEND_Response* response, size_t output) const {
  const GraphTensor& tensor = served_.session.outputs()[output];
  std::vector<int64_t> shape = (*pieces_[0].outputs)[output].shape();
  size_t row_elements = ElementsOf(shape);
  if (is_batched()) {
    row_elements = ElementsOf({shape.begin() + 1, shape.end()});
    shape[0] = static_cast<int64_t>(row_tokens_.size());
  }
  const size_t element_bytes = tensor.type->bytes;
  size_t bytes = ElementsOf(shape) * element_bytes;
  for (const Piece& piece : pieces_) {
    const OutputTensor& part = (*piece.outputs)[output];
    if (is_batched() &&
        !std::equal(shape.begin() + 1, shape.end(), part.shape().begin() + 1, part.shape().end())) {
      throw std::runtime_error("output '" + tensor.name + "' has rows of several shapes");
    }
    for (size_t text = 0; element_bytes == 0 && text < piece.rows * row_elements; ++text) {
      bytes += kLengthBytes + part.Text(piece.begin * row_elements + text).size();
    }
  }
  TRITONBACKEND_Output* handle = nullptr;
  Check(TRITONBACKEND_ResponseOutput(response, &handle, tensor.name.c_str(), tensor.type->triton,
                                     shape.data(), static_cast<uint32_t>(shape.size())));
  char* place = OutputMemory(handle, bytes);
  for (const Piece& piece : pieces_) {
    const OutputTensor& part = (*piece.outputs)[output];
    const size_t begin = piece.begin * row_elements, count = piece.rows * row_elements;
    if (element_bytes > 0) {
      place = std::copy_n(part.data<char>() + begin * element_bytes, count * element_bytes, place);
      continue;
    }
    for (size_t text = begin; text < begin + count; ++text) {
      const std::string_view own = part.Text(text);
      const auto length = static_cast<uint32_t>(own.size());
      std::memcpy(place, &length, kLengthBytes);
      place = std::copy(own.begin(), own.end(), place + kLengthBytes);
    }
  }
}

bool Slice::FitsBeside(const Slice& other) const {
  if (!request->is_batched()) {
    return false;
  }
  const std::vector<InputTensor>&own = request->inputs(), &others = other.request->inputs();
  return std::equal(own.begin(), own.end(), others.begin(), others.end(), [](const auto& a, const auto& b) {
    return std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1, b.shape.end());
  });
}

std::vector<Slice> SlicesOf(const std::shared_ptr<Request>& request) {
  const std::vector<size_t>& row_tokens = request->row_tokens();
  std::vector<Slice> slices = {{request, 0, 0, 0, false}};
  for (size_t row = 0; row < row_tokens.size(); ++row) {
    if (slices.back().tokens > 0 && slices.back().tokens + row_tokens[row] > kRunTokens) {
      slices.push_back({request, row, 0, 0, false});
    }
    ++slices.back().rows;
    slices.back().tokens += row_tokens[row];
  }
  slices.back().is_last = true;
  return slices;
}

Owned<OrtValue> JoinInput(const Served& served, const std::vector<Slice>& run, size_t input) {
  const OnnxRuntime& runtime = served.session.runtime();
  const OrtApi& api = runtime.api();
  const ElementType& type = *served.session.inputs()[input].type;
  std::vector<int64_t> shape = run[0].request->inputs()[input].shape;
  if (served.configuration.is_batched()) {
    shape[0] = 0;
    for (const Slice& slice : run) {
      shape[0] += static_cast<int64_t>(slice.rows);
    }
  }
  OrtValue* made = nullptr;
  if (run.size() == 1 && type.bytes > 0) {
    const InputTensor& own = run[0].request->inputs()[input];
    // ONNX Runtime only reads inputs, but takes a pointer to what is not const.
    char* data = const_cast<char*>(own.data) + run[0].begin * own.row_bytes;
    Check(api, api.CreateTensorWithDataAsOrtValue(runtime.memory(), data, run[0].rows * own.row_bytes,
                                                  shape.data(), shape.size(), type.onnx, &made));
    return {made, api.ReleaseValue};
  }
  Check(api, api.CreateTensorAsOrtValue(runtime.allocator(), shape.data(), shape.size(), type.onnx, &made));
  Owned<OrtValue> value(made, api.ReleaseValue);
  void* data = nullptr;
  if (type.bytes > 0) {
    Check(api, api.GetTensorMutableData(made, &data));
  }
  auto* place = static_cast<char*>(data);
  size_t element = 0;
  for (const Slice& slice : run) {
    const InputTensor& own = slice.request->inputs()[input];
    if (type.bytes > 0) {
      place = std::copy_n(own.data + slice.begin * own.row_bytes, slice.rows * own.row_bytes, place);
      continue;
    }
    for (size_t text = slice.begin * own.row_texts; text < (slice.begin + slice.rows) * own.row_texts;
         ++text) {
      const std::string_view bytes = own.texts[text];
      char* element_bytes = nullptr;
      Check(api, api.GetResizedStringTensorElementBuffer(made, element++, bytes.size(), &element_bytes));
      std::copy(bytes.begin(), bytes.end(), element_bytes);
    }
  }
  return value;
}

}  // namespace sparse_serve
