#include "onnxruntime_backend/errors.h"

#include <new>
#include <sstream>

namespace sparse_serve {
namespace {

TRITONSERVER_Error_Code CodeOf(const std::exception& error) {
  if (dynamic_cast<const Cancelled*>(&error) != nullptr) {
    return TRITONSERVER_ERROR_CANCELLED;
  }
  const bool is_clients = dynamic_cast<const InvalidArgument*>(&error) != nullptr;
  return is_clients ? TRITONSERVER_ERROR_INVALID_ARG : TRITONSERVER_ERROR_INTERNAL;
}

std::string OneLine(const char* text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) {
    line += (line.empty() ? "" : " ") + word;
  }
  return line;
}

}  // namespace

void Check(TRITONSERVER_Error* error) {
  if (error == nullptr) {
    return;
  }
  const bool is_clients = TRITONSERVER_ErrorCode(error) == TRITONSERVER_ERROR_INVALID_ARG;
  const std::string message = TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_ErrorDelete(error);
  if (is_clients) {
    throw InvalidArgument(message);
  }
  throw std::runtime_error(message);
}

void Check(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) {
    return;
  }
  const bool is_clients = api.GetErrorCode(status) == ORT_INVALID_ARGUMENT;
  const std::string message = std::string("onnx runtime error: ") + api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  if (is_clients) {
    throw InvalidArgument(message);
  }
  throw std::runtime_error(message);
}

TRITONSERVER_Error* ToTriton(const std::exception& error) noexcept {
  try {
    return TRITONSERVER_ErrorNew(CodeOf(error), OneLine(error.what()).c_str());
  } catch (const std::bad_alloc&) {
    return TRITONSERVER_ErrorNew(CodeOf(error), "out of memory");
  }
}

bool Succeeds(const char* what, TRITONSERVER_Error* error) noexcept {
  if (error == nullptr) {
    return true;
  }
  const char* const reason = TRITONSERVER_ErrorMessage(error);
  try {
    Log(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, (what + std::string(reason)).c_str());
  } catch (const std::bad_alloc&) {
    Log(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, reason);
  }
  TRITONSERVER_ErrorDelete(error);
  return false;
}

void Log(TRITONSERVER_LogLevel level, const char* file, int line, const char* message) noexcept {
  // There is nowhere to report that logging failed.
  TRITONSERVER_ErrorDelete(TRITONSERVER_LogMessage(level, file, line, message));
}

}  // namespace sparse_serve
